"""DDP302 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.analysis import Analysis
from ddplint.callsites.model import Wrap
from ddplint.checks.base import Case
from ddplint.checks.ddp302_missing_find_unused import check
from tests.made import analysis, rehearsal, rules, unused, used, wrap

FAILS = rehearsal("reduction_error", "ok", "ok", frozen="ok")
POOR = analysis(used("a.w"), unused("b.w"), rehearsal=FAILS)


def test_a_wrap_with_the_flag_off_that_fails_is_named_with_its_parameters() -> None:
    (finding,) = check(Case(POOR, rules(), (wrap("off", line=3), wrap("on"))))
    assert finding.location is not None
    assert (finding.severity, finding.parameters, finding.location.line) == ("error", ("b.w",), 3)
    assert "is off, and 1 parameter of `b` (10 weights, 50 % of the trainable ones) is unused" in finding.message
    assert finding.fix.startswith("before the wrap, freeze what is never used: `model.get_submodule(")


def test_what_is_declared_off_has_no_place() -> None:
    (finding,) = check(Case(POOR, rules(flag=False)))
    assert finding.location is None


def test_what_freezing_does_not_cure_needs_the_flag() -> None:
    made = analysis(used("a.w"), unused("b.w", usage="sometimes"), rehearsal=rehearsal("hang", "ok"))
    (finding,) = check(Case(made, None, (wrap("off"),)))
    assert finding.fix == "turn the flag on"


@pytest.mark.parametrize("left", [wrap("on"), wrap("conditional"), wrap("unknown"), wrap("off", static="on")])
def test_a_wrap_that_is_on_or_may_be_is_left_alone(left: Wrap) -> None:
    assert list(check(Case(POOR, None, (left,)))) == []


@pytest.mark.parametrize(
    "made",
    [
        analysis(used("a.w"), rehearsal=rehearsal()),
        analysis(used("a.w"), unused("b.w")),
        analysis(used("a.w"), unused("b.w"), rehearsal=rehearsal("reduction_error", "ready_twice")),
    ],
)
def test_it_is_not_said_where_the_flag_would_not_help_or_nobody_knows(made: Analysis) -> None:
    assert list(check(Case(made, rules(flag=False), (wrap("off"),)))) == []
