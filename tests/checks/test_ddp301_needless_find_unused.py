"""DDP301 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.analysis import Analysis
from ddplint.callsites.model import Edit, Wrap
from ddplint.checks.base import Case
from ddplint.checks.ddp301_needless_find_unused import check
from tests.made import analysis, rehearsal, rules, unused, used, wrap

FINE = analysis(used("a.w"), rehearsal=rehearsal())


def test_a_declared_flag_that_is_not_needed_has_no_place() -> None:
    (finding,) = check(Case(FINE, rules(flag=True)))
    assert (finding.severity, finding.parameters, finding.location) == ("warning", (), None)
    assert finding.fix == "wrap with find_unused_parameters=False, and declare that under [ddp]"


def test_each_wrap_in_the_source_that_has_it_on_is_named() -> None:
    edit = Edit(0, 4, "True", "False")
    wraps = (wrap("on", line=3, edit=edit), wrap("off"), wrap("on", line=9, kept="its value has other readers"))
    one, other = check(Case(FINE, rules(flag=True), wraps))
    assert [finding.location.line if finding.location else 0 for finding in (one, other)] == [3, 9]
    assert one.message.startswith("train.py:3 `model = DDP(model)`: find_unused_parameters is on and not needed")
    assert one.fix == "turn it off; `ddplint fix` does it"
    assert other.fix == "turn it off; not by `ddplint fix`, for its value has other readers"


@pytest.mark.parametrize("left", [wrap("off"), wrap("conditional"), wrap("unknown"), wrap("on", static="on")])
def test_a_wrap_that_does_not_search_or_may_not_is_left_alone(left: Wrap) -> None:
    assert list(check(Case(FINE, None, (left,)))) == []


@pytest.mark.parametrize(
    "made",
    [
        analysis(used("a.w")),
        analysis(used("a.w"), rehearsal=rehearsal(), complete=False),
        analysis(used("a.w"), unused("b.w", usage="sometimes"), rehearsal=rehearsal()),
        analysis(used("a.w"), unused("b.w"), rehearsal=rehearsal("reduction_error", "ok")),
        analysis(used("a.w"), rehearsal=rehearsal("ready_twice", "ready_twice")),
    ],
)
def test_it_is_not_said_unless_it_is_proven(made: Analysis) -> None:
    assert list(check(Case(made, rules(flag=True), (wrap("on"),)))) == []
