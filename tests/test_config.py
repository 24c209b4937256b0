"""Where a project's rule files are found, with which settings, and what is said where something is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddplint.config import Project, all_rule_files, embedded_rules, find_project, find_rule_file
from ddplint.errors import DdplintError

Write = Callable[..., Path]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, fenced in by a .git, as the working folder."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def rule(folder: Path, name: str, file: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (file or f"{name}.toml")
    path.write_text(f'[checkpoint]\nname = "{name}"\n[target]\nfactory = "models/a.py:build"\n')
    return path


def said(action: Callable[[], object]) -> str:
    with pytest.raises(DdplintError) as raised:
        action()
    line = str(raised.value)
    assert "\n" not in line
    return line


def test_an_empty_folder_has_the_embedded_rules(project: Path) -> None:
    found = find_project(project)
    assert found == Project(root=project, base=project, rules_dir=embedded_rules(), source="embedded")
    names = [file.name for file in all_rule_files(found)]
    assert names == sorted(names)
    assert {"cmim", "grover_base", "hybrid"} <= set(names)
    assert find_rule_file(found, "hybrid").target.base == str(project)


def test_embedded_rules_in_a_wheel_and_in_a_checkout(tmp_path: Path) -> None:
    package = tmp_path / "ddplint"
    package.mkdir()
    assert said(lambda: embedded_rules(package)).endswith("are missing; install ddplint again")
    rule(tmp_path / "rules", "other")
    assert said(lambda: embedded_rules(package)).endswith("are missing; install ddplint again")  # site-packages/rules
    (tmp_path / "pyproject.toml").touch()
    assert embedded_rules(package) == tmp_path / "rules"
    rule(package / "_rules", "other")
    assert embedded_rules(package) == package / "_rules"


def test_a_rules_folder_at_or_above_the_working_folder(project: Path) -> None:
    rule(project / "rules", "mine")
    deep = project / "a" / "b"
    deep.mkdir(parents=True)
    for working in (project, deep):
        found = find_project(working)
        assert (found.source, found.rules_dir, found.root) == ("folder", project / "rules", project)
        assert find_rule_file(found, "mine").target.base == str(project)
    rule(project / "a" / "rules", "nearer")
    assert find_project(deep).root == project / "a"


def test_the_search_for_a_rules_folder_ends_at_the_projects_root(project: Path) -> None:
    rule(project.parent / "rules", "foreign")
    assert find_project(project).source == "embedded"


@pytest.mark.parametrize("text", [None, "[tool]\nx = 1\n", "broken"])
def test_a_rules_folder_of_another_kind_is_passed_over(project: Path, text: str | None) -> None:
    (project / "rules").mkdir()
    (project / "rules" / "readme.txt").touch()
    if text is not None:
        (project / "rules" / "other.toml").write_text(text)
    assert find_project(project).source == "embedded"


@pytest.mark.parametrize(
    "text",
    ["[checkpoint]\nbroken", "[[unused]]\nparams = []\n", "  [ checkpoint ]\nname = \n", "checkpoint = 3"],
)
def test_a_faulty_rule_file_is_not_passed_over(project: Path, text: str) -> None:
    (project / "rules").mkdir()
    (project / "rules" / "mine.toml").write_text(text)
    found = find_project(project)
    assert found.source == "folder"
    assert said(lambda: all_rule_files(found)).startswith("rules/mine.toml:")
    assert said(lambda: find_rule_file(found, "mine")).startswith("rules/mine.toml:")


def test_settings_in_pyproject(project: Path) -> None:
    rule(project / "contracts", "mine")
    (project / "pyproject.toml").write_text(
        '[tool.ddplint]\nrules = "contracts"\ndevice = "cpu"\ntimeout = 9\nselect = ["DDP1", "DDP203"]\n'
        'ignore = ["DDP103"]\n'
    )
    sub = project / "sub"
    sub.mkdir()
    found = find_project(sub)
    assert found == Project(
        root=project,
        base=project,
        rules_dir=project / "contracts",
        source="pyproject",
        config=project / "pyproject.toml",
        device="cpu",
        timeout=9.0,
        select=("DDP1", "DDP203"),
        ignore=("DDP103",),
        given=frozenset({"rules", "device", "timeout", "select", "ignore"}),
    )


def test_ddplint_toml_has_the_same_keys_at_the_top(project: Path) -> None:
    rule(project / "rules", "mine")
    (project / "ddplint.toml").write_text('device = "meta"\n')
    found = find_project(project)
    assert (found.source, found.device, found.config) == ("folder", "meta", project / "ddplint.toml")


def test_a_configuration_without_rules_beside_it_keeps_the_embedded_ones(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.ddplint]\ntimeout = 1.5\n")
    sub = project / "sub"
    sub.mkdir()
    found = find_project(sub)
    assert (found.source, found.timeout, found.root, found.base) == ("embedded", 1.5, project, sub)


def test_the_option_wins_over_everything(project: Path) -> None:
    rule(project / "rules", "mine")
    rule(project / "other", "theirs")
    (project / "ddplint.toml").write_text('rules = "rules"\n')
    found = find_project(project, Path("other"))
    assert (found.source, found.rules_dir, found.base) == ("option", project / "other", project)
    assert [file.name for file in all_rule_files(found)] == ["theirs"]


def test_other_projects_files_are_left_alone(project: Path) -> None:
    (project / "pyproject.toml").write_text("this is broken, and not ours")
    assert find_project(project).source == "embedded"
    (project / "pyproject.toml").write_text('[project]\ndependencies = ["ddplint"]\n')
    assert find_project(project).config is None


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("ddplint.toml", "rules = 3\n", "ddplint.toml:1: rules: expected a folder, got the integer 3"),
        (
            "ddplint.toml",
            'rules = "none"\n',
            "ddplint.toml: rules: no such folder: none; name the folder of the rule files",
        ),
        (
            "ddplint.toml",
            'rules = "ddplint.toml"\n',
            "ddplint.toml: rules: not a folder: ddplint.toml; name the folder of the rule files",
        ),
        (
            "ddplint.toml",
            'rules = ".git"\n',
            "ddplint.toml: rules: no rule file (*.toml) in .git; `ddplint init` writes one",
        ),
        (
            "ddplint.toml",
            'devise = "cpu"\n',
            'ddplint.toml:1: devise: unknown key, did you mean "device"? (allowed: rules, device, timeout, select, ignore)',
        ),
        (
            "ddplint.toml",
            'device = "cuda"\ntimeout = -1\n',
            'ddplint.toml:1: device: expected one of "auto", "meta", "cpu", got "cuda"; line 2: '
            "timeout: expected a "
            "number of seconds above 0, got the integer -1",
        ),
        (
            "pyproject.toml",
            '[tool.ddplint]\nselect = "DDP1"\nignore = ["E501"]\n',
            "pyproject.toml:2: tool.ddplint.select: expected a list of rule codes, got the string "
            '"DDP1" (write '
            '["DDP101"]); line 3: tool.ddplint.ignore[0]: expected a rule code such as DDP101, or '
            "its beginning, got "
            '"E501"',
        ),
        (
            "pyproject.toml",
            "[tool]\nddplint = 3\n",
            "pyproject.toml:2: tool.ddplint: expected a table [tool.ddplint], got the integer 3",
        ),
        (
            "pyproject.toml",
            "[tool.ddplint]\nrules =\n",
            "pyproject.toml:2: broken TOML: Invalid value, column 8",
        ),
    ],
)
def test_what_is_said_about_a_wrong_configuration(project: Path, file: str, text: str, line: str) -> None:
    (project / file).write_text(text)
    assert said(lambda: find_project(project)) == line


def test_two_configurations_in_one_folder(project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.ddplint]\n")
    (project / "ddplint.toml").write_text("")
    assert said(lambda: find_project(project / "sub")).endswith(
        "pyproject.toml and ddplint.toml both configure ddplint; keep one of them"
    )


def test_a_wrong_option(project: Path) -> None:
    assert said(lambda: find_project(project, Path("none"))) == (
        "--rules: no such folder: none; name the folder of the rule files"
    )


def test_no_such_checkpoint_type(project: Path) -> None:
    for name in ("hybrid", "cmim"):
        rule(project / "rules", name)
    found = find_project(project)
    assert said(lambda: find_rule_file(found, "hybird")) == (
        'rules: no checkpoint type "hybird", did you mean "hybrid"? (there are: cmim, hybrid)'
    )
    assert said(lambda: find_rule_file(found, "x")) == 'rules: no checkpoint type "x" (there are: cmim, hybrid)'


def test_two_files_of_one_name(project: Path) -> None:
    rule(project / "rules", "hybrid")
    rule(project / "rules", "hybrid", "copy.toml")
    rule(project / "rules", "cmim")
    found = find_project(project)
    line = 'rules: copy.toml and hybrid.toml both name the checkpoint type "hybrid"; give each its own [checkpoint] name'
    assert said(lambda: find_rule_file(found, "cmim")) == line
    assert said(lambda: all_rule_files(found)) == line


def test_a_fault_in_another_file_is_no_reason_to_refuse_this_one(project: Path) -> None:
    rule(project / "rules", "hybrid")
    (project / "rules" / "other.toml").write_text("[checkpoint")
    found = find_project(project)
    assert find_rule_file(found, "hybrid").name == "hybrid"
    assert said(lambda: find_rule_file(found, "other")).startswith("rules/other.toml:1: broken TOML")
    assert said(lambda: all_rule_files(found)).startswith("rules/other.toml:1: broken TOML")


def test_editors_hidden_files_and_folders_are_no_rule_files(project: Path) -> None:
    rule(project / "rules", "hybrid")
    (project / "rules" / ".#hybrid.toml").write_text("junk")
    assert [file.name for file in all_rule_files(find_project(project))] == ["hybrid"]
    (project / "rules" / "a.toml").mkdir()
    line = said(lambda: all_rule_files(find_project(project)))
    assert line == "rules/a.toml: is a folder; expected a TOML file"


def test_rules_and_configuration_need_no_torch() -> None:
    modules = "config, decode, fields, globs, rules, schema, starter"
    heavy = "[m for m in ('torch', 'networkx', 'rich') if m in sys.modules]"
    code = f"import sys; from ddplint import {modules}; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
