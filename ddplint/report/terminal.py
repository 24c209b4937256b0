"""The text report on a terminal: the same words as ``ddplint.report.text``, laid out to be taken in at a glance.

The verdict comes first, then findings by module with their source line, then the numbers, then what to do. Colours are the
terminal's own sixteen, so that they fit a light and a dark background, and none is the only carrier of a meaning.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from ddplint.analysis import Location, Parameter
from ddplint.checks.base import OFF, ON, STATIC, Finding, grouped
from ddplint.checks.wording import count, percent, roots, short
from ddplint.report import details
from ddplint.report.model import EVERYTHING, Report, Result, View
from ddplint.report.text import (
    NARROWEST,
    WIDEST,
    advice,
    documented,
    faults,
    rehearsed,
    reservations,
    traced,
    unexplained,
    unused,
)

SIDE_BY_SIDE = 100  # columns from which several types share a table
_BAR = 24  # the longest bar
_BESIDE_BAR = 64  # columns that are kept for what stands beside it
_NAME = 18  # columns of the longest of ``details.parts``
_INDENT = 4
_FIX = "fix:"
_STYLES = {"error": "bold red", "warning": "bold yellow", "info": "bold blue", "ok": "bold green"}
_MARKS = {"error": "✗", "warning": "!", "info": "i", "ok": "✓"}
_PLAIN_MARKS = {"error": "x", "warning": "!", "info": "i", "ok": "+"}
_CAPTION = "numbers of parameters; flag: find_unused_parameters, and what DDP did with it, rehearsed"
_ORDER = ("error", "warning", "info")
_USAGES = {"never": "red", "sometimes": "yellow", "always": "", None: "dim"}


def console(
    stream: TextIO | None = None, *, width: int | None = None, environment: Mapping[str, str] | None = None
) -> Console:
    """A console on ``stream`` (stdout by default), as wide as that is, but 120 columns at most and 40 at least.

    The environment's NO_COLOR, FORCE_COLOR, TERM and COLUMNS are honoured (rich/console.py, ``Console.__init__``).
    """
    made = Console(file=stream or sys.stdout, width=width, highlight=False, _environ=environment)
    made.width = max(NARROWEST, min(made.width, WIDEST))
    return made


def render(report: Report, view: View = EVERYTHING, on: Console | None = None) -> str:
    """``report`` with the escape sequences that ``on`` understands; "" where ``view`` is quiet and nothing fails."""
    page = _Page(report, view, on or console())
    with page.console.capture() as captured:
        page.print()
    return captured.get()


class _Page:
    """One report on its way to one console."""

    def __init__(self, report: Report, view: View, on: Console) -> None:
        self.report, self.view, self.console = report, view, on
        self.marks = _PLAIN_MARKS if on.options.ascii_only else _MARKS
        self.several = len(report.results) > 1

    def print(self) -> None:
        if not self.view.quiet:
            self.verdicts()
        for result in self.report.results:
            if self.view.quiet and not result.fails:
                continue
            if self.several:
                self.console.print()
                self.console.print(Rule(Text(self.report.title(result), "bold"), align="left", style="dim"))
            if self.view.statistics and not self.view.quiet:
                self.statistics(result)
            else:
                self.findings(result, result.faults if self.view.quiet else result.findings)
            if not self.view.quiet:
                self.rest(result)

    def rest(self, result: Result) -> None:
        """All that follows a type's findings."""
        if not self.view.statistics:
            self.documented(result)
            self.heading("numbers")
            self.console.print(self.numbers(result))
        self.console.print(Padding(Text(traced(result), "dim"), (0, 0, 0, 2)))
        if self.view.verbose:
            self.paths(result)
            self.parameters(result)
        self.heading("what to do")
        self.console.print(Padding(Text(advice(result), "bold"), (0, 0, 0, 2)))

    def heading(self, text: str) -> None:
        self.console.print()
        self.console.print(Text(text, "bold cyan"))

    def mark(self, kind: str, text: str = "") -> Text:
        """A sign, and ``text`` after it, in the colour of ``kind``: a severity or "ok"."""
        return Text(f"{self.marks[kind]} {text}".rstrip(), _STYLES[kind])

    # ------------------------------------------------------------------ the verdict

    def verdicts(self) -> None:
        if self.several and self.console.width >= SIDE_BY_SIDE:
            self.console.print(self.side_by_side())
            for result in self.report.results:
                for text in (*reservations(result), *(f"{setting}: {detail}" for setting, detail in unexplained(result))):
                    self.console.print(Padding(Text(f"{self.report.title(result)}: {text}"), (0, 0, 0, 2)))
            return
        for number, result in enumerate(self.report.results):
            if number:
                self.console.print()
            self.verdict(result)

    def verdict(self, result: Result) -> None:
        """One type, its parts below each other."""
        kind = _worst(result)
        line = self.mark(kind, self.report.title(result)).append(f"  {faults(result)}", _STYLES[kind])
        self.console.print(line)
        for text in (unused(result), *reservations(result)):
            self.console.print(Padding(Text(text), (0, 0, 0, 2)))
        rehearsal = result.analysis.rehearsal
        if rehearsal is None:
            return
        table = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(2):
            table.add_column(overflow="fold")
        for setting, outcome in rehearsal.outcomes.items():
            table.add_row(self.outcome(outcome, setting), self.outcome_word(outcome))
        self.console.print(Padding(Text(f"DDP ({rehearsed(result, rehearsal)})", "dim"), (0, 0, 0, 2)))
        self.console.print(Padding(table, (0, 0, 0, 4)))
        for setting, detail in unexplained(result):
            self.console.print(Padding(Text(f"{setting}: {detail}"), (0, 0, 0, 4)))

    def outcome(self, outcome: str, setting: str) -> Text:
        kind = "ok" if outcome == "ok" else "error"
        return Text.assemble((f"{self.marks[kind]} ", _STYLES[kind]), setting)

    def outcome_word(self, outcome: str | None) -> Text:
        return Text(outcome or "-", "dim" if outcome is None else "green" if outcome == "ok" else "red")

    def side_by_side(self) -> Table:
        """All types, a row each."""
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
        table.caption, table.caption_justify, table.caption_style = _CAPTION, "left", "dim"
        for name in ("checkpoint type", "verdict"):
            table.add_column(name, overflow="fold")
        for name in ("never used", "sometimes", "undocumented"):
            table.add_column(name, justify="right", overflow="fold")
        for name in ("flag off", "flag on", "static_graph"):
            table.add_column(name, overflow="fold")
        for result in self.report.results:
            kind = _worst(result)
            never, sometimes = result.with_usage("never"), result.with_usage("sometimes")
            unknown = sum(result.case.documented_by(p) is None for p in (*never, *sometimes))
            table.add_row(
                self.mark(kind, self.report.title(result)),
                Text(faults(result), _STYLES[kind]),
                *(_number(number) for number in (len(never), len(sometimes))),
                _number(unknown, "" if result.rules is None else "bold red"),
                *(self.outcome_word(result.case.outcome(setting)) for setting in (OFF, ON, STATIC)),
            )
        return table

    # ------------------------------------------------------------------ the findings

    def findings(self, result: Result, findings: Sequence[Finding]) -> None:
        """By module, and within one by place, those with the worst first."""
        titles = {finding: _about(self.report, result, finding) for finding in findings}
        groups = grouped(findings, lambda finding: titles[finding])
        for group in sorted(groups, key=lambda group: min(_ORDER.index(finding.severity) for finding in group)):
            self.console.print()
            self.console.print(self.module(result, titles[group[0]], group))
            for same in grouped(group, lambda finding: finding.location and (finding.location.file, finding.location.line)):
                location = max((f.location for f in same), key=lambda place: bool(place and place.text))
                if location is not None:
                    self.place(location)
                for number, finding in enumerate(same):
                    if number:
                        self.console.print()
                    self.finding(finding)

    def module(self, result: Result, title: str, group: Sequence[Finding]) -> Text:
        """A group's title, with the weights it is about."""
        names = {name for finding in group for name in finding.parameters}
        about = tuple(p for p in result.analysis.parameters if p.name in names)
        line = Text(title, "bold")
        if about:
            share = percent(sum(p.numel for p in about if p.trainable), sum(p.numel for p in result.trainable))
            line.append(f"  {count(len(about), 'parameter')}, {share} of the weights", "not bold dim")
        return line

    def place(self, location: Location) -> None:
        """A place and its source line, with the operation underlined."""
        where = Text(f"{self.report.relative(location.file)}:{location.line}", "cyan")
        if location.function:
            where.append(f" in {location.function}", "dim")
        self.console.print(Padding(where, (0, 0, 0, 2)))
        if not location.text:
            return
        number = f"{location.line:>{_INDENT}}"
        bar = "|" if self.console.options.ascii_only else "│"
        text, first, last = _cut(*_marked(location), self.console.width - len(number) - 6)
        source = Text.assemble((f"  {number} {bar} ", "dim"), text)
        source.stylize("bold", len(number) + 5 + first, len(number) + 5 + last)
        under = Text.assemble((f"  {' ' * len(number)} {bar} ", "dim"), " " * first, ("^" * (last - first), "bold red"))
        for line in (source, under):
            self.console.print(line, no_wrap=True, overflow="ellipsis")

    def finding(self, finding: Finding) -> None:
        """A code, what is wrong, and what to do about it; lines to paste stay whole."""
        title = Text.assemble(self.mark(finding.severity, finding.code), (f" {finding.name}", "bold"))
        self.console.print(Padding(title, (0, 0, 0, 2)))
        sentence, *verbatim = finding.fix.split("\n")
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        table.add_row(Text(_FIX, "bold green"), _words(sentence))
        for part in (_words(finding.message), table):
            self.console.print(Padding(part, (0, 0, 0, _INDENT)))
        for line in verbatim:
            self.console.print(Text(f"{' ' * (_INDENT + len(_FIX) + 1)}{line}", "cyan"), soft_wrap=True)

    def documented(self, result: Result) -> None:
        """What the project knows to be unused."""
        groups = documented(result)
        if not groups or result.rules is None:
            return
        self.heading(f"documented in {self.report.relative(result.rules.path)}")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold", ratio=1)
        for group in groups:
            what = _words(group.where).append(f"  {group.cause}{'' if group.entry.when == 'never' else ', used sometimes'}")
            what.append(f"\n{group.entry.reason}", "dim")
            share, _, cold = group.how.partition(",")
            if cold:
                what.append(f" ({cold.strip()})", "dim")
            table.add_row(f"{len(group.parameters):,}", share, Text(group.entry.action, "green"), what)
        self.console.print(Padding(table, (0, 0, 0, 2)))

    # ------------------------------------------------------------------ the numbers

    def numbers(self, result: Result) -> Padding:
        """What becomes of the weights, with the share of each part."""
        drawn = self.console.width > _BESIDE_BAR
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("", overflow="fold", min_width=_NAME)
        for name in ("parameters", "weights", "bytes", "share"):
            table.add_column(name, justify="right", no_wrap=True)
        if drawn:
            table.add_column("", no_wrap=True)
        whole = sum(p.numel for p in result.trainable)
        for (name, group), row in zip(details.parts(result), details.by_cause(result), strict=True):
            style = _USAGES[group[0].usage if group[0].trainable else None]
            share = sum(p.numel for p in group) / whole if whole and group[0].trainable else 0.0
            bar = [Text(self.bar(share), style or "green")] if drawn else []
            table.add_row(Text(name, style), *row[1:], *bar)
        return Padding(table, (0, 0, 0, 2))

    def bar(self, share: float) -> str:
        longest = min(_BAR, self.console.width - _BESIDE_BAR)
        filled = round(share * longest) or (1 if share else 0)
        return ("#" if self.console.options.ascii_only else "█") * filled

    def statistics(self, result: Result) -> None:
        """Findings and parameters by code, then by cause."""
        self.heading("findings by code")
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("")
        for name in ("findings", "parameters"):
            table.add_column(name, justify="right", no_wrap=True)
        rows = details.by_code(result)
        for name, *numbers in rows:
            table.add_row(Text(name), *numbers)
        self.console.print(Padding(table if rows else Text("none"), (0, 0, 0, 2)))
        self.heading("parameters by cause")
        self.console.print(self.numbers(result))

    # ------------------------------------------------------------------ on request

    def paths(self, result: Result) -> None:
        self.heading("paths that leave different parameters unused")
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for path in details.paths(self.report, result) or ("not known: nothing was rehearsed",):
            table.add_row(Text("-", "dim"), Text(path))
        self.console.print(Padding(table, (0, 0, 0, 2)))

    def parameters(self, result: Result) -> None:
        """Every parameter, in the tree of modules."""
        self.heading("parameters")
        root = Tree(Text(self.report.target(result), "bold"), guide_style="dim")
        nodes = {"": root}
        rows = details.every_parameter(self.report, result)
        for parameter, (_, shape, becomes, *more) in zip(result.analysis.parameters, rows, strict=True):
            parent, _, own = parameter.name.rpartition(".")
            leaf = Text.assemble(own, (f"  {shape}  ", "dim"), (becomes, _style(parameter)))
            leaf.append("".join(f"  {text}" for text in more if text), "dim")
            _branch(nodes, parent).add(leaf)
        self.console.print(root)


