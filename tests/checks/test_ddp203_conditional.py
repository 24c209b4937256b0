"""DDP203 on analyses made by hand."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from ddplint.analysis import Parameter
from ddplint.checks.base import Case
from ddplint.checks.ddp203_conditional import check
from tests.made import analysis, entry, line, rehearsal, rules, unused, used


def branch(name: str, at: int, **more: Any) -> Parameter:
    """A parameter that is used on some paths; line ``at`` decides."""
    location = line(at, "if x.sum() > 0:")
    fields = {"location": location, "why": "unused when false", "decided_by": "value"}
    return unused(name, at, usage="sometimes", cause="conditional", **{**fields, **more})


def test_one_finding_for_each_place_that_decides() -> None:
    made = analysis(branch("a.w", 5), branch("b.w", 6), branch("a.b", 5), unused("c.w", 5), used("d.w"))
    first, second = check(Case(made))
    assert (first.parameters, second.parameters) == (("a.w", "a.b"), ("b.w",))
    assert first.message == (
        "model.py:5 `if x.sum() > 0`: when false, 2 parameters of `a` (20 weights, 40 % of the trainable ones) are unused "
        "(observed)"
    )
    assert "when false, 1 parameter of `b` (10 weights, 20 % of the trainable ones) is unused" in second.message
    (parsed,) = tomllib.loads(first.fix.partition("\n")[2])["unused"]
    assert (parsed["params"], parsed["when"]) == (["a.**"], "sometimes")


def test_true_and_false_are_of_the_value_not_of_the_condition() -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5, location=line(5, "if not x.sum() > 0:")), used("d.w"))))
    assert "`if not x.sum() > 0`: when the value that is read is false, 1 parameter of `a`" in finding.message


def test_each_answer_has_what_it_leaves_unused() -> None:
    made = [branch(f"experts.{n}.{part}", 5, why=f"unused when the value is {n // 2}") for n in range(4) for part in "wb"]
    (finding,) = check(Case(analysis(*made, used("d.w"))))
    assert finding.message == (
        "model.py:5 `if x.sum() > 0`: 8 parameters of `experts` (80 weights, 89 % of the trainable ones) are used on some "
        "paths only: when the value is 0, 4 parameters of `experts.{0,1}` are unused; when the value is 1, 4 parameters of "
        "`experts.{2,3}` are unused (observed)"
    )


def test_of_many_answers_a_few_are_told() -> None:
    made = [branch(f"experts.{n}.w", 5, why=f"unused when the value is {n}") for n in range(16)]
    (finding,) = check(Case(analysis(*made, used("d.w"))))
    assert finding.message.count("when the value") == 3
    assert finding.message.endswith("`experts.2` is unused; and 13 answers more (observed)")


@pytest.mark.parametrize(
    ("by", "why"),
    [("inputs", "unused with example inputs 2, used with others"), ("seed", "unused with seed 1, used with another")],
)
def test_where_no_line_decides_the_place_is_that_of_the_parameters(by: str, why: str) -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5, decided_by=by, why=why))))
    assert finding.message.endswith(f"is {why} (observed); created at model.py:5")
    (finding,) = check(Case(analysis(branch("a.w", 5, location=None, decided_by=by, why=""))))
    assert finding.message.endswith("is used on some paths only (observed)")


def test_evidence_is_said() -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5, evidence="possible"))))
    assert finding.message.endswith("(possible: seen under forced answers)")


def test_what_the_rank_decides_is_left_to_its_own_rule() -> None:
    assert list(check(Case(analysis(branch("a.w", 5, decided_by="rank"))))) == []


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("ok", "or wrap with find_unused_parameters=True (rehearsed: ok) and document it"),
        ("hang", "with find_unused_parameters=True DDP fails as well (hang); if that is settled, document it"),
    ],
)
def test_the_flag_is_proposed_if_ddp_runs_with_it(on: str, said: str) -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5), rehearsal=rehearsal("hang", on, "hang"))))
    assert said in finding.fix


def test_documented_as_sometimes_is_no_finding() -> None:
    assert list(check(Case(analysis(branch("a.w", 5)), rules(entry("a", when="sometimes"))))) == []


def test_documented_as_never_used_is_one_that_says_how_to_put_the_entry_right() -> None:
    (finding,) = check(Case(analysis(branch("a.w", 5)), rules(entry("a", at=31))))
    assert 'write when = "sometimes" on the entry at hybrid.toml:31' in finding.fix
