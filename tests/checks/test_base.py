"""What a case says about entries and parameters."""

from __future__ import annotations

import pytest

from ddplint.checks.base import Case, by_place, covers
from tests.made import analysis, entry, frozen, rules, unused, used


def test_parameters_of_one_place_and_cause_are_one_group_in_the_models_order() -> None:
    parameters = [
        unused("b.weight", 7),
        unused("a.weight", 9),
        unused("b.bias", 7),
        unused("c.weight", 7, cause="severed"),
    ]
    groups = [[p.name for p in group] for group in by_place(parameters)]
    assert groups == [["b.weight", "b.bias"], ["a.weight"], ["c.weight"]]


def test_parameters_without_a_place_are_apart() -> None:
    parameters = [unused("a", place="", location=None), unused("b", place="", location=None)]
    assert len(by_place(parameters)) == 2


def test_a_pattern_covers_by_first_name_and_by_alias() -> None:
    tied = unused("embed.weight", aliases=("head.weight",))
    assert covers(entry("head.*"), tied)
    assert covers(entry("other", "embed"), tied)
    assert not covers(entry("head.bias"), tied)


def test_an_entry_covers_frozen_parameters_too() -> None:
    case = Case(analysis(used("a.w"), frozen("b.w"), unused("c.w")), rules(entry("b", "c")))
    assert [p.name for p in case.covered(case.entries[0])] == ["b.w", "c.w"]


@pytest.mark.parametrize(
    ("usage", "when", "complete", "documented"),
    [
        ("never", "never", True, True),
        ("sometimes", "never", True, False),
        ("always", "never", True, False),
        ("never", "sometimes", True, False),
        ("sometimes", "sometimes", True, True),
        ("always", "sometimes", True, False),
        ("never", "sometimes", False, True),
        ("always", "sometimes", False, False),
        ("sometimes", "never", False, False),
    ],
)
def test_what_an_entry_documents(usage: str, when: str, complete: bool, documented: bool) -> None:
    case = Case(analysis(unused("a.w", usage=usage), complete=complete), rules(entry("a", when=when)))
    assert (case.documented_by(case.analysis.parameters[0]) is not None) is documented


def test_the_first_entry_that_fits_documents() -> None:
    wide, narrow = entry("**", when="sometimes", at=3), entry("a.w", at=9)
    case = Case(analysis(unused("a.w"), unused("b.w", usage="sometimes")), rules(wide, narrow))
    assert [case.documented_by(p) for p in case.analysis.parameters] == [narrow, wide]
    assert case.undocumented("never") == ()
    assert case.undocumented("sometimes") == ()


def test_without_rules_nothing_is_documented() -> None:
    case = Case(analysis(unused("a.w"), used("b.w"), frozen("c.w")))
    assert case.entries == ()
    assert [p.name for p in case.trainable] == ["a.w", "b.w"]
    assert [p.name for p in case.undocumented("never")] == ["a.w"]
