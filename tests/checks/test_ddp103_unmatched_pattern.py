"""DDP103 on analyses made by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ddplint.checks.base import Case
from ddplint.checks.ddp103_unmatched_pattern import check
from ddplint.rules import UnusedRule
from tests.made import analysis, entry, frozen, rules, unused, used


def found(*entries: UnusedRule) -> list[tuple[str, str]]:
    """(message, fix) of the findings about these entries."""
    made = analysis(used("encoder.layers.0.w"), unused("vocab_module.av.w", aliases=("tied.w",)), frozen("readout.zero"))
    return [(finding.message, finding.fix) for finding in check(Case(made, rules(*entries)))]


def test_only_the_patterns_that_name_nothing_are_listed() -> None:
    ((message, _),) = found(entry("vocab_module.**", "gone", "lost.*"))
    assert message == "`gone`, `lost.*` name no parameter of the model"


@pytest.mark.parametrize("pattern", ["vocab_module", "tied", "readout.*", "encoder.**.w"])
def test_first_names_aliases_and_frozen_parameters_count(pattern: str) -> None:
    assert found(entry(pattern)) == []


@pytest.mark.parametrize("more", [{"optional": True}, {"action": "strip"}])
def test_optional_and_stripped_may_be_absent(more: dict[str, Any]) -> None:
    assert found(entry("gone", **more)) == []


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("vocab_modul.*", "`vocab_module.*`"),
        ("vocab_module.aw.*", "`vocab_module.av.*`"),
        ("encoder.layer.*.w", "`encoder.layers.*.w`"),
    ],
)
def test_a_near_miss_is_named(pattern: str, near: str) -> None:
    ((_, fix),) = found(entry(pattern))
    assert fix.startswith(f"did you mean {near}? else delete it")


@pytest.mark.parametrize("pattern", ["pooler.*", "**.gate", "vocab_module.av.scale"])
def test_no_guess_where_nothing_is_near(pattern: str) -> None:
    ((_, fix),) = found(entry(pattern))
    assert fix.startswith("delete it")
