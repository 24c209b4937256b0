"""What is asked for, and the files that are written; no trace is run."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ddplint import checking, worker
from ddplint.analysis import Analysis
from ddplint.checking import Options, Subject, add_step_summary, bare_target, chosen, only, replace_file
from ddplint.config import find_project
from ddplint.errors import DdplintError
from ddplint.report import Report, Result, github
from ddplint.request import Request
from ddplint.rules import load_rule_file
from tests.made import analysis, unused, used

RULES = """
[checkpoint]
name = "{name}"
[target]
factory = "model.py:build"
[[unused]]
params = ["spare", "head.*"]
reason = "for later"
action = "allow"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    return tmp_path


def write(project: Path, *names: str, text: str = RULES) -> None:
    for name in names:
        (project / "rules" / f"{name}.toml").write_text(text.format(name=name))


def titles(subjects: tuple[Subject | DdplintError, ...]) -> list[str]:
    return [subject.title if isinstance(subject, Subject) else str(subject) for subject in subjects]


@pytest.mark.parametrize(
    ("text", "factory"),
    [
        ("model.py", "model.py:build"),
        ("model.py:small", "model.py:small"),
        ("pkg.targets", "pkg.targets:build"),
        ("pkg.targets:Net.small", "pkg.targets:Net.small"),
        ("sub/model.py:", "sub/model.py:build"),
    ],
)
def test_a_bare_target_has_a_default_factory(text: str, factory: str, tmp_path: Path) -> None:
    spec = bare_target(text, tmp_path)
    assert (spec.factory, spec.base, spec.from_module) == (factory, str(tmp_path), True)


def test_the_only_type_needs_no_name(project: Path) -> None:
    write(project, "small")
    assert titles(chosen(find_project(project), [], every=False)) == ["small"]


def test_several_types_are_listed_where_none_is_named(project: Path) -> None:
    write(project, "small", "big")
    with pytest.raises(DdplintError) as caught:
        chosen(find_project(project), [], every=False)
    assert str(caught.value) == ("rules: there are 2 checkpoint types; name one with --ckpt, or take --all: big, small")


def test_named_types_come_once_and_in_the_order_given(project: Path) -> None:
    write(project, "a", "b", "c")
    assert titles(chosen(find_project(project), ["c", "a", "c"], every=False)) == ["c", "a"]


def test_a_type_that_is_not_there_is_an_error_beside_the_others(project: Path) -> None:
    write(project, "small", "big")
    good, bad = titles(chosen(find_project(project), ["small", "bgi"], every=False))
    assert good == "small"
    assert bad.startswith('rules: no checkpoint type "bgi", did you mean "big"?')


def test_a_broken_file_does_not_hide_the_other_types(project: Path) -> None:
    write(project, "b", "a")
    write(project, "broken", text='[checkpoint]\nname = "broken\n')
    *good, bad = titles(chosen(find_project(project), [], every=True))
    assert good == ["a", "b"]
    assert bad.startswith("rules/broken.toml:2: broken TOML")


def test_two_files_of_one_name_are_an_error_each(project: Path) -> None:
    write(project, "a", "b")
    (project / "rules" / "twin.toml").write_text(RULES.format(name="b"))
    subjects = titles(chosen(find_project(project), [], every=True))
    assert all("b.toml and twin.toml both name the checkpoint type" in text for text in subjects)


def test_the_error_that_stands_for_a_type_is_raised_when_it_is_needed() -> None:
    error = DdplintError("no such type")
    for use in (lambda: only((error,)), lambda: checking.checked(error, Options())):
        with pytest.raises(DdplintError, match="no such type"):
            use()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Request, dict[str, Any]]]:
    """Every request that reaches the worker, which finds one unused parameter."""
    seen: list[tuple[Request, dict[str, Any]]] = []

    def run(request: Request, **options: Any) -> Analysis:
        seen.append((request, options))
        return analysis(used("body.weight"), unused("spare.weight", aliases=("extra.weight",)))

    monkeypatch.setattr(worker, "run", run)
    return seen


def test_a_request_says_what_was_asked(project: Path, requests: list[tuple[Request, dict[str, Any]]]) -> None:
    write(project, "small")
    subject = only(chosen(find_project(project), ["small"], every=False))
    options = Options(device="cpu", paths=7, ranks=4, steps=5, timeout=9.0, verbose=True)
    result = checking.checked(subject, options)
    ((request, given),) = requests
    assert request == Request(
        subject.target, documented=("spare", "head.*"), device="cpu", paths=7, ranks=4, steps=5, rehearse=True
    )
    assert given == {"timeout": 9.0, "verbose": True, "quiet": False, "live": None}
    assert [finding.code for finding in result.findings] == ["DDP103"]
    assert result.rules == subject.rules


