"""The rows that both text reports show on request."""

from __future__ import annotations

from ddplint.checks.registry import run
from ddplint.report import Report, Result, View
from ddplint.report.details import by_cause, by_code, every_parameter, paths
from ddplint.report.text import render
from tests.made import analysis, entry, frozen, rehearsal, rules, unused, used

PARAMETERS = (
    used("a.w", numel=60),
    unused("b.w", usage="sometimes", cause="conditional", evidence="possible"),
    unused("c.w", cause="discarded", numel=20),
    unused("d.w", trainable=False),
    frozen("e.w"),
)


def result() -> Result:
    made = Result(analysis(*PARAMETERS), rules=rules(entry("c")))
    return Result(made.analysis, run(made.case), made.rules)


def test_parts_add_up_to_the_model_and_shares_to_the_trainable_weights() -> None:
    assert by_cause(result()) == [
        ("used on every path", "1", "60", "240 B", "67 %"),
        ("used on some paths", "1", "10", "40 B", "11 %"),
        ("never: discarded", "1", "20", "80 B", "22 %"),
        ("frozen", "2", "20", "80 B", ""),
    ]


def test_a_code_counts_its_findings_and_each_parameter_once() -> None:
    made = result()
    twice = Result(made.analysis, (*made.findings, *made.findings), made.rules)
    (row,) = by_code(twice)
    assert row == ("DDP203 conditional (error)", "2", "1")


def test_every_parameter_says_what_becomes_of_it() -> None:
    rows = every_parameter(Report((result(),), folder="/work/project"), result())
    assert [row[:3] for row in rows] == [
        ("a.w", "[60] float32", "always used"),
        ("b.w", "[10] float32", "sometimes used (conditional, possible)"),
        ("c.w", "[20] float32", "never used (discarded, observed)"),
        ("d.w", "[10] float32", "frozen, never used (uncalled, observed)"),
        ("e.w", "[10] float32", "frozen"),
    ]
    assert [row[4] for row in rows] == ["", "", "documented [allow]", "", ""]
    assert rows[1][3] == "model.py:7"


def test_paths_are_those_that_were_rehearsed() -> None:
    bare = Result(analysis(used("a.w")))
    assert paths(Report((bare,)), bare) == []
    later = {"inputs": 1, "seed": 0, "rank": 0, "after": 2, "answers": []}
    told = Result(analysis(used("a.w"), rehearsal=rehearsal(plans=[later])))
    assert paths(Report((told,)), told) == ["rank 0, inputs 2, seed 0, after 2 steps; nothing forced"]


def test_plain_text_has_them_in_columns() -> None:
    seen = render(Report((result(),), folder="/work/project"), 120, View(verbose=True, statistics=True)).splitlines()
    assert "never: discarded             1       20   80 B   22 %" in seen
    assert "  c.w  [20] float32  never used (discarded, observed)         model.py:7  documented [allow]" in seen
    assert not any("fix:" in row for row in seen)
