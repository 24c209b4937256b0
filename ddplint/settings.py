"""The settings in force, and where each one is from (``ddplint check --show-settings``)."""

from __future__ import annotations

from collections.abc import Iterator

from ddplint.checking import Options
from ddplint.config import Project
from ddplint.fields import shown
from ddplint.report.text import aligned

_FOUND_BY = {
    "option": "--rules",
    "pyproject": "the configuration's key rules",
    "folder": "the nearest folder of that name",
    "embedded": "shipped with ddplint: the project has none",
}
_CONFIGURED = ("device", "timeout", "select", "ignore")
_DEFAULTS = Options()


def shown_settings(project: Project, options: Options) -> str:
    """A line for each setting: its name, its value, and whether the command line, the configuration or neither says so."""
    config = shown(project.config) if project.config else "none found"
    rows = [
        ("project", shown(project.root), ""),
        ("configuration", config, ""),
        ("rules", shown(project.rules_dir), _FOUND_BY[project.source]),
        *_rows(project, options),
    ]
    return "".join(f"{row}\n" for row in aligned((), rows))


def _rows(project: Project, options: Options) -> Iterator[tuple[str, str, str]]:
    for name in (*_CONFIGURED, "paths", "ranks", "steps"):
        value, default = getattr(options, name), getattr(_DEFAULTS, name)
        if name in _CONFIGURED and value == getattr(project, name):
            origin = shown(project.config) if project.config and name in project.given else "default"
        else:
            origin = "default" if value == default else "command line"
        yield name, _value(name, value), origin


def _value(name: str, value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or ("every rule" if name == "select" else "none")
    if name == "timeout":
        return f"{value:g} s"
    return "all, up to the budget" if value is None else str(value)
