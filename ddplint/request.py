"""What is asked of a worker: one target and how to look at it. Plain data; no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from ddplint.rules import TargetSpec

Device = Literal["auto", "meta", "cpu"]


@dataclass(frozen=True, slots=True)
class Strip:
    """A checkpoint file to be written without some of its tensors (``ddplint.strip_worker``).

    ``draft`` is the file to write. ``place`` is where the state dict is in ``file``; ``keys`` go from it, and ``names`` are
    theirs in the model; ``renamed`` are all keys that load, with the names they get. ``optimizers`` are the places of
    optimizers' states, each with the numbers that go from it.
    """

    file: str
    draft: str
    format: str
    place: tuple[str | int, ...]
    keys: tuple[str, ...]
    names: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    optimizers: tuple[tuple[tuple[str | int, ...], tuple[int, ...]], ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Strip:
        """What ``dataclasses.asdict`` and JSON made of one."""
        return cls(**{key: _tuples(value) for key, value in data.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Request:
    """One target to analyse.

    ``documented`` holds the globs of every rule entry: frozen parameters that they match are traced as if trainable.
    ``cpu_limit`` is the size of the weights, in bytes, up to which real CPU tensors are used where meta cannot go on.
    ``explain`` names one parameter whose way through the graph is wanted (``ddplint why``).
    """

    target: TargetSpec
    documented: tuple[str, ...] = ()
    device: Device = "auto"
    cpu_limit: int = 2 * 1024**3
    paths: int | None = None
    ranks: int = 2
    steps: int = 3
    explain: str | None = None
    rehearse: bool = True  # ask PyTorch's own DDP as well (``ddplint why`` does not need it)
    strip: Strip | None = None

    def to_json(self) -> dict[str, Any]:
        """This request as JSON-ready dictionaries and lists."""
        return {**dataclasses.asdict(self), "target": self.target.to_json(), "documented": list(self.documented)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Request:
        """The request that ``to_json`` wrote."""
        return cls(
            **{
                **data,
                "target": TargetSpec.from_json(data["target"]),
                "documented": tuple(data["documented"]),
                "strip": Strip.from_json(data["strip"]) if data.get("strip") else None,
            }
        )
