"""``ddplint list``: as columns, as JSON, as a tree."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from ddplint.checking import Subject
from ddplint.config import Project
from ddplint.errors import DdplintError
from ddplint.listing import render
from tests.made import entry, rules

FILE = rules(entry("vocab"), path="rules/hybrid.toml")
SUBJECTS = (Subject(FILE.target, FILE), DdplintError("broken TOML"))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return Project(tmp_path, tmp_path, tmp_path / "rules", "folder")


def test_text_is_a_line_a_type_without_those_that_are_broken(project: Project) -> None:
    assert render("text", project, SUBJECTS, io.StringIO()) == "hybrid  model.py:build  rules/hybrid.toml  1\n"


def test_json(project: Project) -> None:
    found = json.loads(render("json", project, SUBJECTS, io.StringIO()))
    (one,) = found["types"]
    assert (found["rules"], found["source"]) == ("rules", "folder")
    assert one == {"name": "hybrid", "description": "", "target": "model.py:build", "file": "rules/hybrid.toml", "unused": 1}


def test_a_terminal_gets_a_tree(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    text = render("text", project, SUBJECTS, stream)
    for part in ("hybrid", "├── ", "target model.py:build", "└── ", "rules/hybrid.toml, 1 entry"):
        assert part in text
