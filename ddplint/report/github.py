"""GitHub annotations: each finding as a workflow command, which puts it beside the line in a pull request.

Paths are relative to the repository, whatever the working folder; what lies outside of it is shown at the nearest place
inside. What does not fit is on the page of the job's summary, where the command line appends ``summary``.

The runner reads a command from a line of output. In its message ``%``, CR and LF have to be percent-encoded,
and in a property ``:`` and ``,`` as well, for these separate properties and message (GitHub's own encoder is
packages/core/src/command.ts in actions/toolkit).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint import places
from ddplint.checks.base import Finding, Severity
from ddplint.checks.wording import count
from ddplint.report import markdown
from ddplint.report.model import Report, Result

SHOWN = 10
"""Annotations of one level that GitHub keeps from one step; it drops further ones without a word. It keeps 50 of a job."""

LONGEST = 4096
"""Characters of a message that the runner keeps (_maxIssueMessageLength in ExecutionContext.cs of actions/runner)."""

LONGEST_SUMMARY = 1_000_000
"""UTF-8 bytes of a step's summary: GitHub refuses one of more than 1 MiB."""

_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report) -> str:
    """Annotations, errors first; a line for each clean result; at last, if so, how many were left out."""
    lines, left_out = [_failed(entry.title, entry.why) for entry in report.unchecked[:SHOWN]], []
    for severity, level in _LEVELS.items():
        commands = [
            _command(level, report, result, finding)
            for result in report.results
            for finding in result.findings
            if finding.severity == severity
        ]
        room = SHOWN - len(lines) if severity == "error" else SHOWN
        lines += commands[:room]
        if len(commands) > room:
            left_out.append(count(len(commands) - room, level))
    lines += [f"ddplint: {report.title(result)}: ok" for result in report.results if not result.findings]
    if left_out:
        lines.append(
            f"ddplint: GitHub shows {SHOWN} annotations of a level; left out: {', '.join(left_out)} "
            "(the job's summary and --format text list all)"
        )
    return "\n".join(lines)


def summary(report: Report) -> str:
    """``report`` for the page of the job's summary, all of it: GitHub-flavoured Markdown."""
    return markdown.render(report, LONGEST_SUMMARY)


def _failed(title: str, why: str) -> str:
    return f"::error title={_property(f'ddplint: {title}')}::{_data(_cut(f'could not be checked: {why}'))}"


def _command(level: str, report: Report, result: Result, finding: Finding) -> str:
    properties = ",".join(f"{key}={_property(value)}" for key, value in _properties(report, result, finding))
    message = _cut(f"{report.title(result)}: {finding.message}\nfix: {finding.fix}")
    return f"::{level} {properties}::{_data(message)}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + " …"


def _properties(report: Report, result: Result, finding: Finding) -> Iterator[tuple[str, str]]:
    place = places.nearest(result.case, finding, places.repository(report.folder))
    if place is not None:
        yield "file", place.file
        yield "line", str(place.line)
    yield "title", f"{finding.code} {finding.name}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
