"""The text report, for people: the verdict first, then what is wrong and what to do, then the numbers."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddplint.analysis import Parameter, Rehearsal
from ddplint.checks.base import OFF, ON, STATIC, Finding
from ddplint.checks.wording import count, line, outcomes, percent, roots, short, size, verb
from ddplint.report import details
from ddplint.report.model import EVERYTHING, Report, Result, View
from ddplint.rules import UnusedRule

WIDEST, NARROWEST = 120, 40


def render(report: Report, width: int | None = None, view: View = EVERYTHING) -> str:
    """``report`` as plain text. ``width`` is in columns; by default the terminal's, but 120 at most."""
    columns = width or shutil.get_terminal_size((WIDEST, 24)).columns
    columns = max(NARROWEST, min(columns, WIDEST))
    if view.quiet:
        return "\n".join(_faults_alone(report, columns))
    lines = []
    for result in report.results:
        lines += _wrapped(_verdict(report, result), columns)
        for text in _rehearsal(result):
            lines += _wrapped(text, columns, "  ", "    ")
    for result in report.results:
        if len(report.results) > 1:
            lines += ["", f"== {report.title(result)}"]
        if view.statistics:
            lines += _statistics(result)
        else:
            for finding in result.findings:
                lines += ["", *_finding(report, finding, columns)]
            lines += ["", *_documented(report, result, columns)]
        for sentence in (*_numbers(result), advice(result)):
            lines += _wrapped(sentence, columns)
        if view.verbose:
            lines += _details(report, result)
    return "\n".join(lines)


def _faults_alone(report: Report, width: int) -> Iterator[str]:
    """What fails, and nothing where nothing does."""
    for result in report.results:
        if len(report.results) > 1 and result.fails:
            yield f"== {report.title(result)}"
        for finding in result.faults:
            yield from _finding(report, finding, width)


def _statistics(result: Result) -> Iterator[str]:
    yield from ("", *aligned(("", "findings", "parameters"), details.by_code(result)))
    yield from ("", *aligned(("", "parameters", "weights", "bytes", "share"), details.by_cause(result)), "")


def _details(report: Report, result: Result) -> Iterator[str]:
    """The paths that differ, and every parameter."""
    yield from ("", "paths that leave different parameters unused:")
    yield from (f"  {path}" for path in details.paths(report, result) or ("not known: nothing was rehearsed",))
    yield from ("", "parameters:", *(f"  {row}" for row in aligned((), details.every_parameter(report, result))))


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """``rows`` as columns: the first to the left; under a ``head``, the others to the right."""
    table = [head, *rows] if head else list(rows)
    widths = [max(len(row[place]) for row in table) for place in range(len(table[0]))] if table else []
    side = ">" if head else "<"
    return [
        "  ".join(f"{cell:{'<' if place == 0 else side}{widths[place]}}" for place, cell in enumerate(row)).rstrip()
        for row in table
    ]


