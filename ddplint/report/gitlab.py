"""GitLab's code quality report: a list of issues, shown in the merge request.

The keys, the names of the severities and that a fingerprint is unique are from GitLab's documentation,
doc/ci/testing/code_quality.md, the table under "Implement a custom tool" (later "Code Quality report format").
"""

from __future__ import annotations

import json
from typing import Any

from ddplint import places
from ddplint.analysis import Location
from ddplint.checks.base import Finding, Severity
from ddplint.report.model import Report, Result

_SEVERITIES: dict[Severity, str] = {"error": "critical", "warning": "minor", "info": "info"}


def render(report: Report) -> str:
    """``report`` as a JSON array, empty if there is nothing to say."""
    return json.dumps([issue for result in report.results for issue in _issues(report, result)], indent=2)


def _issues(report: Report, result: Result) -> list[dict[str, Any]]:
    prints = places.fingerprints(report.title(result), result.findings)
    pairs = zip(result.findings, prints, strict=True)
    return [_issue(report, result, finding, fingerprint) for finding, fingerprint in pairs]


def _issue(report: Report, result: Result, finding: Finding, fingerprint: str) -> dict[str, Any]:
    place = places.nearest(result.case, finding, places.repository(report.folder)) or _target(report, result)
    sentence = finding.fix.partition("\n")[0].removesuffix(":")
    return {
        "description": f"{report.title(result)}: {finding.code} {finding.name}: {finding.message}; fix: {sentence}",
        "check_name": finding.code,
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[finding.severity],
        "location": {"path": place.file, "lines": {"begin": place.line}},
    }


def _target(report: Report, result: Result) -> Location:
    """The target's own name as a path: GitLab wants one, and nothing of this target is in the repository."""
    module = report.target(result).rpartition(":")[0]
    return Location(module if module.endswith(".py") else f"{module.replace('.', '/')}.py", 1)
