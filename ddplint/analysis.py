"""What a trace found out about a target, as plain data: made in the worker, read by the checks and the reports.

Nothing here imports torch. Every class is frozen and turns into JSON and back without loss (``to_json``/``from_json``),
for the worker is another process.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Usage = Literal["always", "sometimes", "never"]
Cause = Literal["uncalled", "discarded", "severed", "output-only", "conditional"]
Evidence = Literal["observed", "possible"]
Flow = Literal["gradient", "cut", "dropped"]


@dataclass(frozen=True, slots=True)
class Location:
    """A place in source code. ``file`` as Python knows it (absolute where it can be); reports make it relative."""

    file: str
    line: int
    function: str = ""  # qualified name of the function the line is in
    text: str = ""  # the source line, stripped
    # Where on the line the operation is written: the first character and the one after the last, from 0; None: not known.
    columns: tuple[int, int] | None = field(default=None, compare=False)  # a line is one place, however it is used


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the model, under its first name in ``named_parameters()``, and what becomes of it.

    ``trainable`` is ``requires_grad`` as the factory left it; a frozen parameter that a rule documents is traced as if it
    were trainable, so ``usage`` is the truth about the loss either way (for any other frozen parameter it is None).
    ``cause``, ``location``, ``why`` and ``place`` are set for those not ``always`` used.
    """

    name: str
    aliases: tuple[str, ...]  # further names of the same tensor (tying, shared modules)
    module: str  # qualified name of the module that owns it ("" is the root)
    module_type: str
    shape: tuple[int, ...]
    dtype: str
    numel: int
    bytes: int
    trainable: bool
    usage: Usage | None = None
    evidence: Evidence = "observed"
    cause: Cause | None = None
    subtree: str = ""  # the outermost module (or the parameter itself) that shares the cause and the place
    location: Location | None = None
    place: str = ""  # the same for parameters that one place explains: they make one finding
    why: str = ""  # one sentence
    decided_by: str = ""  # of one used on some paths only: "value", "draw", "inputs", "seed", "step" or "rank"
    from_outputs: bool = False  # DDP's walk from forward's return value reaches it (on some path)
    from_loss: bool = False  # autograd's graph of the loss reaches it (on some path), gradient or not
    # What DDP's walk from forward's return value does not see, though the loss reaches the parameter:
    checkpoint: Location | None = None  # the re-entrant checkpoint (or Function with a backward of its own) that hides it
    bypass: Location | None = None  # where the loss uses it past the wrapped forward
    zeroed: Location | None = None  # the multiplication by zero through which alone the loss reaches it


@dataclass(frozen=True, slots=True)
class Buffer:
    """A buffer of the model that its state dict holds, under its first name."""

    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A parameter on which the recorded graph, autograd's graph and a real backward say different things."""

    name: str
    graph: bool
    autograd: bool
    backward: bool | None  # None: no backward could be run on this device


