"""Rule files: what a project has written down about one checkpoint type. The model, loading and matching.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ddplint.fields import (
    Anything,
    Boolean,
    Document,
    Either,
    Field,
    Integer,
    ListOf,
    MapOf,
    Number,
    Table,
    Text,
    faults,
    read_toml,
    refuse,
)
from ddplint.globs import GLOB_PATTERN, glob_fault
from ddplint.globs import matches as matches  # had from here, beside the entries that they are for
from ddplint.globs import matching as matching

Action = Literal["freeze", "strip", "allow"]
When = Literal["never", "sometimes"]

TODO = "TODO"  # stands for a reason that a person has still to write


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An example tensor given in TOML.

    ``dtype`` is a torch dtype by name ("float32"). Integer and bool dtypes draw from ``low`` (inclusive) to
    ``high`` (exclusive), as ``torch.randint`` does.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    low: int = 0
    high: int = 2

    def to_json(self) -> dict[str, Any]:
        """This spec as a JSON-ready dictionary."""
        return {"shape": list(self.shape), "dtype": self.dtype, "low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        """The spec that ``to_json`` wrote."""
        return cls(**{**data, "shape": tuple(data["shape"])})


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """What is checked: a model factory, example inputs, a loss or a whole training step.

    ``factory``, ``variants``, ``step``, a string as ``inputs`` and a ``loss`` with a colon are references:
    "module:callable" or "path/file.py:callable". A ``loss`` without a colon is a dotted path into the output.
    ``inputs`` as a tuple are the positional arguments of forward, as a mapping its keyword arguments: tensor
    specs, or plain numbers, strings and booleans. ``base`` is the folder that relative paths start from and
    that is put on ``sys.path``. With ``from_module`` (``--target``) the factory's own module gives inputs,
    variants, loss or step where it has them.
    """

    factory: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    inputs: str | tuple[TensorSpec | Any, ...] | Mapping[str, TensorSpec | Any] | None = None
    variants: str | None = None
    loss: str | None = None
    step: str | None = None
    base: str = ""
    from_module: bool = False

    def to_json(self) -> dict[str, Any]:
        """This target as JSON-ready dictionaries and lists."""
        inputs: Any = self.inputs
        if isinstance(inputs, tuple):
            inputs = [_input_to_json(value) for value in inputs]
        elif isinstance(inputs, Mapping):
            inputs = {name: _input_to_json(value) for name, value in inputs.items()}
        return {
            "factory": self.factory,
            "kwargs": dict(self.kwargs),
            "inputs": inputs,
            "variants": self.variants,
            "loss": self.loss,
            "step": self.step,
            "base": self.base,
            "from_module": self.from_module,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TargetSpec:
        """The target that ``to_json`` wrote."""
        return cls(**{**data, "inputs": _inputs(data["inputs"])})


def _input_to_json(value: Any) -> Any:
    return value.to_json() if isinstance(value, TensorSpec) else value


def _input_from_json(value: Any) -> Any:
    return TensorSpec.from_json(value) if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """How the project wraps the model in DistributedDataParallel; None where the rule file does not say.

    ``source`` has the files, or globs of them, in which the wraps are.
    """

    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    source: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnusedRule:
    """One ``[[unused]]`` entry: parameters documented as unused, why, and what is to be done about them.

    ``params`` are globs over qualified names (``matches``); ``line``, from 1, is where the entry starts.
    """

    params: tuple[str, ...]
    reason: str
    action: Action
    when: When = "never"
    optional: bool = False
    line: int = 0


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One checkpoint type. ``rename`` maps key prefixes of the checkpoint file to those of the model; False: left out."""

    path: str
    name: str
    description: str
    detect: tuple[str, ...]
    target: TargetSpec
    ddp: DdpSettings
    unused: tuple[UnusedRule, ...]
    rename: Mapping[str, str | bool] = field(default_factory=dict)


_IDENTIFIER = r"[^\W\d]\w*"
_DOTTED = rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*"
_REFERENCE_PATTERN = rf"(?:[^:]*[^:/]\.py|{_DOTTED}):{_DOTTED}"
_REFERENCE_SAYS = '"module:callable" or "path/file.py:callable"'

_INTEGER_RANGES = {
    "bool": (0, 2),
    "uint8": (0, 2**8),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1)) for bits in (8, 16, 32)},
    "int64": (-(2**63), 2**63 - 1),  # high itself has to be an int64
}
_FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16", "complex64", "complex128")


