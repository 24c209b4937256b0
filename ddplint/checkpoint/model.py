"""What is read of a checkpoint file: its tensors, where they are in it, and the optimizer states beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Format = Literal["safetensors", "zip", "legacy"]
Place = tuple[str | int, ...]  # keys and positions from the top of a file's value

DIMENSIONS = 64  # of a tensor at most; a bound against products that never end

# Bytes an element. A dtype is called as torch calls it.
ITEM_SIZES = {
    **dict.fromkeys(("bool", "uint8", "int8", "quint8", "qint8", "quint4x2", "quint2x4"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32", "qint32", "complex32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a state dict. ``bytes`` is its size in memory; ``storage`` the same for tensors that share it."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: str


@dataclass(frozen=True, slots=True)
class Optimizer:
    """A ``torch.optim`` state dict: its parameters' numbers, group by group, and the bytes of the state each has.

    ``names`` are the parameters' in the same order, where the optimizer was given named ones (``param_names``), else empty.
    ``shapes`` are of those whose state has a tensor of the parameter's own shape.
    """

    place: Place
    groups: tuple[tuple[int, ...], ...]
    state_bytes: Mapping[int, int]
    names: tuple[str, ...] = ()
    shapes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, ...]:
        """All numbers, in the order in which the optimizer was given the parameters."""
        return tuple(number for group in self.groups for number in group)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state dict of a file. ``place`` is where it was found in it; ``files`` are the file, or an index's shards."""

    path: Path
    format: Format
    tensors: tuple[Tensor, ...]
    place: Place
    optimizers: tuple[Optimizer, ...]
    files: tuple[Path, ...]
