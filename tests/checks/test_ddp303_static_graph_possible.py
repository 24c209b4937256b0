"""DDP303 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.analysis import Rehearsal
from ddplint.checks.base import Case
from ddplint.checks.ddp303_static_graph_possible import check
from ddplint.rules import RuleFile
from tests.made import analysis, rehearsal, rules, unused, used

RAN = rehearsal("reduction_error", "ok", "ok")


def test_a_static_set_under_the_flag_can_be_a_static_graph() -> None:
    (finding,) = check(Case(analysis(used("a.w"), unused("b.w"), rehearsal=RAN), rules(flag=True)))
    assert (finding.severity, finding.parameters, finding.location) == ("info", (), None)
    assert finding.fix.startswith("wrap with static_graph=True instead of find_unused_parameters=True")


def test_if_the_flag_can_be_off_that_comes_first() -> None:
    (finding,) = check(Case(analysis(used("a.w"), rehearsal=rehearsal()), rules(flag=True)))
    assert finding.fix.startswith("wrap with find_unused_parameters=False, which runs as well (rehearsed: ok)")


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
