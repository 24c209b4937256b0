"""What all formats ask of a result."""

from __future__ import annotations

import pytest

from ddplint.analysis import Parameter
from ddplint.checks.base import Finding, Severity
from ddplint.report import Report, Result
from tests.made import analysis, frozen, rehearsal, rules, unused, used


@pytest.mark.parametrize(
    ("parameters", "complete", "verdict"),
    [
        ((used("a.w"), unused("b.w")), True, "static"),
        ((used("a.w"), unused("b.w", usage="sometimes")), True, "dynamic"),
        ((used("a.w"), unused("b.w", usage="sometimes", trainable=False)), True, "static"),
        ((used("a.w"), unused("b.w", usage="sometimes")), False, "incomplete"),
    ],
)
def test_usage(parameters: tuple[Parameter, ...], complete: bool, verdict: str) -> None:
    assert Result(analysis(*parameters, complete=complete)).usage == verdict


@pytest.mark.parametrize(("severity", "fails"), [("error", True), ("warning", True), ("info", False)])
def test_a_run_fails_by_errors_and_warnings(severity: Severity, fails: bool) -> None:
    finding = Finding("DDP999", "name", severity, "message", (), None, "fix")
    report = Report((Result(analysis()), Result(analysis(), (finding,))))
    assert report.fails is fails
    assert not Report(report.results[:1]).fails


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/work/project/src/model.py", "src/model.py"),
        ("/work/other/model.py", "/work/other/model.py"),
        ("/work/project2/model.py", "/work/project2/model.py"),
        ("src/model.py", "src/model.py"),
        ("<string>", "<string>"),
    ],
)
def test_paths_are_relative_to_the_working_folder(file: str, shown: str) -> None:
    assert Report((), folder="/work/project").relative(file) == shown


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("/work/project/case.py:build", "case.py:build"),
        ("package.module:build", "package.module:build"),
        ("case.py:build", "case.py:build"),
    ],
)
def test_title_is_the_checkpoint_type_or_the_target(target: str, shown: str) -> None:
    report = Report((), folder="/work/project")
    assert report.title(Result(analysis(target=target))) == shown
    assert report.title(Result(analysis(target=target), rules=rules())) == "hybrid"


def test_counts_are_about_what_is_trainable() -> None:
    result = Result(analysis(used("a.w"), unused("b.w", trainable=False), frozen("c.w"), unused("d.w")))
    assert [p.name for p in result.trainable] == ["a.w", "d.w"]
    assert [p.name for p in result.with_usage("never")] == ["d.w"]


def test_what_was_not_rehearsed_is_not_known() -> None:
    assert Result(analysis()).flag is None
    assert Result(analysis()).frozen is None
    assert Result(analysis(rehearsal=rehearsal())).frozen is None
    assert Result(analysis(rehearsal=rehearsal(frozen="hang"))).frozen == "hang"