def _tensor_fault(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    dtype = spec.get("dtype", "float32")
    given = [key for key in ("low", "high") if key in spec]
    if dtype in _FLOAT_DTYPES:
        for key in given:
            yield key, f"{key} is for integer dtypes, and this one is {dtype}"
        return
    low, high = spec.get("low", 0), spec.get("high", 2)
    least, most = _INTEGER_RANGES[dtype]
    if not least <= low < high <= most:
        wanted = f"expected {least} <= low < high <= {most} for {dtype}"
        yield (given[-1] if given else "dtype"), f"{wanted}, got low = {low} and high = {high}"


def _step_fault(target: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    beside = [key for key in ("inputs", "variants", "loss") if key in target]
    if "step" in target and beside:
        yield "step", f"takes the place of inputs, variants and loss, but {' and '.join(beside)} is given too"


def _rename_fault(checkpoint: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for prefix, other in checkpoint.get("rename", {}).items():
        if other is True:
            yield "rename", f"{prefix!r} is renamed to true: write the prefix that it becomes, or false to leave it out"


_GLOB = Text("a glob over qualified names", pattern=GLOB_PATTERN, fault=glob_fault)
_REFERENCE = Text(_REFERENCE_SAYS, pattern=_REFERENCE_PATTERN)
_FLAG = Boolean()

_TENSOR = Table(
    {
        "shape": Field(
            ListOf(Integer("a size of 0 or more", minimum=0), "a list of sizes"),
            "Sizes of the tensor.",
            required=True,
        ),
        "dtype": Field(
            Text("a torch dtype", choices=(*_FLOAT_DTYPES, *_INTEGER_RANGES)),
            'Its torch dtype; default "float32".',
        ),
        "low": Field(Integer(), "Smallest value, for integer dtypes; default 0."),
        "high": Field(Integer(), "One more than the largest value, for integer dtypes; default 2."),
    },
    says="a tensor spec such as { shape = [2, 3] }",
    fault=_tensor_fault,
    extra={
        "if": {"properties": {"dtype": {"enum": list(_FLOAT_DTYPES)}}},
        "then": {"properties": {"low": False, "high": False}},
    },
)
_INPUT = Either(
    (_TENSOR, Text(), Boolean(), Integer(), Number()),
    says="a tensor spec such as { shape = [2, 3] }, a string, a number or a boolean",
)
_INPUTS = Either(
    (_REFERENCE, ListOf(_INPUT, "a list of inputs"), MapOf(_INPUT, "a table of inputs")),
    says=f"{_REFERENCE_SAYS}, a list of inputs or a table of inputs",
)
_LOSS = Text(
    f"{_REFERENCE_SAYS}, or a dotted path into the output",
    pattern=rf"{_REFERENCE_PATTERN}|[^\s.:]+(?:\.[^\s.:]+)*",
)
_NAME = Text(
    "a name without whitespace, slash, comma or colon, and no dash in front",
    pattern=r"[^\s/\\,:\-][^\s/\\,:]*",
)

_CHECKPOINT = Table(
    {
        "name": Field(_NAME, "The checkpoint type, as --ckpt takes it.", required=True),
        "description": Field(Text(), "What the type is, in a few words."),
        "detect": Field(
            ListOf(_GLOB, "a list of globs", hint='write ["…"]'),
            "Globs over the keys by which a checkpoint file is known to be of this type.",
        ),
        "rename": Field(
            MapOf(
                Either((Text(), Boolean()), says="a key prefix, or false"),
                "a table of key prefixes",
                key=Text("a key prefix", pattern=r"[\s\S]+"),
            ),
            "Key prefixes of the checkpoint file, and what the loader makes of them in the model: another prefix, "
            '"" if it takes them away, false if it leaves out what has them.',
        ),
    },
    says="a table [checkpoint]",
    fault=_rename_fault,
    extra={"allOf": [{"properties": {"rename": {"additionalProperties": {"not": {"const": True}}}}}]},
)
_TARGET = Table(
    {
        "factory": Field(_REFERENCE, "The callable that returns the model.", required=True),
        "kwargs": Field(MapOf(Anything(), "a table"), "Keyword arguments of the factory."),
        "inputs": Field(
            _INPUTS,
            "A callable that returns (args, kwargs) of forward; or forward's positional arguments as a list, "
            "its keyword arguments as a table, of tensor specs and plain values.",
        ),
        "variants": Field(_REFERENCE, "A callable that returns a list of callables, each as inputs."),
        "loss": Field(_LOSS, "A callable, forward's output to a scalar; or a dotted path into the output."),
        "step": Field(_REFERENCE, "A callable, model to loss, instead of inputs, variants and loss."),
    },
    says="a table [target]",
    fault=_step_fault,
    extra={"dependentSchemas": {"step": {"properties": dict.fromkeys(("inputs", "variants", "loss"), False)}}},
)
_SOURCE = Text("a file or glob inside the project", pattern=r"(?!/)[\s\S]*\S[\s\S]*")
_DDP = Table(
    {
        "find_unused_parameters": Field(_FLAG, "That flag, as the project wraps the model."),
        "static_graph": Field(_FLAG, "That flag, as the project wraps the model."),
        "source": Field(
            Either((_SOURCE, ListOf(_SOURCE, "a list of files", minimum=1)), says="a file or glob, or a list of them"),
            "Where the project wraps the model: files or globs (Python, YAML, shell), from the project's folder.",
        ),
    },
    says="a table [ddp]",
)
_UNUSED = Table(
    {
        "params": Field(
            ListOf(_GLOB, "a list of globs over qualified names", minimum=1, hint='write ["…"]'),
            "Globs over qualified names: * and ? within a segment, ** for any number of segments; a module "
            "covers everything in it.",
            required=True,
        ),
        "reason": Field(
            Text("a reason in words", pattern=r"[\s\S]*\S[\s\S]*"),
            "Why the loss does not need them.",
            required=True,
        ),
        "action": Field(
            Text("freeze, strip or allow", choices=get_args(Action)),
            "freeze: the model has them with requires_grad=False; strip: it does not have them; allow: they "
            "stay as they are.",
            required=True,
        ),
        "when": Field(
            Text("never or sometimes", choices=get_args(When)),
            'Whether they are never used, or unused on some paths only; default "never".',
        ),
        "optional": Field(_FLAG, "Whether a glob may name no parameter at all; default false."),
    },
)

FIELDS = Table(
    {
        "checkpoint": Field(_CHECKPOINT, "The checkpoint type that this file is about.", required=True),
        "target": Field(_TARGET, "What is checked.", required=True),
        "ddp": Field(_DDP, "How the project wraps the model in DistributedDataParallel."),
        "unused": Field(ListOf(_UNUSED, "a list of tables", hint="write [[unused]]"), "Parameters documented as unused."),
    }
)


def load_rule_file(path: Path, base: Path | str) -> RuleFile:
    """The rule file at ``path``; ``base`` is the folder that its target's paths start from.

    Raises DdplintError where it is missing, broken or wrong: one line with every fault, in the order of their
    places.
    """
    return rule_file(read_toml(path), base)


def rule_file(document: Document, base: Path | str) -> RuleFile:
    """``document`` as a rule file. Raises DdplintError where it is none, as ``load_rule_file`` does."""
    refuse(document, faults(FIELDS, document.data))
    data = document.data
    checkpoint, target = data["checkpoint"], data["target"]
    return RuleFile(
        path=str(document.path),
        name=checkpoint["name"],
        description=checkpoint.get("description", ""),
        detect=tuple(checkpoint.get("detect", ())),
        target=TargetSpec(**{**target, "inputs": _inputs(target.get("inputs")), "base": str(base)}),
        ddp=_ddp_settings(data.get("ddp", {})),
        unused=tuple(
            UnusedRule(**{**entry, "params": tuple(entry["params"]), "line": document.line(("unused", index))})
            for index, entry in enumerate(data.get("unused", ()))
        ),
        rename=checkpoint.get("rename", {}),
    )


def _ddp_settings(table: Mapping[str, Any]) -> DdpSettings:
    source = table.get("source", ())
    return DdpSettings(**{**table, "source": (source,) if isinstance(source, str) else tuple(source)})


def _inputs(value: Any) -> str | tuple[TensorSpec | Any, ...] | Mapping[str, TensorSpec | Any] | None:
    if isinstance(value, list):
        return tuple(_input_from_json(item) for item in value)
    if isinstance(value, dict):
        return {name: _input_from_json(item) for name, item in value.items()}
    return value if isinstance(value, str) else None
