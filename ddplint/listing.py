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
HEAD = ("checkpoint type", "target", "rule file", "entries", "description")


def render(format: str, project: Project, subjects: Sequence[Subject | DdplintError], stream: TextIO) -> str:
    """The types in ``format``, one of FORMATS; a table where ``stream`` is a terminal. What is broken is left out."""
    files = [subject.rules for subject in subjects if isinstance(subject, Subject) and subject.rules is not None]
    if format == "json":
        document = {"rules": shown(project.rules_dir), "source": project.source, "types": [_entry(file) for file in files]}
        return json.dumps(document, indent=2) + "\n"
    rows = [_row(file) for file in files]
    if is_terminal(stream):
        terminal = importlib.import_module("ddplint.report.terminal")
        table: str = terminal.table(HEAD, rows, terminal.console(stream))
        return table
    return "".join(f"{row}\n" for row in aligned((), rows))


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
