"""The text report: what a person reads."""

from __future__ import annotations

import time
import tomllib

import pytest

from ddplint.analysis import Disagreement
from ddplint.checks.registry import run
from ddplint.report import Report, Result
from ddplint.report.text import render
from ddplint.rules import RuleFile
from tests.made import SETTINGS, analysis, entry, frozen, line, rehearsal, rules, trace, unused, used


def last_of(text: str) -> str:
    """The sentence that ``text`` ends in, on one line."""
    return " ".join(text.rpartition("autograd agrees\n")[2].split())


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
        "Freeze these 2 (20 % of the weights), then DDP should run with find_unused_parameters=False (not rehearsed).",
    ]


def test_nothing_unused() -> None:
    text = rendered(checked(used("a.w"), frozen("b.w")))
    assert text.startswith("model.py:build: ok; every trainable parameter is used on every path\n")
    assert text.endswith("Nothing to do: DDP should run with find_unused_parameters=False (not rehearsed).")
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
    assert last_of(text).startswith(
        "Freeze this one (33 % of the weights), and wrap with find_unused_parameters=True, for the one"
    )
    assert "`b` (33 %): conditional, used sometimes; a reason" in text


def test_no_advice_on_an_answer_that_is_not_sure() -> None:
    differing = [Disagreement("a.w", graph=False, autograd=True, backward=True)]
    text = rendered(checked(used("a.w"), disagreements=differing))
    assert "autograd differs on 1 parameter\nSettle the disagreement (DDP902) first" in text
    text = rendered(checked(used("a.w"), complete=False))
    assert text.startswith("model.py:build: 1 warning; every trainable parameter is used on every path; not every path")
    assert text.endswith("Trace more paths (--paths): not every path was traced, and nothing above is sure before.")


def last(result: Result) -> str:
    """The sentence that the report ends in."""
    return last_of(rendered(result))


def test_several_are_these() -> None:
    three = checked(
        used("a.w", numel=70), *(unused(f"b.{n}", numel=10) for n in "wbc"), rehearsal=rehearsal(FAILS, frozen="ok")
    )
    assert last(three).startswith("Freeze these 3 (30 % of the weights), then DDP runs with")


NEVER = (used("a.w", numel=71), unused("b.w", numel=29))
SOME = (used("a.w", numel=71), unused("b.w", numel=29, usage="sometimes", cause="conditional"))
BOTH = (*SOME, unused("c.w", numel=100))
HIDDEN = (used("a.w", checkpoint=line(5)),)
FAILS = "reduction_error"


def test_what_ddp_did_is_a_line_under_the_verdict() -> None:
    first, second, third, *_ = rendered(checked(*NEVER, rehearsal=rehearsal(FAILS))).splitlines()
    assert first.startswith("model.py:build: 1 error; ")
    assert second == (
        "  DDP (rehearsed, 3 iterations, 2 ranks): find_unused_parameters=False reduction_error; =True ok; static_graph ok"
    )
    assert third == ""
    elsewhere = rehearsal(device="cpu", iterations=1, ranks=1)
    assert "  DDP (rehearsed on cpu, 1 iteration, 1 rank): " in rendered(checked(used("a.w"), rehearsal=elsewhere))


@pytest.mark.parametrize(
    ("parameters", "outcomes", "setting", "explained"),
    [
        (NEVER, (FAILS, "ok", "ok"), 0, True),
        (SOME, (FAILS, "ok", FAILS), 0, True),
        (SOME, (FAILS, "ok", FAILS), 2, True),
        (HIDDEN, ("ok", "ready_twice", "ok"), 1, True),
        ((used("a.w", bypass=line(5)),), ("ok", "ready_twice", "ok"), 1, True),
        ((unused("a.w", cause="output-only"),), (FAILS, FAILS, FAILS), 1, True),
        ((unused("a.w", cause="output-only"),), (FAILS, FAILS, FAILS), 2, True),
        (NEVER, (FAILS, FAILS, FAILS), 1, False),
        (NEVER, (FAILS, "ok", FAILS), 2, False),
        (SOME, ("hang", "hang", "hang"), 0, False),
        ((used("a.w"),), (FAILS, "ok", "ok"), 0, False),
        ((used("a.w"),), ("ok", "ready_twice", "ok"), 1, False),
        ((used("a.w"),), ("ok", "ok", "ok"), 1, False),
    ],
)
def test_a_failure_that_the_sets_do_not_explain_has_its_details(
    parameters: tuple[object, ...], outcomes: tuple[str, str, str], setting: int, explained: bool
) -> None:
    ran = rehearsal(*outcomes, details={SETTINGS[setting]: "rank 0 waits in all_reduce"})
    shown = f"{SETTINGS[setting]}: rank 0 waits in all_reduce" in rendered(checked(*parameters, rehearsal=ran))
    assert shown is not explained


