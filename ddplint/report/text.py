"""The text report, for people: the verdict first, then what is wrong and what to do, then the numbers."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from ddplint.analysis import Parameter
from ddplint.checks.base import Finding
from ddplint.checks.wording import count, percent, roots, short, size
from ddplint.report.model import Report, Result
from ddplint.rules import UnusedRule

WIDEST, NARROWEST = 120, 40


def render(report: Report, width: int | None = None) -> str:
    """``report`` as plain text. ``width`` is in columns; by default the terminal's, but 120 at most."""
    columns = width or shutil.get_terminal_size((WIDEST, 24)).columns
    columns = max(NARROWEST, min(columns, WIDEST))
    lines = [line for result in report.results for line in _wrapped(_verdict(report, result), columns)]
    for result in report.results:
        if len(report.results) > 1:
            lines += ["", f"== {report.title(result)}"]
        for finding in result.findings:
            lines += ["", *_finding(report, finding, columns)]
        lines += ["", *_documented(report, result, columns)]
        for sentence in (*_numbers(result), _advice(result)):
            lines += _wrapped(sentence, columns)
    return "\n".join(lines)


def _wrapped(text: str, width: int, first: str = "", then: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _verdict(report: Report, result: Result) -> str:
    found = Counter(finding.severity for finding in result.findings)
    faults = [count(found[severity], severity) for severity in ("error", "warning") if found[severity]]
    parts = [", ".join(faults) or "ok", _unused(result)]
    if result.usage == "incomplete":
        parts.append("not every path was traced")
    return f"{report.title(result)}: {'; '.join(parts)}"


def _unused(result: Result) -> str:
    """How many parameters are unused, and whether a rule says so."""
    never, sometimes = result.with_usage("never"), result.with_usage("sometimes")
    if not never and not sometimes:
        return "every trainable parameter is used on every path"
    groups = ((never, "unused on every path"), (sometimes, "used on some paths only"))
    text = ", ".join(f"{count(len(group), 'parameter')} {words}" for group, words in groups if group)
    undocumented = sum(result.case.documented_by(p) is None for p in (*never, *sometimes))
    if not undocumented:
        return f"{text}, all documented"
    if result.rules is None:
        return text
    return f"{text}, {undocumented:,} undocumented"


def _finding(report: Report, finding: Finding, width: int) -> Iterator[str]:
    title = f"{finding.code} {finding.name} ({finding.severity})"
    if finding.location:
        title += f" {report.relative(finding.location.file)}:{finding.location.line}"
        if finding.location.function:
            title += f" in {finding.location.function}"
    yield from _wrapped(title, width)
    yield from _wrapped(finding.message, width, "  ")
    if finding.location and finding.location.text:
        yield f"    > {finding.location.text}"
    sentence, *verbatim = finding.fix.split("\n")
    yield from _wrapped(f"fix: {sentence}", width, "  ", "       ")
    yield from (f"       {line}" for line in verbatim)


def _documented(report: Report, result: Result, width: int) -> Iterator[str]:
    """A line for each entry and cause, if there is nothing wrong: what the project knows to be unused."""
    groups: dict[tuple[UnusedRule, str], list[Parameter]] = {}
    for parameter in result.analysis.parameters:
        entry = result.case.documented_by(parameter)
        if entry is not None:
            groups.setdefault((entry, parameter.cause or ""), []).append(parameter)
    if not groups or result.rules is None or result.fails:
        return
    heading = f"documented in {report.relative(result.rules.path)} (shares are of the trainable weights):"
    yield from _wrapped(heading, width)
    whole = sum(p.numel for p in result.trainable)
    for (entry, cause), group in groups.items():
        alive = [p for p in group if p.trainable]
        share = percent(sum(p.numel for p in alive), whole)
        cold = f", {len(group) - len(alive):,} of them frozen" if len(alive) < len(group) else ""
        how = f"{share}{cold}" if alive else "frozen"
        who = f"{count(len(group), 'parameter')} of {short(roots(group, result.analysis))} ({how})"
        when = "" if entry.when == "never" else ", used sometimes"
        yield from _wrapped(f"{who}: {cause}{when}; {entry.reason} [{entry.action}]", width, "  ", "    ")
    yield ""


def _numbers(result: Result) -> Iterator[str]:
    trace, trainable, never = result.analysis.trace, result.trainable, result.with_usage("never")
    frozen = len(result.analysis.parameters) - len(trainable)
    always, sometimes = result.with_usage("always"), result.with_usage("sometimes")
    yield (
        f"{count(len(trainable), 'trainable parameter')}: {len(always):,} used on every path, "
        f"{len(sometimes):,} on some, {len(never):,} on none; {frozen:,} frozen"
    )
    if never:
        dead, whole = _bytes(never), _bytes(trainable)
        yield f"dead weights: {size(dead)} of {size(whole)} that are trainable ({percent(dead, whole)})"
    device = f"{trace.device} ({trace.device_reason})" if trace.device_reason else trace.device
    differing = len(trace.disagreements)
    agree = f"autograd differs on {count(differing, 'parameter')}" if differing else "autograd agrees"
    yield (
        f"traced on {device}: {count(trace.paths, 'path')}, {count(trace.ranks, 'rank')}, "
        f"{count(trace.nodes, 'operation')}, {trace.seconds:.1f} s; {agree}"
    )


def _bytes(parameters: Sequence[Parameter]) -> int:
    return sum(p.bytes for p in parameters)


def _advice(result: Result) -> str:
    """What follows for the DDP wrap, in one sentence."""
    never, sometimes = result.with_usage("never"), result.with_usage("sometimes")
    if result.analysis.trace.disagreements:
        return "next: settle the disagreement (DDP902) first, nothing above is sure before"
    if result.usage == "incomplete":
        return "next: trace more paths (--paths), nothing above is sure before"
    share = percent(sum(p.numel for p in never), sum(p.numel for p in result.trainable))
    freeze = f"freeze the {len(never):,} that no path uses ({share} of the trainable weights) before the DDP wrap"
    if sometimes:
        first = f"{freeze}; " if never else ""
        return f"next: {first}the {len(sometimes):,} that only some paths use need find_unused_parameters=True"
    if never:
        return f"next: {freeze}; DDP then manages used parameters only and needs no find_unused_parameters"
    return "next: nothing to do, DDP needs no find_unused_parameters for this model"
