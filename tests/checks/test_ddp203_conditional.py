"""DDP203 on analyses made by hand."""

from __future__ import annotations

import tomllib
from typing import Any

from ddplint.analysis import Parameter
from ddplint.checks.base import Case
from ddplint.checks.ddp203_conditional import check
from tests.made import analysis, entry, line, rules, unused, used


def branch(name: str, at: int, **more: Any) -> Parameter:
    """A parameter that is used on some paths; line ``at`` decides."""
    location = line(at, "if x.sum() > 0:")
    return unused(name, at, usage="sometimes", cause="conditional", **{"location": location, **more})


def test_one_finding_for_each_place_that_decides() -> None:
    made = analysis(
        branch("a.w", 5), branch("b.w", 6, why="unused when false"), branch("a.b", 5), unused("c.w", 5), used("d.w")
    )
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("a.w", "a.b"), ("b.w",))
    assert "are used on some paths only, decided at model.py:5 `if x.sum() > 0:` (observed)" in first.message
    assert "(unused when false; observed)" in second.message
    (parsed,) = tomllib.loads(first.fix.partition("\n")[2])["unused"]
    assert (parsed["params"], parsed["when"]) == (["a.**"], "sometimes")


def test_evidence_is_said() -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5, evidence="possible"))))
    assert finding.message.endswith("possible: seen under forced answers)")


def test_documented_as_sometimes_is_no_finding() -> None:
    assert list(check(Case(analysis(branch("a.w", 5)), rules(entry("a", when="sometimes"))))) == []


def test_documented_as_never_used_is_one_that_says_how_to_put_the_entry_right() -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5)), rules(entry("a", at=31))))
    assert 'write when = "sometimes" on the entry at hybrid.toml:31' in finding.fix
