"""DDP208 on analyses made by hand."""

from __future__ import annotations

from ddplint.checks.base import Case
from ddplint.checks.ddp208_kept_alive import check
from tests.made import analysis, line, used

FIRST, SECOND = line(5, "return y + 0 * self.spare(x).sum()"), line(9)


def test_one_finding_for_each_multiplication_by_zero() -> None:
    made = analysis(used("a.w", zeroed=FIRST), used("b.w", zeroed=SECOND), used("a.b", zeroed=FIRST), used("c.w"))
    first, second = check(Case(made))
    assert (first.parameters, first.location, first.severity) == (("a.w", "a.b"), FIRST, "info")
    assert (second.parameters, second.location) == (("b.w",), SECOND)
    assert first.message == (
        "model.py:5 `return y + 0 * self.spare(x).sum()`: 2 parameters of `a` (20 weights, 50 % of the trainable ones) "
        "reach the loss only multiplied by zero: DDP is content, their gradients are zero, and weight decay still moves them"
    )
    assert 'model.get_submodule("a").requires_grad_(False)' in first.fix


def test_used_or_frozen_ones_are_left_alone() -> None:
    assert list(check(Case(analysis(used("a.w"), used("b.w", zeroed=FIRST, trainable=False))))) == []
