"""SARIF 2.1.0, for code scanning: a run for each checkpoint type, with the pages of the rules as help.

Paths are relative to the repository (``%SRCROOT%``, which the reader of the log knows), for GitHub resolves no others and
refuses a result without a place. Of ``partialFingerprints`` GitHub reads ``primaryLocationLineHash`` alone, so it holds
ddplint's own fingerprint too. A type that could not be checked has no run: an empty one would close its alerts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from ddplint import __version__, places
from ddplint.analysis import Location
from ddplint.checks import registry
from ddplint.checks.base import Check, Finding, Severity
from ddplint.places import Repository
from ddplint.report.model import Report, Result

ROOT = "%SRCROOT%"
LONGEST = 1024  # characters of a rule's description that GitHub shows

_LEVELS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEMS: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "recommendation"}


def render(report: Report) -> str:
    """``report`` as a SARIF log, indented; the same values in the same order on every run."""
    return json.dumps(document(report), indent=2)


def document(report: Report) -> dict[str, Any]:
    """``report`` as JSON-ready dictionaries and lists."""
    return {
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [_run(report, result) for result in report.results],
    }


def _run(report: Report, result: Result) -> dict[str, Any]:
    checks = [check for check in registry.all_checks() if result.codes is None or check.CODE in result.codes]
    title = report.title(result)
    home = places.repository(report.folder)
    prints = places.fingerprints(title, result.findings)
    codes = [check.CODE for check in checks]
    return {
        "tool": {
            "driver": {
                "name": "ddplint",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(check) for check in checks],
                "properties": {"torch": result.analysis.torch_version},
            }
        },
        "columnKind": "unicodeCodePoints",
        # GitHub's category is what comes before the last slash: each type keeps its own alerts.
        "automationDetails": {"id": f"ddplint/{title}/", "description": {"text": f"the parameters of {title}"}},
        "originalUriBaseIds": {ROOT: {"description": {"text": "the root of the repository"}}},
        "results": [
            _result(result, finding, fingerprint, codes, home)
            for finding, fingerprint in zip(result.findings, prints, strict=True)
        ],
    }


def _rule(check: Check) -> dict[str, Any]:
    page = registry.page(check)
    return {
        "id": check.CODE,
        "name": check.NAME,
        "shortDescription": {"text": registry.summary(check)[:LONGEST]},
        "fullDescription": {"text": " ".join(registry.section(check, "What it does").split())[:LONGEST]},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": _LEVELS[check.SEVERITY]},
        "properties": {
            "tags": ["pytorch", "distributed-data-parallel"],
            "problem.severity": _PROBLEMS[check.SEVERITY],
        },
    }


def _result(result: Result, finding: Finding, fingerprint: str, codes: list[str], home: Repository) -> dict[str, Any]:
    place = places.nearest(result.case, finding, home)
    related = home.own(places.entry_place(result.case, finding)) or home.own(places.rule_place(result.case))
    flow = [_step(where, sentence) for where, sentence in places.way(result.case, finding, home)]
    name = result.rules.name if result.rules else ""
    text = _plain("\n".join(_sentences(finding, place, home)))
    text += f"\nrule file: [{_plain(related.file)}](1)" if related else ""
    return {
        "ruleId": finding.code,
        **({"ruleIndex": codes.index(finding.code)} if finding.code in codes else {}),
        "level": _LEVELS[finding.severity],
        "message": {"text": text},
        "locations": [{"physicalLocation": _physical(place)}] if place else [],
        **({"relatedLocations": [{"id": 1, **_at(related, f"the rules of {name}")}]} if related else {}),
        **({"codeFlows": [{"threadFlows": [{"locations": flow}]}]} if flow else {}),
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint}:1", "ddplintFinding/v1": fingerprint},
        "properties": {"parameters": list(finding.parameters)},
    }


def _sentences(finding: Finding, shown: Location | None, home: Repository) -> Iterator[str]:
    yield finding.message
    yield f"fix: {finding.fix}"
    if finding.location is not None and home.own(finding.location) != shown:
        yield f"the place is outside of the repository: {tail(finding.location)}"


def tail(location: Location) -> str:
    """An installed file by its package, "transformers/models/x.py:7", for the folders above differ between machines."""
    parts = re.split(r"[\\/](?:site|dist)-packages[\\/]", location.file)
    return f"{parts[-1]}:{location.line}"


def _step(place: Location, sentence: str) -> dict[str, Any]:
    return {"location": _at(place, sentence), "importance": "essential"}


def _at(place: Location, sentence: str) -> dict[str, Any]:
    return {"physicalLocation": _physical(place), "message": {"text": _plain(sentence)}}


def _physical(place: Location) -> dict[str, Any]:
    region: dict[str, Any] = {"startLine": place.line}
    if place.columns is not None:  # from 0; SARIF counts from 1, and its end is the one after as well
        region |= {"startColumn": place.columns[0] + 1, "endColumn": place.columns[1] + 1}
    if place.text:
        region["snippet"] = {"text": place.text}
    uri = quote(place.file, errors="replace")
    return {"artifactLocation": {"uri": uri, "uriBaseId": ROOT}, "region": region}


def _plain(text: str) -> str:
    """``text`` without what a reader takes for a link, "[words](1)" (SARIF 2.1.0, 3.11.6: brackets are escaped)."""
    return re.sub(r"[\[\]\\]", r"\\\g<0>", text) if "](" in text else text
