"""DDP202 on analyses made by hand."""

from __future__ import annotations

from ddplint.checks.base import Case
from ddplint.checks.ddp202_output_only import check
from tests.made import analysis, entry, rules, unused, used


def test_one_finding_for_each_output_that_the_loss_leaves_out() -> None:
    made = analysis(
        unused("a.w", 5, cause="output-only"),
        unused("a.b", 5, cause="output-only"),
        unused("c.w", 6, cause="output-only"),
        unused("d.w", 5, cause="severed"),
        used("e.w"),
    )
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("a.w", "a.b"), ("c.w",))
    assert "reach forward's output (computed at model.py:5), but not the loss" in first.message
    assert "reaches forward's output" in second.message
    assert first.severity == "error"


def test_documented_ones_are_left_alone() -> None:
    assert list(check(Case(analysis(unused("a.w", cause="output-only")), rules(entry("a"))))) == []
