"""The reports: one file a format, each with ``render(report) -> str``; adding a file adds a format."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from ddplint.errors import DdplintError
from ddplint.report.model import Report, Result, Unchecked

__all__ = ["FORMATS", "Report", "Result", "Unchecked", "ready", "render"]

_MODULES = {name.rstrip("_"): name for _, name, _ in pkgutil.iter_modules(__path__) if name != "model"}

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


def _module(format: str) -> ModuleType:
    if format not in _MODULES:
        raise DdplintError(f"no such format {format!r}", where="--format", fix=f"one of {', '.join(FORMATS)}")
    return importlib.import_module(f"{__name__}.{_MODULES[format]}")
