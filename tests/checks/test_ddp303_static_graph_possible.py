"""DDP303 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.analysis import Rehearsal
from ddplint.checks.base import Case
from ddplint.checks.ddp303_static_graph_possible import check
from ddplint.checks.registry import run
from ddplint.rules import RuleFile
from tests.made import analysis, rehearsal, rules, unused, used, wrap

RAN = rehearsal("reduction_error", "ok", "ok")


def test_a_static_set_under_the_flag_can_be_a_static_graph() -> None:
    (finding,) = check(Case(analysis(used("a.w"), unused("b.w"), rehearsal=RAN), rules(flag=True)))
    assert (finding.severity, finding.parameters, finding.location) == ("info", (), None)
    assert finding.fix.startswith("wrap with static_graph=True instead of find_unused_parameters=True")


def test_if_the_flag_can_be_off_that_is_another_finding() -> None:
    case = Case(analysis(used("a.w"), rehearsal=rehearsal()), rules(flag=True))
    assert list(check(case)) == []
    assert [finding.code for finding in run(case)] == ["DDP301"]


def test_it_is_said_where_the_source_has_the_flag_on() -> None:
    made = analysis(used("a.w"), unused("b.w"), rehearsal=RAN)
    on, off = wrap("on", line=3), wrap("off", line=5)
    (finding,) = check(Case(made, rules(), (on, off)))
    assert finding.location is not None
    assert (finding.location.file, finding.location.line) == (on.file, 3)
    assert finding.message.startswith("train.py:3 `model = DDP(model)`: the same parameters")


@pytest.mark.parametrize("declared", [None, rules(), rules(flag=False), rules(flag=True, static=True)])
def test_where_the_flag_is_not_on_there_is_nothing_to_gain(declared: RuleFile | None) -> None:
    assert list(check(Case(analysis(used("a.w"), rehearsal=RAN), declared))) == []


@pytest.mark.parametrize("ran", [None, rehearsal("reduction_error", "ok", "reduction_error")])
def test_it_is_not_said_unless_ddp_ran_so(ran: Rehearsal | None) -> None:
    assert list(check(Case(analysis(used("a.w"), rehearsal=ran), rules(flag=True)))) == []


def test_a_set_that_varies_or_is_not_known_is_not_static() -> None:
    varies = analysis(used("a.w"), unused("b.w", usage="sometimes"), rehearsal=RAN)
    unknown = analysis(used("a.w"), complete=False, rehearsal=RAN)
    assert [list(check(Case(made, rules(flag=True)))) for made in (varies, unknown)] == [[], []]
