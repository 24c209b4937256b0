"""The text report on a terminal: what stands where, at every width, with and without colours."""

from __future__ import annotations

import io
import itertools
import linecache
import re
from pathlib import Path

import pytest
from rich.console import Console

from ddplint.analysis import Location
from ddplint.checks.base import Finding
from ddplint.checks.registry import run
from ddplint.report import Report, Result, View
from ddplint.report.terminal import console, render, tree
from ddplint.rules import RuleFile
from tests.made import analysis, entry, frozen, line, rehearsal, rules, unused, used

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
WIDTHS = (40, 60, 80, 120, 200)


def screen(width: int = 100, **environment: str) -> Console:
    """A terminal of this width, whatever the tests run on."""
    return console(io.StringIO(), width=width, environment={"FORCE_COLOR": "1", "TERM": "xterm", **environment})


def checked(*parameters: object, rules: RuleFile | None = None, **more: object) -> Result:
    result = Result(analysis(*parameters, **more), rules=rules)  # type: ignore[arg-type]
    return Result(result.analysis, run(result.case), result.rules)


def coloured(*results: Result, on: Console | None = None, view: View | None = None) -> str:
    return render(Report(results, folder="/work/project"), view or View(), on or screen())


def rows(*results: Result, width: int = 100, view: View | None = None) -> list[str]:
    """What is seen: the lines without their colours and the spaces at their ends."""
    return [row.rstrip() for row in ESCAPE.sub("", coloured(*results, on=screen(width), view=view)).splitlines()]


def below(title: str, seen: list[str]) -> list[str]:
    """The lines under a heading, up to the next empty one."""
    start = seen.index(title) + 1
    return list(itertools.takewhile(bool, seen[start:]))


HEADS = [unused(f"vocab.{name}.w", 30 + n, numel=100) for n, name in enumerate(("atom", "bond"))]


def clean() -> Result:
    known = rules(entry("vocab"))
    return checked(used("encoder.w", numel=800), *HEADS, rules=known, rehearsal=rehearsal("reduction_error"))


def broken() -> Result:
    gate = unused("gate.w", 88, cause="severed", location=line(88, "g = self.gate(x).detach()"), why="it is cut")
    return checked(
        used("a.w"), gate, unused("spare.w", 9), frozen("cold.w"), rules=rules(), rehearsal=rehearsal("reduction_error")
    )


def test_the_verdict_comes_first_and_what_to_do_last() -> None:
    seen = rows(clean())
    assert seen[:6] == [
        "✓ hybrid  ok",
        "  2 parameters unused on every path, all documented",
        "  DDP (rehearsed, 3 iterations, 2 ranks)",
        "    ✗ find_unused_parameters=False  reduction_error",
        "    ✓ find_unused_parameters=True   ok",
        "    ✓ static_graph=True             ok",
    ]
    headings = ("documented in rules/hybrid.toml", "numbers", "what to do")
    assert [row for row in seen if row in headings] == list(headings)
    assert below("what to do", seen)[0].startswith("  Freeze these 2 (20 % of the weights), then DDP")


def test_findings_stand_under_their_module_with_source_and_fix() -> None:
    seen = rows(broken())
    start = seen.index("gate  1 parameter, 33 % of the weights")
    assert seen[start + 1 : start + 5] == [
        "  model.py:88 in Net.forward",
        "    88 │ g = self.gate(x).detach()",
        "       │ ^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  ✗ DDP101 undocumented-unused",
    ]
    assert "  ! DDP201 severed-gradient" in seen[start:]
    assert seen.count("    88 │ g = self.gate(x).detach()") == 1
    assert any(row.startswith("    fix: use it, do not build it") for row in seen)
    entry_at = seen.index('         params = ["gate.**"]')
    assert seen[entry_at - 1].strip() == "[[unused]]"


