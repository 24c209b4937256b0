"""The reports: one file a format, each with ``render(report) -> str``; adding a file adds a format."""

from __future__ import annotations

import importlib
import pkgutil

from ddplint.errors import DdplintError
from ddplint.report.model import Report, Result, Unchecked

__all__ = ["FORMATS", "Report", "Result", "Unchecked", "render"]

_MODULES = {name.rstrip("_"): name for _, name, _ in pkgutil.iter_modules(__path__) if name != "model"}

FORMATS: tuple[str, ...] = tuple(sorted(_MODULES))


def render(format: str, report: Report) -> str:
    """``report`` in ``format``, ending in a newline. Raises DdplintError for one that is not in FORMATS."""
    if format not in _MODULES:
        raise DdplintError(f"no such format {format!r}", where="--format", fix=f"one of {', '.join(FORMATS)}")
    module = importlib.import_module(f"{__name__}.{_MODULES[format]}")
    text: str = module.render(report)
    return text if text.endswith("\n") else text + "\n"
