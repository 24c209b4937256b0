"""A few lines of a framework's own idiom as a target file, what ddplint finds there, and what a real backward leaves."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.rules import TargetSpec


@dataclass(frozen=True, slots=True)
class Script:
    """A user's file, imported once."""

    path: Path

    def load(self) -> Any:
        """The file as a module."""
        spec = importlib.util.spec_from_file_location("script", self.path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def analysed(self, factory: str, *, rehearse: bool = False, **spec: Any) -> Analysis:
        """What ddplint finds of "script.py:factory", as --target does."""
        target = TargetSpec(f"script.py:{factory}", base=str(self.path.parent), **{"from_module": True, **spec})
        with _imports_undone():
            return analyse(Request(target, rehearse=rehearse))

    def refused(self, factory: str, **spec: Any) -> str:
        """The one line that a target which can't be traced gets."""
        with pytest.raises(DdplintError) as caught:
            self.analysed(factory, **spec)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@contextmanager
def _imports_undone() -> Iterator[None]:
    path = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [n for n, m in sys.modules.items() if str(getattr(m, "__file__", "")).endswith("script.py")]:
            del sys.modules[name]


def script(folder: Path, source: str) -> Script:
    """``source`` as a file in ``folder``."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(source))
    return Script(path)


def never(analysis: Analysis) -> set[str]:
    """The trainable parameters that ddplint finds unused on every path."""
    return {p.name for p in analysis.parameters if p.trainable and p.usage == "never"}


def without_gradient(model: nn.Module) -> set[str]:
    """The trainable parameters that a backward has left without one."""
    return {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
