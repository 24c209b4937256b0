"""DDP106 on analyses made by hand."""

from __future__ import annotations

import pytest

from ddplint.checks.base import Case
from ddplint.checks.ddp106_missing_reason import check
from tests.made import analysis, entry, rules, unused, used


def found(reason: str) -> list[str]:
    made = analysis(used("a.w"), unused("b.w"))
    return [finding.message for finding in check(Case(made, rules(entry("b", reason=reason))))]


@pytest.mark.parametrize("reason", ["TODO", "todo", " Todo. ", "todo: ...", "FIXME", "tbd", "XXX", "...", "?", "-"])
def test_what_only_stands_for_a_reason(reason: str) -> None:
    assert found(reason) == [f"the entry for `b` has no reason yet, only `{reason}`"]


@pytest.mark.parametrize("reason", ["todo list head, for pretraining", "x", "7", "为了预训练"])
def test_what_is_one(reason: str) -> None:
    assert found(reason) == []


def test_the_place_is_the_entry() -> None:
    made = analysis(used("a.w"), unused("b.w"), unused("c.w"))
    (finding,) = check(Case(made, rules(entry("b", at=30, reason="TODO"), entry("c", at=40))))
    assert finding.location is not None
    assert (finding.location.line, finding.parameters) == (30, ("b.w",))
