"""Workflow commands: escaping, order and limit."""

from __future__ import annotations

from ddplint.analysis import Location
from ddplint.checks.base import Finding, Severity
from ddplint.report import Report, Result, Unchecked, github, render
from tests.made import analysis, line, rules, used


def finding(severity: Severity = "error", message: str = "message", location: Location | None = None) -> Finding:
    return Finding("DDP999", "a-name", severity, message, (), location, "what to do")


def rendered(*findings: Finding) -> list[str]:
    return rendered_report(Report((Result(analysis(used("a.w")), findings, rules()),), folder="/work/project"))


def rendered_report(report: Report) -> list[str]:
    return render("github", report).splitlines()


def test_a_command_has_level_place_title_and_message() -> None:
    assert rendered(finding(location=line(88))) == [
        "::error file=model.py,line=88,title=DDP999 a-name::hybrid: message%0Afix: what to do"
    ]


def test_without_a_place_the_command_is_about_the_rule_file() -> None:
    assert rendered(finding()) == [
        "::error file=rules/hybrid.toml,line=1,title=DDP999 a-name::hybrid: message%0Afix: what to do"
    ]


def test_without_a_place_in_the_repository_the_command_has_only_a_title() -> None:
    library = Location("/venv/lib/python3.12/site-packages/library/model.py", 88)
    bare = Result(analysis(used("a.w"), target="library.model:build"), (finding(location=library),))
    assert rendered_report(Report((bare,), folder="/work/project")) == [
        "::error title=DDP999 a-name::library.model:build: message%0Afix: what to do"
    ]


def test_levels_are_githubs() -> None:
    commands = rendered(finding("info"), finding("warning"), finding("error"))
    assert [command.split(" ")[0] for command in commands] == ["::error", "::warning", "::notice"]


def test_a_message_cannot_end_its_line_or_start_a_command() -> None:
    (command,) = rendered(finding(message="100 % of\r\n::error::a, b: c"))
    assert command.endswith("::hybrid: 100 %25 of%0D%0A::error::a, b: c%0Afix: what to do")


def test_a_property_cannot_start_another_one() -> None:
    (command,) = rendered(finding(location=Location("/work/project/a,line=1:%.py", 5)))
    assert command.startswith("::error file=a%2Cline=1%3A%25.py,line=5,title=")


def test_ten_annotations_of_a_level_and_a_line_about_the_rest() -> None:
    findings = [finding("warning", f"w{n}") for n in range(12)] + [finding("error", f"e{n}") for n in range(11)]
    *commands, last = rendered(*findings)
    assert [command.startswith("::error") for command in commands] == [True] * 10 + [False] * 10
    assert "e9" in commands[9]
    assert "left out: 1 error, 2 warnings" in last
    assert "the job's summary" in last
    assert not last.startswith("::")


def test_a_run_stays_under_the_annotations_of_a_job() -> None:
    severities: tuple[Severity, ...] = ("error", "warning", "info")
    commands = rendered(*[finding(severity, f"{n}") for severity in severities for n in range(40)])
    assert sum(command.startswith("::") for command in commands) == 3 * github.SHOWN <= 50


def test_a_message_is_as_long_as_the_runner_keeps_it() -> None:
    (command,) = rendered(finding(message="%" * 5000))
    message = command.rpartition("::")[2].replace("%25", "%")
    assert len(message) == github.LONGEST
    assert message.endswith("% …")


def test_what_could_not_be_checked_comes_first_and_counts() -> None:
    results = (Result(analysis(used("a.w")), tuple(finding(message=f"e{n}") for n in range(10)), rules()),)
    report = Report(results, folder="/work/project", unchecked=(Unchecked("c:mim", "build() raised\nX"),))
    first, *commands, last = rendered_report(report)
    assert first == "::error title=ddplint%3A c%3Amim::could not be checked: build() raised%0AX"
    assert len(commands) == 9
    assert "left out: 1 error" in last


def test_the_summary_has_every_finding() -> None:
    findings = tuple(finding(message=f"the message {n}.") for n in range(40))
    text = github.summary(Report((Result(analysis(used("a.w")), findings, rules()),), folder="/work/project"))
    assert all(f"the message {n}." in text for n in range(40))


def test_a_clean_result_is_said() -> None:
    assert rendered() == ["ddplint: hybrid: ok"]
