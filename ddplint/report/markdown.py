"""Markdown for a comment on a pull request: the verdict, then what is unused, by module, then what is wrong.

What comes from the target is escaped: a parameter or a source line makes no markup, no HTML and no mention. Every part
closes what it opens, so that a report that is too long can do without any of them.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from ddplint.analysis import Location, Parameter
from ddplint.checks.base import OFF, ON, STATIC, Finding, by_place
from ddplint.checks.wording import count, percent, roots, short, size
from ddplint.report.model import Report, Result

LONGEST = 65_536
"""Characters of a comment on GitHub; counted here in UTF-8 bytes, of which there are never fewer."""

OPEN, OPEN_ROWS, ROWS = 3, 10, 50  # findings and rows that are shown unfolded; rows of a table

_FLAGS = (OFF, ON, STATIC)


def render(report: Report, longest: int = LONGEST) -> str:
    """``report`` as GitHub-flavoured Markdown of at most ``longest`` UTF-8 bytes; a sentence says if it was cut."""
    parts = list(_parts(report))
    text = "\n\n".join(parts)
    if _bytes(text) < longest:
        return text + "\n"
    cut = f"_Cut at {longest:,} characters: %s left out. `ddplint check --format text` shows all._"
    room = longest - _bytes(cut) - 40
    kept: list[str] = []
    for part in parts:
        if _bytes(part) + 2 <= room:
            room -= _bytes(part) + 2
            kept.append(part)
    return "\n\n".join([*kept, cut % count(len(parts) - len(kept), "more part")]) + "\n"


def _bytes(text: str) -> int:
    return len(text.encode(errors="backslashreplace"))


def _parts(report: Report) -> Iterator[str]:
    yield f"## ddplint: {_verdict(report)}"
    if report.results:
        yield _table(
            ("checkpoint type", "verdict", "always", "sometimes", "never", "undocumented", *(code(flag) for flag in _FLAGS)),
            [_summary(report, result) for result in report.results],
        )
    for entry in report.unchecked:
        yield f"**{prose(entry.title)} could not be checked**: {prose(entry.why)}"
    for result in report.results:
        if result.findings or result.analysis.unused():
            yield f"### {prose(report.title(result))}"
        if result.analysis.unused():
            yield _unused(report, result)
        for finding in result.findings:
            yield _finding(report, finding, folded=len(result.findings) > OPEN)


def _verdict(report: Report) -> str:
    found = Counter(finding.severity for result in report.results for finding in result.findings)
    words = [count(found[severity], severity) for severity in ("error", "warning") if found[severity]]
    if report.unchecked:
        words.append(f"{len(report.unchecked)} could not be checked")
    return ", ".join(words) or ("ok" if report.results else "nothing was checked")


def _summary(report: Report, result: Result) -> tuple[str, ...]:
    found = Counter(finding.severity for finding in result.findings)
    faults = [count(found[severity], severity) for severity in ("error", "warning") if found[severity]]
    numbers = (f"{len(result.with_usage(usage)):,}" for usage in ("always", "sometimes", "never"))
    undocumented = sum(result.case.documented_by(p) is None for p in result.analysis.unused())
    outcomes = (result.case.outcome(flag) or "not rehearsed" for flag in _FLAGS)
    incomplete = " (not every path was traced)" if result.usage == "incomplete" else ""
    return (
        f"**{prose(report.title(result))}**",
        (", ".join(faults) or "ok") + incomplete,
        *numbers,
        f"{undocumented:,}",
        *outcomes,
    )


def _finding(report: Report, finding: Finding, folded: bool) -> str:
    where = f" <code>{html.escape(_place(report, finding.location))}</code>" if finding.location else ""
    title = f"<b>{finding.code} {finding.name}</b> ({finding.severity}){where}"
    sentence, _, verbatim = finding.fix.partition("\n")
    lines = [f"<details{'' if folded else ' open'}><summary>{title}</summary>", "", prose(finding.message), ""]
    if finding.location and finding.location.text:
        lines += [fenced(finding.location.text, "python"), ""]
    lines += [f"Fix: {prose(sentence)}", ""]
    if verbatim:
        lines += [fenced(verbatim, "toml"), ""]
    return "\n".join([*lines, "</details>"])


def _unused(report: Report, result: Result) -> str:
    """The table by module, folded if long: a row for each group of parameters that one place and one entry explain."""
    groups = [part for group in by_place(result.analysis.unused()) for part in _by_entry(result, group)]
    whole = sum(p.numel for p in result.trainable)
    rows = [_row(report, result, group, whole) for group in groups[:ROWS]]
    heading = ("module", "parameters", "size", "share", "used", "cause", "place", "documented")
    unused = result.analysis.unused()
    left_out = sum(len(group) for group in groups[ROWS:])
    more = f"\n\nand {count(left_out, 'parameter')} of {count(len(groups) - ROWS, 'more place')}" if left_out else ""
    title = f"{count(len(unused), 'unused parameter')} ({size(sum(p.bytes for p in unused))}), by module"
    unfolded = " open" if len(groups) <= OPEN_ROWS else ""
    return f"<details{unfolded}><summary>{title}</summary>\n\n{_table(heading, rows)}{more}\n\n</details>"


def _by_entry(result: Result, group: Sequence[Parameter]) -> Iterator[tuple[Parameter, ...]]:
    """Parameters of one place, those that one rule entry documents together."""
    entries = list(dict.fromkeys(result.case.documented_by(p) for p in group))
    for entry in entries:
        yield tuple(p for p in group if result.case.documented_by(p) == entry)


def _row(report: Report, result: Result, group: Sequence[Parameter], whole: int) -> tuple[str, ...]:
    first = group[0]
    entry = result.case.documented_by(first)
    return (
        prose(short(roots(group, result.analysis))),
        f"{len(group):,}",
        size(sum(p.bytes for p in group)),
        percent(sum(p.numel for p in group), whole),
        f"{first.usage}" + (", possibly" if first.evidence == "possible" else ""),
        first.cause or "",
        code(_place(report, first.location)) if first.location else "",
        f"{prose(entry.reason)} ({entry.action})" if entry else "no",
    )


def _place(report: Report, location: Location) -> str:
    return f"{report.relative(location.file)}:{location.line}"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ("---",) * len(heading), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    """A pipe ends a cell even inside of code, unless a backslash is before it (GFM, section 4.10)."""
    return re.sub(r"\\?\|", r"\\|", text)


def prose(text: str) -> str:
    """``text`` as one line of Markdown that reads as it stands; what is in backticks stays code."""
    parts = re.split(r"`([^`]+)`", " ".join(text.split()))
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"[\\`*\[\]|~#]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)
    return text.replace("@", "@\u200b")  # with an invisible space behind it, it mentions nobody


def code(text: str) -> str:
    """``text`` as a code span: its fence is longer than any run of backticks in it."""
    text = " ".join(text.split())
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def fenced(text: str, language: str) -> str:
    """``text`` as a block of code that nothing in it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
