"""DDP102 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.analysis import Location
from ddplint.checks.base import Case
from ddplint.checks.ddp102_stale_rule import check
from tests.made import analysis, entry, frozen, rules, unused, used


def test_the_place_is_the_entry() -> None:
    (finding,) = check(Case(analysis(used("a.w"), unused("b.w")), rules(entry("a", at=30), entry("b", at=40))))
    assert finding.location == Location("/work/project/rules/hybrid.toml", 30)
    assert finding.parameters == ("a.w",)
    assert "used on every path, but the entry for `a` says never used" in finding.message


def test_a_frozen_parameter_that_the_loss_needs_is_stale() -> None:
    (finding,) = check(Case(analysis(used("a.w", trainable=False)), rules(entry("a", action="freeze"))))
    assert "the model has frozen it" in finding.message
    assert "let it require grad again" in finding.fix


@pytest.mark.parametrize("action", ["allow", "freeze", "strip"])
@pytest.mark.parametrize(
    ("usage", "when", "stale"),
    [
        ("always", "never", True),
        ("sometimes", "never", True),
        ("never", "never", False),
        ("always", "sometimes", True),
        ("sometimes", "sometimes", False),
        ("never", "sometimes", False),
    ],
)
def test_what_contradicts_an_entry(usage: str, when: str, stale: bool, action: str) -> None:
    case = Case(analysis(unused("a.w", usage=usage)), rules(entry("a", when=when, action=action)))
    assert [finding.parameters for finding in check(case)] == ([("a.w",)] if stale else [])


def test_used_on_every_path_and_on_some_are_two_findings() -> None:
    made = analysis(used("a.w"), unused("a.b", usage="sometimes"), unused("a.c"), frozen("a.d"))
    first, second = check(Case(made, rules(entry("a"))))
    assert (first.parameters, second.parameters) == (("a.w",), ("a.b",))
    assert 'when = "sometimes"' in second.fix
    assert 'when = "sometimes"' not in first.fix


def test_an_alias_that_an_entry_covers_counts() -> None:
    tied = used("embed.weight", aliases=("head.weight",))
    (finding,) = check(Case(analysis(tied), rules(entry("head"))))
    assert finding.parameters == ("embed.weight",)
