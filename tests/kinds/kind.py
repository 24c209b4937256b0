"""A kind of model: one way in which gradient does or does not arrive, small enough to read at once.

A kind says what is expected in its own source. A line that ends in ``# <- severed: dead`` is the place that explains why
no parameter of ``dead`` gets a gradient, and the cause; a parameter that no such line names gets one. The tests compare
that with a real run, and ddplint with both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ddplint.rules import TargetSpec, matches

_MARK = re.compile(r"# <- (?P<cause>[a-z-]+): (?P<names>[\w.*, ]+)$")


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a marked line says: ``names`` are globs over the parameters that get no gradient because of it."""

    line: int
    cause: str
    names: tuple[str, ...]

    def is_about(self, name: str) -> bool:
        return any(matches(glob, name) for glob in self.names)


class Kind(nn.Module):
    """The model, and beside it what a target module has: ``inputs``, ``loss`` or ``step``."""

    step: ClassVar[Callable[[Any], Tensor] | None] = None
    replay: ClassVar[str] = ""  # why the recorded graph can't be run again, if it can't
    never_from_outputs: ClassVar[tuple[str, ...] | None] = None  # globs, where not the same as never

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(2, 4),), {}

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output.float().square().mean()  # type: ignore[no-any-return]

    @classmethod
    def plainly(cls) -> AbstractContextManager[Any]:
        """What a run without ddplint needs around it on a machine without GPUs."""
        return nullcontext()

    @classmethod
    def spec(cls) -> TargetSpec:
        name = f"{cls.__module__}:{cls.__name__}"
        if cls.step is not None:
            return TargetSpec(factory=name, step=f"{name}.step")
        return TargetSpec(factory=name, inputs=f"{name}.inputs", loss=f"{name}.loss")

    @classmethod
    def explanations(cls) -> tuple[Explanation, ...]:
        return _explanations(cls)


_found: dict[type[Kind], tuple[Explanation, ...]] = {}


def _explanations(kind: type[Kind]) -> tuple[Explanation, ...]:
    """The marked lines of a kind's source, looked up once: ``inspect`` parses the whole file for it."""
    if kind not in _found:
        source, first = inspect.getsourcelines(kind)
        marks = ((number, _MARK.search(text.rstrip())) for number, text in enumerate(source, first))
        _found[kind] = tuple(
            Explanation(number, mark["cause"], tuple(mark["names"].replace(" ", "").split(",")))
            for number, mark in marks
            if mark is not None
        )
    return _found[kind]


class One(Kind):
    """A kind all of whose parameters get a gradient: ``live``, 4 features to 4."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)


class Two(One):
    """A kind with a second layer of the same shape, ``dead``, that gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.dead = nn.Linear(4, 4)


def kinds_in(*modules: ModuleType) -> Iterator[type[Kind]]:
    """The kinds that ``modules`` define, in the order of their source."""
    for module in modules:
        for value in list(vars(module).values()):  # a warning writes into it
            if not (isinstance(value, type) and issubclass(value, Kind) and value.__module__ == module.__name__):
                continue
            if value.forward is not nn.Module.forward or value.step is not None:  # else a base of others
                yield value
