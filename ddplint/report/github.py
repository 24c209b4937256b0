"""GitHub annotations: each finding as a workflow command, which puts it beside the line in a pull request.

The runner reads a command from a line of output. In its message ``%``, CR and LF have to be percent-encoded,
and in a property ``:`` and ``,`` as well, for these separate properties and message (GitHub's own encoder is
packages/core/src/command.ts in actions/toolkit).
"""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checks.base import Finding, Severity
from ddplint.checks.wording import count
from ddplint.report.model import Report, Result

SHOWN = 10
"""Annotations of one level that GitHub keeps from one step; it drops further ones without a word."""

_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "notice"}


def render(report: Report) -> str:
    """Annotations, errors first; a line for each clean result; at last, if so, how many were left out."""
    lines, left_out = [], []
    for severity, level in _LEVELS.items():
        commands = [
            _command(level, report, result, finding)
            for result in report.results
            for finding in result.findings
            if finding.severity == severity
        ]
        lines += commands[:SHOWN]
        if len(commands) > SHOWN:
            left_out.append(count(len(commands) - SHOWN, level))
    lines += [f"ddplint: {report.title(result)}: ok" for result in report.results if not result.findings]
    if left_out:
        lines.append(
            f"ddplint: GitHub shows {SHOWN} annotations of a level; left out: {', '.join(left_out)} "
            "(--format text lists all)"
        )
    return "\n".join(lines)


def _command(level: str, report: Report, result: Result, finding: Finding) -> str:
    properties = ",".join(f"{key}={_property(value)}" for key, value in _properties(report, finding))
    message = f"{report.title(result)}: {finding.message}\nfix: {finding.fix}"
    return f"::{level} {properties}::{_data(message)}"


def _properties(report: Report, finding: Finding) -> Iterator[tuple[str, str]]:
    if finding.location is not None:
        yield "file", report.relative(finding.location.file)
        yield "line", str(finding.location.line)
    yield "title", f"{finding.code} {finding.name}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