@pytest.mark.parametrize(
    ("parameters", "outcomes", "said"),
    [
        ((used("a.w"),), {}, "Nothing to do: DDP runs with find_unused_parameters=False (rehearsed, 3 iterations)."),
        (
            NEVER,
            {"off": FAILS, "frozen": "ok"},
            "Freeze this one (29 % of the weights), then DDP runs with find_unused_parameters=False (rehearsed, 3 "
            "iterations).",
        ),
        (
            NEVER,
            {"off": FAILS},
            "Freeze this one (29 % of the weights), then DDP should run with find_unused_parameters=False (not rehearsed).",
        ),
        (
            NEVER,
            {"off": FAILS, "frozen": FAILS},
            "Wrap with find_unused_parameters=True (rehearsed, 3 iterations). What no path uses can be frozen first: one "
            "(29 % of the weights).",
        ),
        (
            NEVER,
            {},
            "DDP runs with find_unused_parameters=False (rehearsed, 3 iterations); freeze this one (29 % of the weights) "
            "all the same: no gradient ever trains it.",
        ),
        (
            SOME,
            {"off": FAILS, "static": FAILS},
            "Wrap with find_unused_parameters=True (rehearsed, 3 iterations), for the one that only some paths use.",
        ),
        (
            BOTH,
            {"off": FAILS, "static": FAILS, "frozen": FAILS},
            "Wrap with find_unused_parameters=True (rehearsed, 3 iterations), for the one that only some paths use. What "
            "no path uses can be frozen first: one (50 % of the weights).",
        ),
        (
            SOME,
            {"off": "hang", "on": "hang", "static": "hang"},
            "Use the one that only some paths use on all of them: DDP fails with every setting (rehearsed, 3 iterations).",
        ),
        (
            NEVER,
            {"off": FAILS, "on": FAILS, "static": FAILS, "frozen": FAILS},
            "DDP fails with every setting (rehearsed, 3 iterations), also with this one (29 % of the weights) frozen: see "
            "above for what each one runs into.",
        ),
        (
            HIDDEN,
            {"off": "ready_twice", "on": "ready_twice"},
            "Wrap with static_graph=True (rehearsed, 3 iterations).",
        ),
        (
            HIDDEN,
            {"on": "ready_twice"},
            "Keep the flag off: DDP runs with find_unused_parameters=False (rehearsed, 3 iterations) and fails with "
            "find_unused_parameters=True (ready_twice).",
        ),
    ],
)
def test_the_last_sentence_says_what_to_do_and_how_that_is_known(
    parameters: tuple[object, ...], outcomes: dict[str, str], said: str
) -> None:
    assert last(checked(*parameters, rehearsal=rehearsal(**outcomes))) == said


def test_a_flag_that_is_declared_on_and_not_needed_is_to_be_turned_off() -> None:
    result = checked(used("a.w"), rehearsal=rehearsal(), rules=rules(flag=True))
    assert last(result) == "Turn the flag off: DDP runs with find_unused_parameters=False (rehearsed, 3 iterations)."


def test_a_model_that_runs_may_have_something_to_settle() -> None:
    result = checked(used("a.w"), rehearsal=rehearsal(), rules=rules(entry("gone")))
    assert last(result).endswith("(rehearsed, 3 iterations); settle what is reported above.")


def test_nothing_is_said_to_be_rehearsed_that_was_not() -> None:
    for parameters in (NEVER, SOME, BOTH, (used("a.w"),)):
        assert "(not rehearsed)" in last(checked(*parameters))
        assert "(rehearsed" not in rendered(checked(*parameters))


def test_forced_and_infeasible_paths_are_told_apart() -> None:
    def traced(**more: object) -> str:
        return " ".join(rendered(checked(used("a.w"), trace=trace(**more))).split())

    assert "traced on meta: 1 path, 1 rank" in traced()
    assert "9 paths (3 observed, 6 forced, 2 more infeasible), 2 ranks" in traced(paths=9, forced=6, infeasible=2, ranks=2)
    assert "9 paths (2 more infeasible)" in traced(paths=9, infeasible=2)
    assert "traced on cpu (--device cpu): 1 path" in traced(device="cpu", device_reason="--device cpu")


def test_a_source_line_is_shown_once() -> None:
    place = line(88, "if x.sum() > 0:")
    branch = unused("b.w", usage="sometimes", cause="conditional", location=place, why="unused when false")
    text = " ".join(rendered(checked(used("a.w"), branch)).split())
    assert "model.py:88 `if x.sum() > 0`: when false, 1 parameter of `b`" in text
    assert text.count("if x.sum() > 0") == 1


def test_a_large_model_with_many_findings_takes_no_longer_than_it_is_large() -> None:
    parameters = [
        unused(f"model.layers.{n}.block{group}.{part}.weight", 10 + group, usage="sometimes" if group % 2 else "never")
        for group in range(100)
        for n in range(50)
        for part in "qk"
    ]
    entries = [entry(f"model.layers.*.block{group}") for group in range(40, 60)]
    start = time.process_time()
    text = rendered(checked(*parameters, rules=rules(*entries)))
    assert time.process_time() - start < 2.5  # half a second where the machine is free
    assert text.count("DDP101") == 40
