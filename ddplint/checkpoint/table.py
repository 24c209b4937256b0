"""A checkpoint file held against the model that it is loaded into: what each tensor becomes there."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ddplint.analysis import Analysis, Buffer, Parameter
from ddplint.checkpoint.model import Checkpoint, Optimizer, Tensor
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.globs import matching
from ddplint.rules import RuleFile

Status = Literal["loaded", "dropped", "mismatched", "fresh"]
# What wrappers put in front of every name: DistributedDataParallel (torch/nn/parallel/distributed.py) and torch.compile
# (torch/_dynamo/eval_frame.py).
WRAPPERS = ("module.", "_orig_mod.")
_WRAPPED = 4  # times at most


@dataclass(frozen=True, slots=True)
class Row:
    """One tensor of the file or the model. ``key`` is its name in the file, ``name`` in the model, "" where it has none.

    ``shape``, ``dtype`` and ``bytes`` are the file's, of a fresh one the model's. ``dead``: it fills a parameter that no
    path gives a gradient.
    """

    key: str
    name: str
    status: Status
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    storage: str = ""  # the same for tensors of the file that share it
    wanted: tuple[int, ...] | None = None  # the model's shape, where it is another
    dead: bool = False

    @property
    def renamed(self) -> bool:
        """Whether the loader gives it another name."""
        return bool(self.key and self.name) and self.key != self.name


@dataclass(frozen=True, slots=True)
class Stored:
    """A checkpoint file and a model. ``prefix`` stood before every name of the file, and is left out.

    ``state_bytes`` is what the optimizers' states in the file hold for the dead parameters; None where they can't be told
    apart, for want of a parameter's name in an optimizer's state.
    """

    file: str
    rows: tuple[Row, ...]
    prefix: str = ""
    optimizers: int = 0
    state_bytes: int | None = None

    def of(self, status: Status) -> tuple[Row, ...]:
        """The rows of one status, the file's order first."""
        return tuple(row for row in self.rows if row.status == status)

    @property
    def dead(self) -> tuple[Row, ...]:
        """The rows that load into dead parameters."""
        return tuple(row for row in self.rows if row.dead)


def total(rows: Iterable[Row]) -> int:
    """Bytes of ``rows``; tensors that share a storage lie in the file once."""
    alone = 0
    shared: dict[str, int] = {}
    for row in rows:
        if row.storage:
            shared[row.storage] = max(row.bytes, shared.get(row.storage, 0))
        else:
            alone += row.bytes
    return alone + sum(shared.values())


def detected(checkpoint: Checkpoint, types: Sequence[RuleFile]) -> RuleFile:
    """The type whose ``detect`` globs all name keys of the file. Of several, the one with the most globs.

    Raises DdplintError where there is none, or not one alone.
    """
    keys = [tensor.key.removeprefix(_prefix(checkpoint, ())) for tensor in checkpoint.tensors]
    fitting = [t for t in types if t.detect and all(matching((glob,), keys) for glob in t.detect)]
    most = max((len(t.detect) for t in fitting), default=0)
    best = [t for t in fitting if len(t.detect) == most]
    if len(best) == 1:
        return best[0]
    several = ", ".join(t.name for t in best)
    raise DdplintError(
        f"its keys are those of {several} alike"
        if best
        else "its keys are those of no checkpoint type ([checkpoint] detect)",
        where=shown(checkpoint.path),
        fix=f"name the type with --ckpt: {', '.join(t.name for t in types)}" if types else "name a target with --target",
    )


def stored(checkpoint: Checkpoint, analysis: Analysis, rename: Mapping[str, str | bool]) -> Stored:
    """What becomes of each tensor of ``checkpoint`` in the model of ``analysis``, with the loader's ``rename``."""
    owners = {name: p for p in analysis.parameters for name in (p.name, *p.aliases)}
    model: tuple[Parameter | Buffer, ...] = (*analysis.parameters, *analysis.buffers)
    holders = {name: holder for holder in model for name in (holder.name, *holder.aliases)}
    shapes = {name: holder.shape for name, holder in holders.items()}
    prefix = _prefix(checkpoint, shapes)
    rows, filled = [], set()
    for tensor in checkpoint.tensors:
        row = _row(tensor, tensor.key.removeprefix(prefix), shapes, owners, rename)
        rows.append(row)
        if row.name:
            filled.add(holders[row.name].name)
    fresh = [Row("", item.name, "fresh", item.shape, item.dtype, item.bytes) for item in model if item.name not in filled]
    return Stored(
        shown(checkpoint.path),
        (*rows, *fresh),
        prefix,
        len(checkpoint.optimizers),
        _state_bytes(checkpoint, analysis.parameters),
    )