def test_what_is_about_no_parameter_stands_under_the_rule_file_or_the_whole_model() -> None:
    result = clean()
    at = Location(str(rules().path), 12)
    found = (
        Finding("DDP901", "incomplete", "warning", "it ended first", (), None, "trace more"),
        Finding("DDP103", "unmatched-pattern", "error", "it names nothing", (), at, "take it out"),
    )
    seen = rows(Result(result.analysis, found, result.rules))
    assert below("the whole model", seen)[0] == "  ! DDP901 incomplete"
    assert below("rules/hybrid.toml", seen)[:2] == ["  rules/hybrid.toml:12", "  ✗ DDP103 unmatched-pattern"]
    assert seen.index("rules/hybrid.toml") < seen.index("the whole model")


def test_the_worst_module_comes_first() -> None:
    info = unused("alive.w", usage="always", cause="", zeroed=line(3, "0 * x"))
    result = checked(info, unused("dead.w", 9))
    titles = [row for row in rows(result) if re.match(r"\w+  1 parameter", row)]
    assert [title.split()[0] for title in titles] == ["dead", "alive"]


def test_the_operation_is_underlined_where_the_file_is_as_it_was(tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    model.write_text("class Net:\n    def forward(self, x):\n        return self.head(x.detach())\n")
    at = Location(str(model), 3, "Net.forward", "return self.head(x.detach())", (25, 35))
    seen = rows(checked(used("a.w"), unused("b.w", location=at)))
    quoted = seen.index("     3 │ return self.head(x.detach())")
    assert seen[quoted + 1] == "       │                  ^^^^^^^^^^"
    model.write_text("class Net:\n    def forward(self, x):\n        return None\n")
    linecache.checkcache(str(model))
    assert "       │ ^^^^^^^^^^^^^^^^^^^^^^^^^^^^" in rows(checked(used("a.w"), unused("b.w", location=at)))


def test_a_long_line_is_cut_around_the_operation(tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    text = f"y = {'x + ' * 40}self.head(x)"
    model.write_text(f"{text}\n")
    at = Location(str(model), 1, "forward", text, (len(text) - len("self.head(x)"), len(text)))
    seen = rows(checked(used("a.w"), unused("b.w", location=at)), width=60)
    (quoted,) = (number for number, row in enumerate(seen) if row.startswith("     1 │ "))
    assert seen[quoted].endswith("self.head(x)")
    assert seen[quoted + 1].index("^") == seen[quoted].index("self.head")
    assert seen[quoted + 1].count("^") == len("self.head(x)")
    assert len(seen[quoted]) <= 60


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_terminal_but_what_is_pasted(width: int) -> None:
    for results in ((broken(),), (clean(), broken()), (clean(),)):
        for row in rows(*results, width=width):
            assert len(row) <= min(width, 120) or " = " in row


@pytest.mark.parametrize("width", WIDTHS)
def test_no_word_of_a_name_or_of_a_number_is_lost_at_any_width(width: int) -> None:
    seen = "".join("".join(rows(broken(), width=width)).split())
    for text in ('model.get_submodule("gate").requires_grad_(False)', "find_unused_parameters=False", "reduction_error"):
        assert text in seen
    assert "…" not in seen


def test_a_wide_terminal_is_not_filled() -> None:
    assert rows(broken(), width=200) == rows(broken(), width=120)


def test_several_types_share_a_table_where_there_is_room() -> None:
    wide = rows(clean(), broken(), width=120)
    (head,) = (row for row in wide if "checkpoint type" in row)
    assert re.split(r" {2,}", head)[2:5] == ["never used", "sometimes", "undocumented"]
    good, poor = (row.split() for row in wide if row.startswith(("✓ hybrid", "✗ hybrid")))
    assert good == ["✓", "hybrid", "ok", "2", "-", "-", "reduction_error", "ok", "ok"]
    assert poor[2:9] == ["2", "errors,", "1", "warning", "2", "-", "2"]
    assert sum(row.startswith("hybrid ───") for row in wide) == 2
    narrow = rows(clean(), broken(), width=80)
    assert not any("checkpoint type" in row for row in narrow)
    assert [row for row in narrow if row.startswith(("✓", "✗"))] == ["✓ hybrid  ok", "✗ hybrid  2 errors, 1 warning"]


def test_the_numbers_have_a_row_for_each_cause_with_its_share() -> None:
    table = below("numbers", rows(broken()))
    assert table[0].split() == ["parameters", "weights", "bytes", "share"]
    assert [row.split("  ")[1] for row in table[1:5]] == [
        "used on every path",
        "never: severed",
        "never: uncalled",
        "frozen",
    ]
    assert re.fullmatch(r"  never: severed +1 +10 +40 B +33 %  █{8}", table[2])
    assert table[-1].startswith("  traced on meta: 1 path, 1 rank")
    assert "█" not in "".join(rows(broken(), width=60))


def test_quiet_is_findings_alone_and_nothing_where_nothing_fails() -> None:
    assert coloured(clean(), view=View(quiet=True)) == ""
    seen = rows(clean(), broken(), view=View(quiet=True))
    assert "  ✗ DDP101 undocumented-unused" in seen
    assert not {"numbers", "what to do", "✓ hybrid  ok"} & set(seen)
    assert not any("DDP303" in row for row in seen)


def test_verbose_has_the_paths_and_every_parameter_in_a_tree() -> None:
    fork = {"file": "/work/project/model.py", "line": 5, "function": "Net.forward", "domain": "bool"}
    plan = {"inputs": 0, "seed": 0, "rank": 0, "after": 0, "answers": []}
    told = rehearsal(plans=[plan, {**plan, "rank": 1, "seed": 2, "answers": [[fork, False]]}])
    result = checked(
        used("enc.a.w"), unused("enc.b", usage="sometimes", cause="conditional"), frozen("cold"), rehearsal=told
    )
    seen = rows(result, view=View(verbose=True))
    assert below("paths that leave different parameters unused", seen) == [
        "  - rank 0, inputs 1, seed 0; nothing forced",
        "  - rank 1, inputs 1, seed 2; forced: False at model.py:5 in Net.forward",
    ]
    assert below("parameters", seen) == [
        "model.py:build",
        "├── enc",
        "│   ├── a",
        "│   │   └── w  [10] float32  always used",
        "│   └── b  [10] float32  sometimes used (conditional, observed)  model.py:7",
        "└── cold  [10] float32  frozen",
    ]


def test_statistics_stand_in_the_place_of_findings() -> None:
    seen = rows(broken(), view=View(statistics=True))
    assert below("findings by code", seen) == [
        "                                      findings  parameters",
        "  DDP101 undocumented-unused (error)         2           2",
        "  DDP201 severed-gradient (warning)          1           1",
    ]
    assert below("parameters by cause", seen)[2].startswith("  never: severed")
    assert not any("fix:" in row for row in seen)
    assert below("findings by code", rows(checked(used("a.w")), view=View(statistics=True))) == ["  none"]


def test_no_color_leaves_the_layout_and_no_colour() -> None:
    plain = coloured(broken(), on=screen(NO_COLOR="1"))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", plain)
    assert [row.rstrip() for row in ESCAPE.sub("", plain).splitlines()] == rows(broken())
    assert re.search(r"\x1b\[[0-9;]*31", coloured(broken()))


def test_a_terminal_without_unicode_gets_ascii() -> None:
    latin = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    on = console(latin, width=100, environment={"FORCE_COLOR": "1", "TERM": "xterm"})
    text = ESCAPE.sub("", coloured(clean(), broken(), on=on))
    assert text.isascii()
    assert "  x DDP101 undocumented-unused" in text
    assert "    88 | g = self.gate(x).detach()" in text


def test_what_looks_like_markup_is_text() -> None:
    at = line(7, "x[/bold] = y[red]")
    assert "     7 │ x[/bold] = y[red]" in rows(checked(used("a.w"), unused("b.w", location=at)))


def test_columns_are_the_environments_within_bounds() -> None:
    widths = [console(io.StringIO(), environment={"COLUMNS": str(n), "TERM": "xterm"}).width for n in (10, 72, 500)]
    assert widths == [40, 72, 120]


def test_a_tree_of_names_with_leaves() -> None:
    seen = ESCAPE.sub("", tree("rules", {"a": ["one"], "b": []}, screen()))
    assert [row.rstrip() for row in seen.splitlines()] == ["rules", "├── a", "│   └── one", "└── b"]
