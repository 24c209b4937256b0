"""DDP901 on analyses made by hand."""

from __future__ import annotations

from dataclasses import replace

from ddplint.checks.base import Case
from ddplint.checks.ddp901_incomplete import check
from tests.made import analysis, used


def test_a_budget_that_ended_first_is_a_warning() -> None:
    made = analysis(used("a.w"), complete=False)
    (finding,) = check(Case(replace(made, trace=replace(made.trace, paths=256))))
    assert finding.severity == "warning"
    assert finding.message.startswith("256 paths of the step were traced, and there are more")
    assert finding.fix == "give a larger --paths"


def test_values_that_meta_does_not_have_are_said() -> None:
    made = analysis(used("a.w"), complete=False)
    (finding,) = check(Case(replace(made, trace=replace(made.trace, device_reason="bool() reads a tensor's value"))))
    assert "--device cpu" in finding.fix


def test_a_whole_trace_is_no_finding() -> None:
    assert list(check(Case(analysis(used("a.w"))))) == []