def _number(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style) if number else Text("-", "dim")


def _style(parameter: Parameter) -> str:
    return _USAGES[parameter.usage if parameter.trainable else None]


def _branch(nodes: dict[str, Tree], name: str) -> Tree:
    """The module's branch, made with those above it where they are not there yet."""
    if name not in nodes:
        above, _, own = name.rpartition(".")
        nodes[name] = _branch(nodes, above).add(Text(own, "bold"))
    return nodes[name]


def _worst(result: Result) -> str:
    """The severity that a type is judged by: an info is no fault."""
    severities = {finding.severity for finding in result.faults}
    return next((severity for severity in _ORDER if severity in severities), "ok")


def _about(report: Report, result: Result, finding: Finding) -> str:
    """The title a finding stands under: its modules, or the rule file, or the whole model."""
    names = set(finding.parameters)
    about = [p for p in result.analysis.parameters if p.name in names]
    if about:
        return short(roots(about, result.analysis)).replace("`", "")
    if result.rules is not None and finding.location is not None and finding.location.file == result.rules.path:
        return report.relative(result.rules.path)
    return "the whole model"


def _words(text: str) -> Text:
    """A sentence with what stands in backticks in bold."""
    words = Text(text)
    words.highlight_regex(r"`[^`]+`", "bold")
    return words