def _wrapped(text: str, width: int, first: str = "", then: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def faults(result: Result) -> str:
    """ "2 errors, 1 warning", or "ok"."""
    found = Counter(finding.severity for finding in result.faults)
    return ", ".join(count(found[severity], severity) for severity in ("error", "warning") if found[severity]) or "ok"


def reservations(result: Result) -> list[str]:
    """What has to be said beside the verdict: that it is not complete, or about a part."""
    parts = []
    if result.usage == "incomplete":
        parts.append("not every path was traced")
    if result.base is not None:
        number = len(result.base.stranded)
        parts.append(f"since {result.base.rev} {count(number, 'parameter') if number else 'none'} more")
    return parts


def _verdict(report: Report, result: Result) -> str:
    return f"{report.title(result)}: {'; '.join((faults(result), unused(result), *reservations(result)))}"


def unused(result: Result) -> str:
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


def _rehearsal(result: Result) -> Iterator[str]:
    """What DDP did with each setting, and what is to be said of those that fail for a reason no finding gives."""
    rehearsal = result.analysis.rehearsal
    if rehearsal is None:
        return
    yield f"DDP ({rehearsed(result, rehearsal)}): {outcomes(rehearsal)}"
    yield from (f"  {setting}: {detail}" for setting, detail in unexplained(result))


def rehearsed(result: Result, rehearsal: Rehearsal) -> str:
    """ "rehearsed, 3 iterations, 2 ranks"."""
    where = "" if rehearsal.device == result.analysis.trace.device else f" on {rehearsal.device}"
    return f"rehearsed{where}, {count(rehearsal.iterations, 'iteration')}, {count(rehearsal.ranks, 'rank')}"


def unexplained(result: Result) -> list[tuple[str, str]]:
    """The settings with what DDP said of them, where no finding gives the reason."""
    told = result.analysis.rehearsal.details if result.analysis.rehearsal else {}
    return [(setting, detail) for setting, detail in told.items() if not _explained(result, setting)]


def _explained(result: Result, setting: str) -> bool:
    """Whether the sets of used parameters say why DDP fails: findings and documented entries are about these."""
    outcome, alive = result.case.outcome(setting), result.trainable
    if outcome == "ready_twice":
        return any(p.checkpoint or p.bypass for p in alive)
    if outcome != "reduction_error":
        return False
    if setting == OFF:
        return bool(result.analysis.unused())
    returned = any(p.cause == "output-only" for p in alive)
    return returned or (setting == STATIC and bool(result.with_usage("sometimes")))


def _finding(report: Report, finding: Finding, width: int) -> Iterator[str]:
    title = f"{finding.code} {finding.name} ({finding.severity})"
    if finding.location:
        title += f" {report.relative(finding.location.file)}:{finding.location.line}"
        if finding.location.function:
            title += f" in {finding.location.function}"
    yield from _wrapped(title, width)
    yield from _wrapped(finding.message, width, "  ")
    if finding.location and finding.location.text and line(finding.location) not in finding.message:
        yield f"    > {finding.location.text}"
    sentence, *verbatim = finding.fix.split("\n")
    yield from _wrapped(f"fix: {sentence}", width, "  ", "       ")
    yield from (f"       {line}" for line in verbatim)


def _documented(report: Report, result: Result, width: int) -> Iterator[str]:
    """A line for each entry and cause, if there is nothing wrong: what the project knows to be unused."""
    groups = documented(result)
    if not groups or result.rules is None:
        return
    heading = f"documented in {report.relative(result.rules.path)} (shares are of the trainable weights):"
    yield from _wrapped(heading, width)
    for group in groups:
        who = f"{count(len(group.parameters), 'parameter')} of {group.where} ({group.how})"
        when = "" if group.entry.when == "never" else ", used sometimes"
        yield from _wrapped(f"{who}: {group.cause}{when}; {group.entry.reason} [{group.entry.action}]", width, "  ", "    ")
    yield ""


@dataclass(frozen=True, slots=True)
class Documented:
    """Parameters that one entry documents, unused for one cause: where they are, and their share of the weights."""

    entry: UnusedRule
    cause: str
    parameters: tuple[Parameter, ...]
    where: str
    how: str


def documented(result: Result) -> list[Documented]:
    """What the project knows to be unused, by entry and cause; nothing where something fails."""
    groups: dict[tuple[UnusedRule, str], list[Parameter]] = {}
    for parameter in result.analysis.parameters:
        entry = result.case.documented_by(parameter)
        if entry is not None and not result.fails:
            groups.setdefault((entry, parameter.cause or ""), []).append(parameter)
    whole, known = sum(p.numel for p in result.trainable), []
    for (entry, cause), group in groups.items():
        alive = [p for p in group if p.trainable]
        share = percent(sum(p.numel for p in alive), whole)
        cold = f", {len(group) - len(alive):,} of them frozen" if len(alive) < len(group) else ""
        how = f"{share}{cold}" if alive else "frozen"
        known.append(Documented(entry, cause, tuple(group), short(roots(group, result.analysis)), how))
    return known


def _numbers(result: Result) -> Iterator[str]:
    trainable, never = result.trainable, result.with_usage("never")
    frozen = len(result.analysis.parameters) - len(trainable)
    always, sometimes = result.with_usage("always"), result.with_usage("sometimes")
    yield (
        f"{count(len(trainable), 'trainable parameter')}: {len(always):,} used on every path, "
        f"{len(sometimes):,} on some, {len(never):,} on none; {frozen:,} frozen"
    )
    if never:
        dead, whole = _bytes(never), _bytes(trainable)
        yield f"dead weights: {size(dead)} of {size(whole)} that are trainable ({percent(dead, whole)})"
    yield traced(result)


def traced(result: Result) -> str:
    """How the answer was obtained: "traced on meta: 2 paths, 2 ranks, 70 operations, 1.3 s; autograd agrees"."""
    trace = result.analysis.trace
    device = f"{trace.device} ({trace.device_reason})" if trace.device_reason else trace.device
    differing = len(trace.disagreements)
    agree = f"autograd differs on {count(differing, 'parameter')}" if differing else "autograd agrees"
    device += f", as {result.analysis.adapter}" if result.analysis.adapter else ""
    return (
        f"traced on {device}: {_paths(result)}, {count(trace.ranks, 'rank')}, {count(trace.nodes, 'operation')}, "
        f"{trace.seconds:.1f} s; {agree}"
    )


def _paths(result: Result) -> str:
    trace = result.analysis.trace
    kinds = [f"{trace.paths - trace.forced:,} observed, {trace.forced:,} forced"] if trace.forced else []
    if trace.infeasible:
        kinds.append(f"{trace.infeasible:,} more infeasible")
    return count(trace.paths, "path") + (f" ({', '.join(kinds)})" if kinds else "")


def _bytes(parameters: Sequence[Parameter]) -> int:
    return sum(p.bytes for p in parameters)


def advice(result: Result) -> str:
    """What follows for the DDP wrap, in one sentence. It says "rehearsed" of what the rehearsal ran, and of nothing else."""
    if result.analysis.trace.disagreements:
        return "Settle the disagreement (DDP902) first: nothing above is sure before."
    if result.usage == "incomplete":
        return "Trace more paths (--paths): not every path was traced, and nothing above is sure before."
    rehearsal = result.analysis.rehearsal
    if rehearsal is None:
        return _expected(result)
    tried = f"(rehearsed, {count(rehearsal.iterations, 'iteration')})"
    never, sometimes = result.with_usage("never"), result.with_usage("sometimes")
    running = [setting for setting, outcome in rehearsal.outcomes.items() if outcome == "ok"]
    if OFF in running:
        return _without_the_flag(result, tried)
    if never and result.frozen == "ok":
        return f"Freeze {_these(result)}, then DDP runs with {OFF} {tried}."
    if never and result.frozen is None and not sometimes and rehearsal.outcomes[OFF] == "reduction_error":
        return f"Freeze {_these(result)}, then DDP should run with {OFF} (not rehearsed)."
    first = f" What no path uses can be frozen first: {_share(result)}." if never else ""
    if running:
        setting = ON if ON in running else running[0]
        uses = f", for the {_number(sometimes)} that only some paths use" if sometimes and setting == ON else ""
        return f"Wrap with {setting} {tried}{uses}.{first}"
    if sometimes:
        use = f"Use the {_number(sometimes)} that only some paths use on all of them"
        return f"{use}: DDP fails with every setting {tried}.{first}"
    frozen = f", also with {_these(result)} frozen" if never and result.frozen else ""
    return f"DDP fails with every setting {tried}{frozen}: see above for what each one runs into."


def _without_the_flag(result: Result, tried: str) -> str:
    """What follows where DDP runs with the flag off; ``tried``: how it is known."""
    on = result.case.outcome(ON)
    fails = f" and fails with {ON} ({on})" if on not in (None, "ok") else ""
    runs = f"DDP runs with {OFF} {tried}{fails}"
    if never := result.with_usage("never"):
        them = verb(never, "it", "them")
        return f"{runs}; freeze {_these(result)} all the same: no gradient ever trains {them}."
    if any(known.setting == ON for known in result.case.known):
        return f"Turn the flag off: {runs}."
    if fails:
        return f"Keep the flag off: {runs}."
    return f"{runs}; settle what is reported above." if result.fails else f"Nothing to do: {runs}."


def _expected(result: Result) -> str:
    """The same from the sets of used parameters alone."""
    never, sometimes = result.with_usage("never"), result.with_usage("sometimes")
    if sometimes:
        first = f"Freeze {_these(result)}, and wrap" if never else "Wrap"
        return f"{first} with {ON}, for the {_number(sometimes)} that only some paths use (not rehearsed)."
    if never:
        return f"Freeze {_these(result)}, then DDP should run with {OFF} (not rehearsed)."
    return f"Nothing to do: DDP should run with {OFF} (not rehearsed)."


def _these(result: Result) -> str:
    """ "these 14 (29 % of the weights)", which the report has named above."""
    return f"{verb(result.with_usage('never'), 'this', 'these')} {_share(result)}"


def _share(result: Result) -> str:
    """ "14 (29 % of the weights)": those that no path uses, of what is trainable."""
    never = result.with_usage("never")
    share = percent(sum(p.numel for p in never), sum(p.numel for p in result.trainable))
    return f"{_number(never)} ({share} of the weights)"


def _number(parameters: Sequence[Parameter]) -> str:
    return f"{len(parameters):,}" if len(parameters) > 1 else "one"