def test_findings_are_selected_and_ignored(project: Path, requests: list[Any]) -> None:
    subject = Subject(bare_target("model.py", project))
    for options, codes in (
        (Options(), ["DDP101"]),
        (Options(select=("DDP2",)), []),
        (Options(ignore=("DDP101",)), []),
    ):
        assert [finding.code for finding in checking.checked(subject, options).findings] == codes


def test_an_unknown_code_is_refused_before_a_trace(requests: list[Any]) -> None:
    checking.refuse_unknown_codes(Options(select=("DDP1", "DDP902"), ignore=("stale-rule",)))
    with pytest.raises(DdplintError, match=r"--ignore: no rule 'DDP777'"):
        checking.refuse_unknown_codes(Options(ignore=("DDP777",)))
    assert requests == []


def test_a_full_name_is_explained_in_one_trace_another_in_two(
    project: Path, requests: list[tuple[Request, dict[str, Any]]]
) -> None:
    subject = Subject(bare_target("model.py", project))
    for name, asked in (("spare.weight", ["spare.weight"]), ("extra.weight", ["extra.weight", "spare.weight"])):
        requests.clear()
        assert checking.explained(subject, name, Options())[0].name == "spare.weight"
        assert [request.explain for request, _ in requests] == asked
        assert not any(request.rehearse for request, _ in requests)


@pytest.mark.usefixtures("requests")
def test_a_starter_file_is_made_where_the_project_looks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()
    inner = tmp_path / "models"
    inner.mkdir()
    (inner / "net.py").write_text("def build(): ...\ndef inputs(): ...\n")
    monkeypatch.chdir(inner)
    path, _ = checking.started(find_project(inner), "net.py", None, None, Options())
    assert path == str(tmp_path / "rules" / "net.toml")
    project = find_project(inner)
    rules = load_rule_file(Path(path), project.base)
    assert rules.name == "net"
    assert rules.target.factory == "models/net.py:build"
    assert rules.target.inputs == "models/net.py:inputs"
    assert [entry.params for entry in rules.unused] == [("spare.**",)]
    assert titles(chosen(project, [], every=False)) == ["net"]


@pytest.mark.parametrize(
    ("name", "output", "error"),
    [
        ("small", None, "rules/small.toml: exists already; "),
        ("small", "other.toml", "--ckpt: the type small is in rules/small.toml already; "),
        ("a/b", None, "--ckpt: expected a name without "),
        ("new", "nowhere/new.toml", "nowhere: no such folder; "),
    ],
)
def test_a_starter_file_that_could_not_be_used_is_refused_before_a_trace(
    name: str, output: str | None, error: str, project: Path, requests: list[Any]
) -> None:
    write(project, "small")
    with pytest.raises(DdplintError) as caught:
        checking.started(find_project(project), "net.py", name, Path(output) if output else None, Options())
    assert str(caught.value).startswith(error)
    assert requests == []
    assert [path.name for path in project.rglob("*.toml")] == ["small.toml"]


def test_a_target_that_no_rule_file_can_name_is_refused(project: Path, requests: list[Any]) -> None:
    with pytest.raises(DdplintError, match=r'^--target: expected "module:callable" or '):
        checking.started(find_project(project), "my-package:build", "new", None, Options())
    assert requests == []


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "report.txt"
    replace_file(file, "first\n")
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()
    file.chmod(0o640)
    replace_file(file, "second \ud800\n")
    assert file.read_text() == "second \\ud800\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("report.txt")
    replace_file(tmp_path / "link", "text\n")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "report.txt").read_text() == "text\n"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    replace_file(pipe, "text\n")
    reader.join(5)
    assert read == ["text\n"]
    assert pipe.is_fifo()


def test_a_file_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DdplintError) as caught:
        replace_file(tmp_path / "folder", "text\n")
    assert str(caught.value).startswith(f"{tmp_path}/folder: can't be written: ")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


REPORT = Report((Result(analysis(used("a.w"))),), folder="/work/project")


def test_a_step_of_github_actions_gets_a_summary_behind_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "summary.md"
    file.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(file))
    assert add_step_summary("github", REPORT) == ()
    assert file.read_text() == "before\n" + github.summary(REPORT)


@pytest.mark.parametrize(("format", "variable"), [("sarif", "summary.md"), ("github", "")])
def test_there_is_no_summary_for_other_formats_or_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, variable: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", variable)
    assert add_step_summary(format, REPORT) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_summary_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    (sentence,) = add_step_summary("github", REPORT)
    assert sentence == f"{tmp_path}: the job's summary can't be written: Is a directory; see the report itself"