def _prefix(checkpoint: Checkpoint, names: Iterable[str]) -> str:
    """What wrappers have put before every key, unless the model's own names begin so."""
    keys = [tensor.key for tensor in checkpoint.tensors]
    own = tuple(names)
    prefix = ""
    for _ in range(_WRAPPED if keys else 0):
        found = next((w for w in WRAPPERS if all(key.startswith(prefix + w) for key in keys)), None)
        if found is None or any(name.startswith(found) for name in own):
            break
        prefix += found
    return prefix


def renamed(key: str, rename: Mapping[str, str | bool]) -> str | None:
    """``key`` as the loader calls it, by the longest prefix that it has; None if the loader leaves it out."""
    fitting = [prefix for prefix in rename if key.startswith(prefix)]
    if not fitting:
        return key
    prefix = max(fitting, key=len)
    other = rename[prefix]
    return None if isinstance(other, bool) else other + key.removeprefix(prefix)


def _row(
    tensor: Tensor,
    key: str,
    shapes: Mapping[str, tuple[int, ...]],
    owners: Mapping[str, Parameter],
    rename: Mapping[str, str | bool],
) -> Row:
    name = renamed(key, rename)
    if name is None or name not in shapes:
        return Row(tensor.key, "", "dropped", tensor.shape, tensor.dtype, tensor.bytes, tensor.storage)
    if shapes[name] != tensor.shape:
        return Row(
            tensor.key, name, "mismatched", tensor.shape, tensor.dtype, tensor.bytes, tensor.storage, wanted=shapes[name]
        )
    dead = name in owners and owners[name].usage == "never"
    return Row(tensor.key, name, "loaded", tensor.shape, tensor.dtype, tensor.bytes, tensor.storage, dead=dead)


def _state_bytes(checkpoint: Checkpoint, parameters: Sequence[Parameter]) -> int | None:
    """What the optimizers keep for dead parameters: their numbers are positions among the model's parameters."""
    found = 0
    for optimizer in checkpoint.optimizers:
        order = in_order(optimizer, parameters)
        if order is None:
            return None
        named = zip(optimizer.numbers, order, strict=True)
        found += sum(optimizer.state_bytes.get(number, 0) for number, p in named if p.usage == "never")
    return found if checkpoint.optimizers else None


def in_order(optimizer: Optimizer, parameters: Sequence[Parameter]) -> tuple[Parameter, ...] | None:
    """The parameters that ``optimizer`` was given, in the order of its numbers; None where that can't be told.

    By their names, where it has them. Without names only a single group's numbers say anything: they are positions among
    all parameters, the trainable ones, or those without what never gets a gradient, if it was frozen first. Of several
    groups nobody knows which parameter went to which.
    """
    if optimizer.names:
        owners = {name: p for p in parameters for name in (p.name, *p.aliases)}
        found = [owners.get(_bare(name, owners)) for name in optimizer.names]
        given = tuple(p for p in found if p is not None)
        return given if len({p.name for p in given}) == len(found) and _fits(optimizer, given) else None
    if len(optimizer.groups) != 1:
        return None
    trainable = tuple(p for p in parameters if p.trainable)
    ways = (tuple(parameters), trainable, tuple(p for p in trainable if p.usage != "never"))
    return next((some for some in ways if len(some) == len(optimizer.numbers) and _fits(optimizer, some)), None)


def _bare(name: str, known: Container[str]) -> str:
    """``name`` without what wrappers have put before it."""
    for _ in range(_WRAPPED):
        if name not in known:
            name = next((name.removeprefix(w) for w in WRAPPERS if name.startswith(w)), name)
    return name


def _fits(optimizer: Optimizer, given: Sequence[Parameter]) -> bool:
    """Whether the state that the optimizer has for each of the parameters is of its shape."""
    return all(optimizer.shapes.get(number, p.shape) == p.shape for number, p in zip(optimizer.numbers, given, strict=True))
