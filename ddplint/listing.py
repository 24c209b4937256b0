"""The project's checkpoint types: names, targets, rule files (``ddplint list``)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import TextIO

from ddplint.checking import Subject
from ddplint.config import Project
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.report import is_terminal
from ddplint.report.text import aligned
from ddplint.rules import RuleFile

FORMATS = ("text", "json")


def render(format: str, project: Project, subjects: Sequence[Subject | DdplintError], stream: TextIO) -> str:
    """The types in ``format``, one of FORMATS; a table where ``stream`` is a terminal. What is broken is left out."""
    files = [subject.rules for subject in subjects if isinstance(subject, Subject) and subject.rules is not None]
    if format == "json":
        document = {"rules": shown(project.rules_dir), "source": project.source, "types": [_entry(file) for file in files]}
        return json.dumps(document, indent=2) + "\n"
    if is_terminal(stream):
        terminal = importlib.import_module("ddplint.report.terminal")
        branches = {file.name: _leaves(file) for file in files}
        tree: str = terminal.tree(shown(project.rules_dir), branches, terminal.console(stream))
        return tree
    return "".join(f"{row}\n" for row in aligned((), [_row(file) for file in files]))


def _leaves(file: RuleFile) -> list[str]:
    described = [file.description] if file.description else []
    return [
        *described,
        f"target {file.target.factory}",
        f"{shown(file.path)}, {'1 entry' if len(file.unused) == 1 else f'{len(file.unused)} entries'}",
    ]


def _entry(file: RuleFile) -> dict[str, object]:
    return {
        "name": file.name,
        "description": file.description,
        "target": file.target.factory,
        "file": shown(file.path),
        "unused": len(file.unused),
    }


def _row(file: RuleFile) -> tuple[str, ...]:
    return (file.name, file.target.factory, shown(file.path), str(len(file.unused)), file.description)
