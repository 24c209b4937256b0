"""GitLab's report against a schema written from its documentation."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from ddplint.analysis import Location
from ddplint.checks import registry
from ddplint.checks.base import Finding, Severity
from ddplint.report import Report, Result, render
from tests.made import analysis, entry, line, rules, unused, used

# gitlab-org/gitlab, doc/ci/testing/code_quality.md, the table under "Implement a custom tool" (later "Code Quality report
# format"): an array of objects with these keys, the names of the severities, a relative path.
SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["description", "check_name", "fingerprint", "location", "severity"],
        "properties": {
            "description": {"type": "string", "minLength": 1},
            "check_name": {"type": "string", "minLength": 1},
            "fingerprint": {"type": "string", "minLength": 1},
            "severity": {"enum": ["info", "minor", "major", "critical", "blocker"]},
            "location": {
                "type": "object",
                "required": ["path", "lines"],
                "properties": {
                    "path": {"type": "string", "pattern": "^(?!/|\\./)."},
                    "lines": {
                        "type": "object",
                        "required": ["begin"],
                        "properties": {"begin": {"type": "integer", "minimum": 1}},
                    },
                },
            },
        },
    },
}
CODES = ("DDP101", "DDP103", "DDP201")
LIBRARY = Location("/venv/lib/python3.12/site-packages/library/model.py", 88)


def issues(*results: Result) -> Any:
    found = json.loads(render("gitlab", Report(results, folder="/work/project")))
    jsonschema.validate(found, SCHEMA)
    return found


def hybrid() -> Result:
    made = Result(analysis(used("a.w"), unused("b.w", 5, cause="severed"), unused("c.w", 6)), rules=rules(entry("gone")))
    return Result(made.analysis, registry.run(made.case, CODES), made.rules)


def test_an_issue_for_each_finding() -> None:
    found = issues(hybrid())
    assert [(issue["check_name"], issue["severity"], issue["location"]) for issue in found] == [
        ("DDP101", "critical", {"path": "model.py", "lines": {"begin": 5}}),
        ("DDP101", "critical", {"path": "model.py", "lines": {"begin": 6}}),
        ("DDP103", "critical", {"path": "rules/hybrid.toml", "lines": {"begin": 12}}),
        ("DDP201", "minor", {"path": "model.py", "lines": {"begin": 5}}),
    ]


def test_a_description_is_one_line_with_the_type_and_what_to_do() -> None:
    for issue, finding in zip(issues(hybrid()), hybrid().findings, strict=True):
        assert issue["description"].startswith(f"hybrid: {finding.code} {finding.name}: {finding.message}; fix: ")
        assert "\n" not in issue["description"]


def test_fingerprints_are_unique_over_all_types() -> None:
    bare = Result(hybrid().analysis, registry.run(Result(hybrid().analysis).case, CODES))
    prints = [issue["fingerprint"] for issue in issues(hybrid(), bare)]
    assert len(set(prints)) == len(prints) == 7


@pytest.mark.parametrize(("severity", "name"), [("error", "critical"), ("warning", "minor"), ("info", "info")])
def test_severities(severity: Severity, name: str) -> None:
    finding = Finding("DDP101", "name", severity, "message", (), line(3), "fix")
    (issue,) = issues(Result(analysis(), (finding,)))
    assert issue["severity"] == name


@pytest.mark.parametrize(("target", "path"), [("library.model:build", "library/model.py"), ("gone.py:build", "gone.py")])
def test_an_issue_without_a_place_in_the_repository_is_at_the_target(target: str, path: str) -> None:
    far = Result(analysis(unused("a.w", location=LIBRARY), target=target))
    (issue,) = issues(Result(far.analysis, registry.run(far.case, CODES)))
    assert issue["location"] == {"path": path, "lines": {"begin": 1}}


def test_nothing_to_say_is_an_empty_list() -> None:
    assert issues(Result(analysis(used("a.w")))) == []
