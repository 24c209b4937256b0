"""The reports: one file a format, each with ``render(report) -> str``; adding a file adds a format."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Mapping
from types import ModuleType
from typing import TextIO

from ddplint.errors import DdplintError
from ddplint.report.model import EVERYTHING, Report, Result, Unchecked, View

__all__ = ["FORMATS", "Report", "Result", "Unchecked", "View", "for_a_person", "is_terminal", "ready", "render"]

_PARTS = ("details", "model", "terminal")  # of the reports, and no format
_MODULES = {name.rstrip("_"): name for _, name, _ in pkgutil.iter_modules(__path__) if name not in _PARTS}

FORMATS: tuple[str, ...] = tuple(sorted(_MODULES))


def ready(format: str) -> None:
    """Raise DdplintError if ``format`` needs what is not installed, before a trace is waited for."""
    check = getattr(_module(format), "ready", None)
    if check is not None:
        check()


def render(format: str, report: Report) -> str:
    """``report`` in ``format``, ending in a newline. Raises DdplintError for one that is not in FORMATS."""
    text: str = _module(format).render(report)
    return text if text.endswith("\n") else text + "\n"


def for_a_person(report: Report, view: View = EVERYTHING, stream: TextIO | None = None) -> str:
    """The text report as ``view`` wants it, laid out for ``stream`` if that is a terminal. "" if there is nothing to say."""
    if stream is not None and is_terminal(stream):
        terminal = importlib.import_module(f"{__name__}.terminal")  # rich, which plain text does not pay for
        laid_out: str = terminal.render(report, view, terminal.console(stream))
        return laid_out
    text: str = _module("text").render(report, view=view)
    return f"{text}\n" if text or not view.quiet else ""


def is_terminal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether ``stream`` can show colours and lines: a terminal that is not dumb, or what FORCE_COLOR says is one."""
    if environment.get("TERM", "").lower() in ("dumb", "unknown"):
        return False
    return stream.isatty() or bool(environment.get("FORCE_COLOR") and not environment.get("NO_COLOR"))


def _module(format: str) -> ModuleType:
    if format not in _MODULES:
        raise DdplintError(f"no such format {format!r}", where="--format", fix=f"one of {', '.join(FORMATS)}")
    return importlib.import_module(f"{__name__}.{_MODULES[format]}")