@dataclass(frozen=True, slots=True)
class Step:
    """One operation on the way of a parameter's value (``ddplint why``), in the order of execution."""

    operation: str  # e.g. "linear", "detach"; "output" and "loss" end a way
    module: str  # qualified name of the module whose forward it ran in
    location: Location | None
    carries: bool  # whether gradient still flows back through it to the parameter


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """How the answer was obtained."""

    device: Literal["meta", "cpu"]
    device_reason: str  # why not meta; "" on meta
    paths: int
    ranks: int
    nodes: int
    seconds: float
    disagreements: tuple[Disagreement, ...] = ()
    forced: int = 0  # of ``paths``, those with an answer forced
    infeasible: int = 0  # forced paths that raised: no part of the answer
    complete: bool = True  # False: the path budget ended first


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What PyTorch's own DistributedDataParallel did with the target, on ranks of a fake process group.

    Keys of ``outcomes`` and ``details``: "find_unused_parameters=False", "find_unused_parameters=True",
    "static_graph=True". ``details`` has what is to be said of a setting: the reducer's error, its rank and iteration; which
    rank waits for what; a path that raised under DDP only.
    """

    device: Literal["meta", "cpu"]
    iterations: int  # of each setting, on each rank, after which a run has done what ``outcomes`` says
    ranks: int
    seconds: float
    outcomes: dict[str, str]  # -> ok, reduction_error, ready_twice or hang
    details: dict[str, str]
    # The paths it ran, JSON-ready: inputs, seed, rank and answers, a list of [fork, answer] (ddplint.trace.values.Plan).
    plans: list[dict[str, Any]] = field(default_factory=list)
    frozen: str | None = None  # the outcome with the flag off once the never used are frozen; None: not asked


@dataclass(frozen=True, slots=True)
class Outside:
    """A parameter that the loss or an optimizer trains and the model does not hold: DDP does not reduce its gradient."""

    shape: tuple[int, ...]
    numel: int
    location: Location | None  # where it is first used
    in_loss: bool = True  # False: only the optimizer has it


@dataclass(frozen=True, slots=True)
class ModuleEdge:
    """The operations that run in ``consumer`` take values that depend on parameters from ``producer``: what flows back.

    Qualified names of modules; None is the loss, with all that runs outside the model's forward. ``flow`` is the best of
    all recorded paths: "gradient" comes back from the loss; "cut": the value reaches the loss, and no gradient comes back;
    "dropped": nothing made of the value reaches the loss. ``location``: the operation that cuts, if it is at this edge.
    """

    consumer: str | None
    producer: str | None
    flow: Flow
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Analysis:
    """The worker's whole answer about one target."""

    target: str  # "module:factory" or "path/file.py:factory"
    torch_version: str
    parameters: tuple[Parameter, ...]
    trace: TraceRecord
    way: tuple[Step, ...] = ()  # of the one parameter that Request.explain named
    notices: tuple[str, ...] = ()  # said on stderr: e.g. which part of the output stood in for a loss
    rehearsal: Rehearsal | None = None
    opaque_output: str = ""  # the type of a part of forward's return value that holds tensors DDP can't find
    outside: tuple[Outside, ...] = ()
    flow: tuple[ModuleEdge, ...] = ()  # from the loss back, last execution first
    buffers: tuple[Buffer, ...] = ()
    adapter: str = ""  # the frameworks whose ways the trace followed, e.g. "peft, transformers"; "" for a plain module

    def to_json(self) -> dict[str, Any]:
        """This analysis as JSON-ready dictionaries and lists."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Analysis:
        """The analysis that ``to_json`` wrote. Raises TypeError or KeyError on anything else."""
        trace = dict(data["trace"])
        trace["disagreements"] = tuple(Disagreement(**d) for d in trace["disagreements"])
        return cls(
            way=tuple(Step(**_located(step)) for step in data["way"]),
            opaque_output=data["opaque_output"],
            adapter=data["adapter"],
            buffers=tuple(Buffer(**_located(entry)) for entry in data["buffers"]),
            outside=tuple(Outside(**_located(entry)) for entry in data["outside"]),
            flow=tuple(ModuleEdge(**_located(edge)) for edge in data["flow"]),
            target=data["target"],
            torch_version=data["torch_version"],
            parameters=tuple(Parameter(**_located(entry)) for entry in data["parameters"]),
            trace=TraceRecord(**trace),
            notices=tuple(data["notices"]),
            rehearsal=Rehearsal(**data["rehearsal"]) if data["rehearsal"] else None,
        )

    def unused(self) -> tuple[Parameter, ...]:
        """The trainable parameters that are not used on every path, in the model's order."""
        return tuple(p for p in self.parameters if p.trainable and p.usage in ("never", "sometimes"))


def _located(entry: dict[str, Any]) -> dict[str, Any]:
    """A dataclass's JSON fields with its locations and tuples as they were."""
    places = ("location", "checkpoint", "bypass", "zeroed")
    return {
        key: Location(**_located(value)) if key in places and value else tuple(value) if isinstance(value, list) else value
        for key, value in entry.items()
    }
