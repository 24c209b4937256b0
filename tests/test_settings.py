"""``--show-settings``: each value, and who says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplint.checking import Options
from ddplint.config import Project
from ddplint.settings import shown_settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    config, given = tmp_path / "pyproject.toml", frozenset({"rules", "timeout", "ignore"})
    return Project(
        tmp_path, tmp_path, tmp_path / "contracts", "pyproject", config, timeout=9.0, ignore=("DDP3",), given=given
    )


def said(project: Project, options: Options) -> dict[str, str]:
    rows = shown_settings(project, options).splitlines()
    return {row.split()[0]: " ".join(row.split()[1:]) for row in rows}


def test_each_setting_says_where_it_is_from(project: Project) -> None:
    assert said(project, Options(timeout=9.0, ignore=("DDP3",), select=("DDP1", "DDP2"), paths=7)) == {
        "project": ".",
        "configuration": "pyproject.toml",
        "rules": "contracts the configuration's key rules",
        "device": "auto default",
        "timeout": "9 s pyproject.toml",
        "select": "DDP1, DDP2 command line",
        "ignore": "DDP3 pyproject.toml",
        "paths": "7 command line",
        "ranks": "2 default",
        "steps": "3 default",
    }


def test_the_command_line_goes_before_the_configuration(project: Project) -> None:
    assert said(project, Options(timeout=2.5, ignore=("DDP4",)))["timeout"] == "2.5 s command line"


def test_without_a_configuration_all_is_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = said(Project(tmp_path, tmp_path, tmp_path / "rules", "folder"), Options())
    assert found["configuration"] == "none found"
    assert {found[name] for name in ("device", "paths")} == {"auto default", "all, up to the budget default"}
    assert found["rules"] == "rules the nearest folder of that name"
