"""The text report: what a person reads."""

from __future__ import annotations

import tomllib

import pytest

from ddplint.analysis import Disagreement
from ddplint.checks.registry import run
from ddplint.report import Report, Result
from ddplint.report.text import render
from ddplint.rules import RuleFile
from tests.made import analysis, entry, frozen, line, rules, unused, used


def rendered(*results: Result, width: int = 120) -> str:
    return render(Report(results, folder="/work/project"), width)


def checked(*parameters: object, rules: RuleFile | None = None, **more: object) -> Result:
    result = Result(analysis(*parameters, **more), rules=rules)  # type: ignore[arg-type]
    return Result(result.analysis, run(result.case), result.rules)


HEADS = [unused(f"vocab.{name}.w", 30 + n, numel=100) for n, name in enumerate(("atom", "bond"))]


def clean() -> Result:
    return checked(used("encoder.w", numel=800), *HEADS, rules=rules(entry("vocab")))


def test_a_clean_result_says_so_first_and_lists_what_is_documented() -> None:
    assert rendered(clean()).splitlines() == [
        "hybrid: ok; 2 parameters unused on every path, all documented",
        "",
        "documented in rules/hybrid.toml (shares are of the trainable weights):",
        "  2 parameters of `vocab` (20 %): uncalled; a reason [allow]",
        "",
        "3 trainable parameters: 1 used on every path, 0 on some, 2 on none; 0 frozen",
        "dead weights: 800 B of 3.9 KiB that are trainable (20 %)",
        "traced on meta: 1 path, 1 rank, 12 operations, 0.1 s; autograd agrees",
        "next: freeze the 2 that no path uses (20 % of the trainable weights) before the DDP wrap; DDP then manages used",
        "  parameters only and needs no find_unused_parameters",
    ]


def test_nothing_unused() -> None:
    text = rendered(checked(used("a.w"), frozen("b.w")))
    assert text.startswith("model.py:build: ok; every trainable parameter is used on every path\n")
    assert text.endswith("next: nothing to do, DDP needs no find_unused_parameters for this model")
    assert "documented" not in text


def test_a_finding_has_code_place_message_source_and_fix() -> None:
    detached = unused("gate.w", 88, cause="discarded", location=line(88, "g = self.gate(x)"), why="it is dropped")
    text = rendered(checked(used("a.w"), detached, rules=rules()))
    assert text.splitlines()[:6] == [
        "hybrid: 1 error; 1 parameter unused on every path, 1 undocumented",
        "",
        "DDP101 undocumented-unused (error) model.py:88 in Net.forward",
        "  1 parameter of `gate` (10 weights, 50 % of the trainable ones) is never used: discarded at "
        "model.py:88: it is dropped",
        "    > g = self.gate(x)",
        "  fix: use it, do not build it, freeze it before the DDP wrap: "
        '`model.get_submodule("gate").requires_grad_(False)`, or',
    ]


@pytest.mark.parametrize("width", [1, 40, 60, 80, 120, 500])
def test_lines_are_wrapped_at_words_and_never_wider_than_they_have_to_be(width: int) -> None:
    text = rendered(checked(used("a.w"), unused("b.w"), rules=rules(entry("gone"))), clean(), width=width)
    limit = min(max(width, 40), 120)
    wide = [row for row in text.splitlines() if len(row) > limit]
    assert all(len(row.split()) == 1 or row.split()[1] == "=" for row in wide)
    assert " ".join(text.split()) == " ".join(
        rendered(checked(used("a.w"), unused("b.w"), rules=rules(entry("gone"))), clean(), width=120).split()
    )


def test_the_entry_to_paste_stays_whole_at_any_width() -> None:
    result = checked(used("a.w"), unused("a_module_with_a_long_name.w", why="x"), used("a_module_with_a_long_name.b"))
    text = rendered(result, width=40)
    pasted = text.partition("[[unused]]")[2].partition("\n\n")[0]
    assert tomllib.loads(f"[[unused]]{pasted}")["unused"][0]["params"] == ["a_module_with_a_long_name.w"]


def test_several_results_have_their_verdicts_together_at_the_top() -> None:
    broken = checked(used("a.w"), unused("b.w", 9), rules=rules())
    rows = rendered(clean(), broken).splitlines()
    assert rows[0].startswith("hybrid: ok")
    assert rows[1].startswith("hybrid: 1 error")
    assert rows.count("== hybrid") == 2


def test_frozen_documented_parameters_are_listed_as_such() -> None:
    cold, entries = unused("vocab.w", trainable=False), rules(entry("vocab", action="freeze"), entry("mask"))
    text = rendered(checked(used("a.w"), cold, rules=rules(*entries.unused[:1])))
    assert "  1 parameter of `vocab` (frozen): uncalled; a reason [freeze]" in text
    assert "1 frozen\n" in text
    mixed = (unused("mask.w"), unused("mask.b", trainable=False))
    text = rendered(checked(used("a.w"), cold, *mixed, rules=entries))
    assert "  2 parameters of `mask` (50 %, 1 of them frozen): uncalled; a reason [allow]" in text


def test_parameters_used_on_some_paths_need_the_flag() -> None:
    branch = unused("b.w", usage="sometimes", cause="conditional")
    text = rendered(checked(used("a.w"), branch, unused("c.w"), rules=rules(entry("c"), entry("b", when="sometimes"))))
    assert text.startswith("hybrid: ok; 1 parameter unused on every path, 1 parameter used on some paths only, all")
    assert "the 1 that only some paths use need find_unused_parameters=True" in " ".join(text.split())
    assert "`b` (33 %): conditional, used sometimes; a reason" in text


def test_no_advice_on_an_answer_that_is_not_sure() -> None:
    differing = [Disagreement("a.w", graph=False, autograd=True, backward=True)]
    text = rendered(checked(used("a.w"), disagreements=differing))
    assert "autograd differs on 1 parameter\nnext: settle the disagreement (DDP902) first" in text
    text = rendered(checked(used("a.w"), complete=False))
    assert text.startswith("model.py:build: ok; every trainable parameter is used on every path; not every path")
    assert "next: trace more paths (--paths)" in text