def _marked(location: Location) -> tuple[str, int, int]:
    """The place's source line without its indentation, and where in it the operation is: the whole line if not known."""
    text = location.text
    source = linecache.getline(location.file, location.line).rstrip()
    if location.columns is not None and source.strip() == text:  # the file is as it was
        indent = len(source) - len(source.lstrip())
        first, last = (place - indent for place in location.columns)
        if 0 <= first < last <= len(text):
            return text, first, last
    return text, 0, len(text)


def _cut(text: str, first: int, last: int, width: int) -> tuple[str, int, int]:
    """``text`` in at most ``width`` characters, with as much as fits of what is marked."""
    start = min(first, max(0, last - width + 1)) if last > width else 0
    if start:
        text, first, last = f"…{text[start + 1 :]}", max(1, first - start), last - start
    if len(text) > width:
        text = f"{text[: width - 1]}…"
    return text, first, min(last, len(text))


def tree(title: str, branches: Mapping[str, Sequence[str]], on: Console) -> str:
    """``title`` as the root, and under it each of ``branches`` with its leaves; long ones go on in further lines."""
    made = Tree(Text(title, "dim"), guide_style="dim")
    for name, leaves in branches.items():
        branch = made.add(Text(name, "bold"))
        for leaf in leaves:
            branch.add(Text(leaf, overflow="fold"))
    with on.capture() as captured:
        on.print(made)
    return captured.get()
