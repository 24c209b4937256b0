"""What a case says about entries and parameters."""

from __future__ import annotations

import pytest

from ddplint.callsites.model import State
from ddplint.checks.base import OFF, ON, STATIC, Case, by_place, covers, grouped, unseen_severity
from tests.made import SETTINGS, analysis, entry, frozen, rehearsal, rules, unused, used, wrap


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


def test_an_alias_that_an_entry_covers_counts_once() -> None:
    tied, first, second = unused("a.w", aliases=("b.w",)), entry("b", at=3), entry("a", "b", at=9)
    case = Case(analysis(tied, used("c.w")), rules(first, second))
    assert case.covered(first) == case.covered(second) == (tied,)
    assert case.covering(tied) == first
    assert case.covering(case.analysis.parameters[1]) is None


def test_parameters_are_found_by_first_name() -> None:
    case = Case(analysis(unused("a.w", aliases=("b.w",)), used("c.w")))
    assert {name: p.usage for name, p in case.named.items()} == {"a.w": "never", "c.w": "always"}


def test_groups_are_in_order() -> None:
    assert grouped([3, 1, 5, 2], lambda number: number % 2) == [(3, 1, 5), (2,)]


def test_the_settings_are_the_rehearsals() -> None:
    assert (OFF, ON, STATIC) == SETTINGS
    case = Case(analysis(rehearsal=rehearsal("hang", "ok", "reduction_error")))
    assert [case.outcome(setting) for setting in (OFF, ON, STATIC, None)] == ["hang", "ok", "reduction_error", None]
    assert Case(analysis()).outcome(OFF) is None


@pytest.mark.parametrize(
    ("flag", "static", "declared", "severity", "failing"),
    [
        (None, None, None, "warning", "error"),
        (False, None, OFF, "info", "error"),
        (True, None, ON, "error", "error"),
        (True, False, ON, "error", "error"),
        (True, True, STATIC, "info", "info"),
        (None, True, STATIC, "info", "info"),
        (None, False, None, "warning", "error"),
    ],
)
def test_what_ddp_does_not_see_is_as_bad_as_the_declared_wrap_makes_it(
    flag: bool | None, static: bool | None, declared: str | None, severity: str, failing: str
) -> None:
    declaring = rules(flag=flag, static=static)
    assert Case(analysis(), declaring).declared == declared
    assert unseen_severity(Case(analysis(), declaring)) == severity
    assert unseen_severity(Case(analysis(rehearsal=rehearsal("ok", "ready_twice")), declaring)) == severity
    both = rehearsal("ready_twice", "ready_twice", "ok")
    assert unseen_severity(Case(analysis(rehearsal=both), declaring)) == failing
    assert unseen_severity(Case(analysis(rehearsal=rehearsal(static="ready_twice")), rules(static=True))) == "error"


@pytest.mark.parametrize(
    ("declared", "found", "severity"),
    [
        (None, ["on"], "error"),
        (None, ["off", "on"], "error"),
        (None, ["off", "off"], "info"),
        (None, ["off", "conditional"], "warning"),
        (None, ["unknown"], "warning"),
        (False, ["on"], "error"),
        (True, ["off"], "error"),
        (False, ["off"], "info"),
    ],
)
def test_the_wraps_in_the_source_count_beside_the_declared_one(
    declared: bool | None, found: list[State], severity: str
) -> None:
    wraps = tuple(wrap(flag, line=number) for number, flag in enumerate(found, 1))
    assert unseen_severity(Case(analysis(), rules(flag=declared), wraps)) == severity


def test_a_static_graph_in_the_source_does_not_search() -> None:
    known = Case(analysis(), rules(), (wrap("on", static="on"), wrap("on", static="unknown"), wrap("off"))).known
    assert [one.setting for one in known] == [STATIC, None, OFF]


def test_what_is_declared_is_named_once() -> None:
    case = Case(analysis(), rules(flag=True), (wrap("on"), wrap("off", line=8)))
    assert [(one.setting, one.location.line if one.location else None) for one in case.known] == [(ON, 4), (OFF, 8)]
    other = Case(analysis(), rules(flag=True), (wrap("off"),))
    assert [(one.setting, one.wrap is None) for one in other.known] == [(ON, True), (OFF, False)]


def test_without_rules_no_wrap_is_declared() -> None:
    assert Case(analysis()).declared is None
    assert unseen_severity(Case(analysis())) == "warning"
