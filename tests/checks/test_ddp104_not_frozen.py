"""DDP104 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.checks.base import Case
from ddplint.checks.ddp104_not_frozen import check
from tests.made import analysis, entry, rules, unused, used


def test_only_those_that_still_require_grad_are_named() -> None:
    made = analysis(unused("a.w"), unused("a.b", trainable=False), used("b.w"))
    (finding,) = check(Case(made, rules(entry("a", action="freeze", at=21))))
    assert finding.parameters == ("a.w",)
    assert finding.location is not None
    assert finding.location.line == 21
    assert 'model.get_parameter("a.w").requires_grad_(False)' in finding.fix


@pytest.mark.parametrize("action", ["allow", "strip"])
def test_other_actions_do_not_ask_for_it(action: str) -> None:
    assert list(check(Case(analysis(unused("a.w")), rules(entry("a", action=action))))) == []


def test_a_parameter_that_the_loss_uses_is_not_to_be_frozen() -> None:
    made = analysis(used("a.w"), unused("a.b", usage="sometimes"))
    assert list(check(Case(made, rules(entry("a", action="freeze"))))) == []


def test_sometimes_used_parameters_can_be_meant_to_be_frozen() -> None:
    made = analysis(unused("a.w", usage="sometimes"))
    (finding,) = check(Case(made, rules(entry("a", action="freeze", when="sometimes"))))
    assert finding.parameters == ("a.w",)
