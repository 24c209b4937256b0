"""Markdown for a pull request: order, folding, length, and that nothing from the target is markup."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ddplint.checks import registry
from ddplint.checks.base import Finding
from ddplint.report import Report, Result, Unchecked, markdown, render
from tests.made import analysis, entry, line, rehearsal, rules, unused, used


def checked(*parameters: Any, rule_file: Any = None, **more: Any) -> Result:
    result = Result(analysis(*parameters, **more), rules=rule_file)
    return Result(result.analysis, registry.run(result.case, ("DDP101", "DDP201")), rule_file)


def rendered(*results: Result, **more: Any) -> str:
    return render("markdown", Report(results, folder="/work/project", **more))


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


DEAD = checked(
    used("a.w", numel=70),
    unused("b.w", 5, cause="severed", numel=30),
    rehearsal=rehearsal("reduction_error"),
    rule_file=rules(),
)
CLEAN = checked(used("a.w"))


def test_the_verdict_comes_first() -> None:
    assert rendered(DEAD, CLEAN).startswith("## ddplint: 1 error, 1 warning\n\n| checkpoint type | verdict |")
    assert rendered(CLEAN).startswith("## ddplint: ok\n")
    assert rendered().startswith("## ddplint: nothing was checked\n")


def test_a_row_for_each_type() -> None:
    heading, _, first, second = rows(rendered(DEAD, CLEAN))[:4]
    assert heading[1:6] == ["verdict", "always", "sometimes", "never", "undocumented"]
    assert first == ["**hybrid**", "1 error, 1 warning", "1", "0", "1", "1", "reduction_error", "ok", "ok"]
    assert second == ["**model.py:build**", "ok", "1", "0", "0", "0", *["not rehearsed"] * 3]


def test_what_could_not_be_checked_is_in_the_verdict() -> None:
    text = rendered(CLEAN, unchecked=(Unchecked("cmim", "build() raised <b>"),))
    assert text.startswith("## ddplint: 1 could not be checked\n")
    assert "**cmim could not be checked**: build() raised &lt;b&gt;" in text


def test_an_incomplete_trace_is_not_ok_without_a_word() -> None:
    assert rows(rendered(Result(analysis(used("a.w"), complete=False))))[2][1] == "ok (not every path was traced)"


def test_a_finding_has_place_source_and_fix() -> None:
    place = line(6, "x = x.detach()")
    finding = Finding("DDP201", "severed-gradient", "warning", "`b` is cut", ("b.w",), place, "do this:\n[[unused]]")
    text = rendered(Result(DEAD.analysis, (finding,), rules()))
    assert (
        "<details open><summary><b>DDP201 severed-gradient</b> (warning) <code>model.py:6</code></summary>\n\n"
        "`b` is cut\n\n```python\nx = x.detach()\n```\n\nFix: do this:\n\n```toml\n[[unused]]\n```\n\n</details>" in text
    )


def test_many_findings_are_folded() -> None:
    few = checked(*(unused(f"m{n}.w", 5 + n) for n in range(markdown.OPEN)))
    many = checked(*(unused(f"m{n}.w", 5 + n) for n in range(markdown.OPEN_ROWS + 1)))
    assert rendered(few).count("<details open>") == markdown.OPEN + 1
    assert rendered(many).count("<details>") == markdown.OPEN_ROWS + 2


def test_the_table_by_module_has_a_row_for_each_place_and_entry() -> None:
    documented = checked(
        used("a.w", numel=70),
        unused("b.w", 5, numel=10),
        unused("b.b", 5, numel=10),
        unused("c.w", 5, numel=5),
        unused("d.w", 9, numel=5, usage="sometimes", cause="conditional", evidence="possible"),
        rule_file=rules(entry("c", reason="kept | for old files")),
    )
    *_, first, second, third = rows(rendered(documented))
    assert first == ["`b`", "2", "80 B", "20 %", "never", "uncalled", "`model.py:5`", "no"]
    assert second == ["`c`", "1", "20 B", "5.0 %", "never", "uncalled", "`model.py:5`", r"kept \| for old files (allow)"]
    assert third == ["`d`", "1", "20 B", "5.0 %", "sometimes, possibly", "conditional", "`model.py:9`", "no"]


def test_a_clean_type_with_documented_parameters_still_shows_them() -> None:
    clean = checked(used("a.w"), unused("b.w"), rule_file=rules(entry("b")))
    assert "<details open><summary>1 unused parameter (40 B), by module</summary>" in rendered(clean)


def test_a_long_table_ends_with_what_is_left_out() -> None:
    long = checked(*(unused(f"m{n}.w", 5 + n) for n in range(markdown.ROWS + 7)), rule_file=rules(entry("**")))
    assert "\n\nand 7 parameters of 7 more places\n\n</details>" in rendered(long)


def test_a_report_fits_into_a_comment_and_says_what_is_missing() -> None:
    many = [unused(f"model.layers.{n}.block{n}.é.weight", 5 + n, why="for a reason " * 20) for n in range(400)]
    text = rendered(checked(*many))
    assert len(text.encode()) <= markdown.LONGEST
    assert text.startswith("## ddplint: 400 errors\n")
    assert text.count("<details") == text.count("</details>")
    assert text.count("```") % 2 == 0
    left_out = int(re.findall(r"_Cut at 65,536 characters: (\d+) more parts left out\.", text)[0])
    assert left_out + text.count("<b>DDP101") == 400
    whole = markdown.render(Report((checked(*many),), folder="/work/project"), 10_000_000)
    assert whole.count("<b>DDP101") == 400


def test_one_part_that_is_too_long_costs_only_itself() -> None:
    long = Finding("DDP101", "a-name", "error", "m" * 70_000, (), None, "fix")
    short = Finding("DDP102", "a-name", "error", "short", (), None, "fix")
    text = rendered(Result(analysis(used("a.w")), (long, short)))
    assert "1 more part left out" in text
    assert "<b>DDP102 a-name</b>" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a | b", r"a \| b"),
        ("<script>&amp;</script>", "&lt;script&gt;&amp;amp;&lt;/script&gt;"),
        ("**bold** [x](http://y) ~~z~~", r"\*\*bold\*\* \[x\](http://y) \~\~z\~\~"),
        ("find_unused_parameters, _it_", r"find_unused_parameters, \_it\_"),
        ("a ` alone", r"a \` alone"),
        ("`a|b` and `<b>`", "`a|b` and `<b>`"),
        ("line\nbreak\n# no heading", r"line break \# no heading"),
        ("thanks @octocat", "thanks @\u200boctocat"),
        (r"C:\new", r"C:\\new"),
    ],
)
def test_text_reads_as_it_stands(text: str, shown: str) -> None:
    assert markdown.prose(text) == shown


@pytest.mark.parametrize(("text", "shown"), [("a", "`a`"), ("a`b", "`` a`b ``"), ("``", "``` `` ```"), ("a\nb", "`a b`")])
def test_code_cannot_end_its_span(text: str, shown: str) -> None:
    assert markdown.code(text) == shown


def test_code_cannot_end_its_block() -> None:
    assert markdown.fenced("a\n```\nb", "python") == "````python\na\n```\nb\n````"


def test_a_name_cannot_add_a_cell_or_markup() -> None:
    odd = checked(unused("a|b<img src=x>.w", 5), rule_file=rules(entry("**", reason="`x | y` <b> | @all")))
    *_, row = rows(rendered(odd))
    assert len(row) == 8
    assert row[0] == r"`a\|b<img src=x>`"
    assert row[-1] == "`x \\| y` &lt;b&gt; \\| @\u200ball (allow)"
