"""The JSON report against its contract."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ddplint import __version__
from ddplint.analysis import Disagreement
from ddplint.checks.registry import run
from ddplint.report import Report, Result, render
from tests.made import SETTINGS, analysis, entry, frozen, line, rehearsal, rules, unused, used


def rendered(*results: Result) -> Any:
    return json.loads(render("json", Report(results, folder="/work/project")))


def hybrid() -> Result:
    result = Result(
        analysis(
            used("a.w", numel=100),
            unused("b.w", 5, cause="severed", numel=20),
            unused("c.w", 6, usage="sometimes", cause="conditional", evidence="possible"),
            frozen("d.w"),
            unused("e.w", 9, numel=30),
        ),
        rules=rules(entry("b")),
    )
    return Result(result.analysis, run(result.case), result.rules)


def test_every_key_of_the_contract_is_there_and_no_other() -> None:
    report = rendered(hybrid())
    assert list(report) == ["schema_version", "tool", "results"]
    assert report["schema_version"] == 1
    assert report["tool"] == {"name": "ddplint", "version": __version__, "torch": "2.13.0"}
    (result,) = report["results"]
    assert list(result) == ["ckpt", "target", "verdict", "counts", "unused", "findings", "trace", "rehearsal"]
    assert (result["ckpt"], result["target"]) == ("hybrid", "model.py:build")
    assert result["verdict"] == {"usage": "dynamic", "find_unused_parameters": None, "ddp": None}
    assert result["rehearsal"] is None


def test_counts() -> None:
    (result,) = rendered(hybrid())["results"]
    assert result["counts"] == {
        "trainable": 4,
        "frozen": 1,
        "always": 1,
        "sometimes": 1,
        "never": 2,
        "never_numel": 50,
        "never_bytes": 200,
    }


def test_unused_lists_each_trainable_parameter_that_is_not_always_used() -> None:
    (result,) = rendered(hybrid())["results"]
    assert [(u["name"], u["usage"], u["documented"]) for u in result["unused"]] == [
        ("b.w", "never", True),
        ("c.w", "sometimes", False),
        ("e.w", "never", False),
    ]
    assert result["unused"][1] == {
        "name": "c.w",
        "usage": "sometimes",
        "evidence": "possible",
        "cause": "conditional",
        "module": "c",
        "numel": 10,
        "bytes": 40,
        "documented": False,
        "location": {"file": "model.py", "line": 6},
        "why": "`c.w` has a reason",
    }


def test_findings() -> None:
    (result,) = rendered(hybrid())["results"]
    first, second = result["findings"]
    assert list(first) == ["code", "name", "severity", "message", "parameters", "location", "fix"]
    assert (first["code"], first["parameters"], first["location"]) == (
        "DDP101",
        ["e.w"],
        {"file": "model.py", "line": 9},
    )
    assert (second["code"], second["severity"]) == ("DDP203", "error")


def test_trace() -> None:
    (result,) = rendered(hybrid())["results"]
    assert result["trace"] == {
        "device": "meta",
        "paths": 1,
        "ranks": 1,
        "nodes": 12,
        "seconds": 0.123,
        "agrees_with_autograd": True,
        "adapter": None,
    }
    differing = analysis(used("a.w"), disagreements=[Disagreement("a.w", graph=False, autograd=True, backward=True)])
    (result,) = rendered(Result(differing))["results"]
    assert result["trace"]["agrees_with_autograd"] is False


@pytest.mark.parametrize(
    ("off", "on", "static", "flag"),
    [
        ("ok", "ok", "ok", "not-needed"),
        ("ok", "ready_twice", "ok", "not-needed"),
        ("reduction_error", "ok", "reduction_error", "needed"),
        ("reduction_error", "reduction_error", "ok", "insufficient"),
        ("hang", "hang", "hang", "insufficient"),
    ],
)
def test_the_verdict_is_what_the_rehearsal_did(off: str, on: str, static: str, flag: str) -> None:
    (result,) = rendered(Result(analysis(used("a.w"), rehearsal=rehearsal(off, on, static))))["results"]
    assert result["verdict"] == {
        "usage": "static",
        "find_unused_parameters": flag,
        "ddp": dict(zip(SETTINGS, (off, on, static), strict=True)),
    }
    assert result["rehearsal"] == {"device": "meta", "iterations": 3, "ranks": 2, "seconds": 0.046}


def test_the_place_of_a_conditional_one_is_what_decides() -> None:
    branch = unused(
        "a.w", usage="sometimes", cause="conditional", location=line(88, "if x.sum() > 0:"), why="unused when false"
    )
    (result,) = rendered(Result(analysis(branch)))["results"]
    assert result["unused"][0]["location"] == {"file": "model.py", "line": 88}
    assert result["unused"][0]["why"] == "unused when false"


def test_a_finding_has_its_own_severity() -> None:
    hidden = analysis(used("a.w", checkpoint=line(5)), rehearsal=rehearsal("ok", "ready_twice"))
    severities = []
    for declared in (None, rules(flag=False), rules(flag=True)):
        result = Result(hidden, rules=declared)
        (written,) = rendered(Result(hidden, run(result.case), declared))["results"]
        severities += [finding["severity"] for finding in written["findings"] if finding["code"] == "DDP205"]
    assert severities == ["warning", "info", "error"]


def test_a_bare_target_has_no_checkpoint_type_and_an_unknown_place_is_null() -> None:
    bare = Result(analysis(unused("a.w", location=None), target="/work/project/case.py:build"))
    (result,) = rendered(bare)["results"]
    assert (result["ckpt"], result["target"]) == (None, "case.py:build")
    assert result["unused"][0]["location"] is None
    assert result["unused"][0]["documented"] is False


def test_a_report_without_results_is_valid() -> None:
    assert rendered() == {
        "schema_version": 1,
        "tool": {"name": "ddplint", "version": __version__, "torch": None},
        "results": [],
    }


def test_the_text_is_ascii_whatever_is_in_it() -> None:
    strange = Result(analysis(unused("é.w", why="naïve \ud800")))
    assert render("json", Report((strange,), folder="/")).isascii()
