"""What installs ddplint and plugs it in elsewhere: pyproject.toml, pre-commit hook, CI script, README."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import ddplint

ROOT = Path(__file__).resolve().parent.parent
README_COMMANDS = re.findall(r"^python3 -m venv .+$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_stands_in_one_place(pyproject: dict[str, Any]) -> None:
    assert "version" not in pyproject["project"]
    assert pyproject["project"]["dynamic"] == ["version"]
    assert ROOT / pyproject["tool"]["hatch"]["version"]["path"] == Path(ddplint.__file__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", ddplint.__version__)


def test_the_wheel_carries_the_embedded_rules(pyproject: dict[str, Any]) -> None:
    wheel = pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "rules" in wheel["only-include"]
    assert wheel["sources"] == {"rules": "ddplint/_rules"}
    assert {path.stem for path in (ROOT / "rules").glob("*.toml")} == {"grover_base", "cmim", "hybrid"}


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "ddplint" / "py.typed").is_file()


def test_the_console_script_exists(pyproject: dict[str, Any]) -> None:
    module, _, function = pyproject["project"]["scripts"]["ddplint"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_the_command_line_side_imports_no_heavy_package() -> None:
    code = "import sys, ddplint.cli; print(sorted({'torch', 'networkx', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torchvision_is_never_asked_for(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    for requirements in (pyproject["project"]["dependencies"], *extras.values()):
        assert not [name for name in requirements if re.match(r"(timm|torchvision)\b", name)]


def test_the_pre_commit_hook_runs_once_and_in_the_users_environment() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "ddplint"
    assert hook["entry"].split()[:2] == ["ddplint", "check"]
    assert (hook["language"], hook["pass_filenames"], hook["require_serial"]) == ("system", False, True)


def test_ci_runs_what_readme_tells_people_to_run() -> None:
    ci = (ROOT / ".ci" / "run").read_text()
    _, tests = README_COMMANDS
    assert re.findall(r"torch==\S+", ci) == re.findall(r"torch==\S+", tests)
    assert "-e '.[test]'" in tests
    assert "-e '.[test,dev]'" in ci
    for command in ("--no-deps timm", "python -m pytest"):
        assert command in tests
        assert command in ci
    command = tests.rpartition("/")[2]
    assert command.startswith("python -m pytest")
    assert ci.rstrip().endswith(command)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_readme_has_two_commands_that_each_stand_alone() -> None:
    first, second = README_COMMANDS
    assert first.endswith("ddplint check --ckpt hybrid")
    for command in (first, second):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install torch==")
