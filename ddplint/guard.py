"""What a training script calls: the documented set made real before the DDP wrap, and watched after it.

    from ddplint.guard import freeze_unused

    model = build_model()
    freeze_unused(model, ckpt="hybrid")
    model = DistributedDataParallel(model)

Needs neither click nor rich, and imports torch only where a call needs it. Rule files are found as ``ddplint check`` finds
them (from the working folder, or in ``rules``) and read once a process for as long as they stay as they are.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ddplint.config import find_project, find_rule_file
from ddplint.errors import DdplintError
from ddplint.fields import quoted, shown
from ddplint.globs import matching
from ddplint.rules import RuleFile, UnusedRule

if TYPE_CHECKING:
    from torch import nn

    from ddplint.report import Result

# What wraps a model: parameters are managed from then on, and to freeze or take away one is too late.
_WRAPPERS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine", "OptimizedModule"})
_LATE = _WRAPPERS - {"OptimizedModule"}
logger = logging.getLogger("ddplint")


class ContractError(DdplintError):
    """The model is not what its rule file says. ``report`` is the text report."""

    def __init__(self, what: str, *, report: str = "", where: str = "", fix: str = "") -> None:
        self.report = report
        super().__init__(what, where=where, fix=fix)

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said}\n\n{self.report}" if self.report else said


@dataclass(frozen=True, slots=True)
class Frozen:
    """What ``freeze_unused`` did: first names of the parameters that it froze, of those that were frozen already, and the
    number of weights in the first.
    """

    ckpt: str
    names: tuple[str, ...]
    already: tuple[str, ...]
    numel: int

    def __str__(self) -> str:
        more = f", {len(self.already):,} were frozen already" if self.already else ""
        return f"{self.ckpt}: froze {len(self.names):,} parameters ({self.numel:,} weights){more}"


@dataclass(frozen=True, slots=True)
class Stripped:
    """What ``strip_unused`` took away: names that the state dict no longer has, and the modules that went as a whole."""

    ckpt: str
    names: tuple[str, ...]
    modules: tuple[str, ...]
    numel: int

    def __str__(self) -> str:
        whole = f", among them all of {', '.join(self.modules)}" if self.modules else ""
        return f"{self.ckpt}: took away {len(self.names):,} parameters ({self.numel:,} weights){whole}"


@dataclass(slots=True)
class Watch:
    """A pending ``log_unused_once``. ``unused`` has the names once they are known."""

    unused: tuple[str, ...] | None = None
    _handles: list[Any] = field(default_factory=list)

    def remove(self) -> None:
        """Stop watching."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def freeze_unused(model: nn.Module, ckpt: str, rules: str | Path | None = None) -> Frozen:
    """Set ``requires_grad`` to False on every parameter that the rules document as never used, whatever the action.

    Entries with ``when = "sometimes"`` are left alone. To be called before the model is wrapped, and before an optimizer is
    built over its parameters. Either all of it is done or nothing. Raises DdplintError where the model is wrapped already,
    there is no such checkpoint type, or a pattern names no parameter (unless its entry is optional, or its action strip).
    """
    known = _rules(ckpt, rules)
    every, kinds = _every(model)
    _refuse_wrapped(model, "freeze_unused", kinds)
    documented = _documented(every, known, [entry for entry in known.unused if entry.when == "never"])
    names: list[str] = []
    already: list[str] = []
    numel = 0
    for name, parameter in every.items():
        if id(parameter) not in documented:
            continue
        documented.discard(id(parameter))  # by its first name
        (names if parameter.requires_grad else already).append(name)
        if parameter.requires_grad:
            numel += parameter.numel()
            parameter.requires_grad_(False)
            parameter.grad = None
    return Frozen(known.name, tuple(names), tuple(already), numel)


def strip_unused(model: nn.Module, ckpt: str, rules: str | Path | None = None) -> Stripped:
    """Take away from ``model`` what the rules mark ``action = "strip"``.

    A module all of whose parameters go is replaced by one without any, which raises when it is called; so its name, and the
    positions of what stands beside it in a ``ModuleList`` or ``Sequential``, stay. A single parameter becomes None, as
    ``nn.Linear(bias=False)`` has it. Of a shared parameter only the names that the rules cover go. Either all of it is done
    or nothing. Raises DdplintError as ``freeze_unused`` does, and where nothing trainable would be left, or a parameter is
    an item of a ``ParameterList`` or ``ParameterDict`` that does not go as a whole.
    """
    from torch import nn

    known = _rules(ckpt, rules)
    _refuse_wrapped(model, "strip_unused", _every(model)[1])
    patterns = [pattern for entry in known.unused if entry.action == "strip" for pattern in entry.params]
    every = dict(model.named_parameters(remove_duplicate=False))
    going = set(matching(patterns, every))
    if going and not any(p.requires_grad for name, p in every.items() if name not in going):
        raise DdplintError("nothing trainable would be left", where=_named(known), fix="strip less")
    whole = [*_whole_modules(every, going)]
    inside = tuple(f"{name}." for name in whole)
    single = [name for name in every if name in going and not name.startswith(inside)]
    for name in single:
        owner = model.get_submodule(name.rpartition(".")[0])
        if isinstance(owner, (nn.ParameterList, nn.ParameterDict)):
            raise DdplintError(
                f"{name} is one of several in a {type(owner).__name__}: without it the others would have other names",
                where=_named(known),
                fix="strip all of it, or freeze it",
            )
    for name in whole:
        parent, _, attribute = name.rpartition(".")
        model.get_submodule(parent)._modules[attribute] = _absent(name, known)
    for name in single:
        place, _, attribute = name.rpartition(".")
        model.get_submodule(place)._parameters[attribute] = None
    numel = sum({id(every[name]): every[name].numel() for name in going}.values())
    return Stripped(known.name, tuple(name for name in every if name in going), tuple(whole), numel)


def assert_contract(
    model: nn.Module, ckpt: str, rules: str | Path | None = None, *, timeout: float = 300.0
) -> Result | None:
    """Run the check of type ``ckpt`` once, and hold ``model``, as it will be wrapped, against it.

    The rule file's target is traced in a process of its own, so that nothing of this one changes: no generator, gradient,
    hook or process group. ``model`` has to have the parameters that the target's model has; which of them require grad is
    taken from ``model``. Where ``torch.distributed`` is initialised, rank 0 does it and all ranks get its outcome; else,
    under a launcher, rank 0 does it (environment variable RANK) and the others return None. ``timeout`` is in seconds.

    Returns what was found. Raises ContractError, on every rank, where that has a finding of severity error or warning or
    the model is another one; DdplintError where it could not be checked.
    """
    known = _rules(ckpt, rules)
    distributed = _distributed()
    if distributed is None:
        return _held(model, known, timeout) if os.environ.get("RANK", "0") == "0" else None
    outcome: list[Any] = [None]
    result = None
    if distributed.get_rank() == 0:
        try:
            result = _held(model, known, timeout)
        except DdplintError as error:
            outcome = [error]
    distributed.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise outcome[0]
    return result


def log_unused_once(
    ddp_model: nn.Module, ckpt: str | None = None, rules: str | Path | None = None, *, to: logging.Logger | None = None
) -> Watch:
    """Log, when the second iteration begins, which parameters the first left without a gradient; once.

    They are seen where DDP's reducer sees them: at the gradient accumulators, whose post hook tells it that a parameter is
    ready (torch/csrc/distributed/c10d/reducer.cpp, ``Reducer::Reducer``). With ``ckpt``, names that its rules do not cover
    are a warning, on each rank that has any; the rest is said on rank 0, level info. Then nothing is left in the model.
    """
    known = _rules(ckpt, rules) if ckpt is not None else None
    inner = _unwrapped(ddp_model)
    parameters = {name: p for name, p in inner.named_parameters() if p.requires_grad}
    watch, seen = Watch(), set[str]()

    def arrives(name: str) -> Any:
        return lambda *_: seen.add(name)

    accumulators = []
    for name, parameter in parameters.items():
        # The accumulator is made when a parameter is first used; held here, it is the one that stays.
        accumulator: Any = cast("Any", parameter.expand_as(parameter).grad_fn).next_functions[0][0]
        accumulators.append(accumulator)
        watch._handles.append(accumulator.register_hook(arrives(name)))

    def begins(*_: Any) -> None:
        if seen:
            watch.remove()
            accumulators.clear()
            watch.unused = tuple(name for name in parameters if name not in seen)
            _log(watch.unused, known, to or logger)

    watch._handles.append(ddp_model.register_forward_pre_hook(begins))
    return watch


def _log(unused: Sequence[str], known: RuleFile | None, to: logging.Logger) -> None:
    distributed = _distributed()
    rank = distributed.get_rank() if distributed is not None else 0
    covered = set(matching([p for entry in known.unused for p in entry.params], unused)) if known is not None else set()
    new = [name for name in unused if name not in covered]
    if rank == 0:
        to.info("%d parameters without a gradient in the first iteration: %s", len(unused), ", ".join(unused) or "none")
    if known is not None and new:
        to.warning(
            "rank %d: %d parameters without a gradient that %s does not document: %s; run `ddplint check --ckpt %s`",
            *(rank, len(new), shown(known.path), ", ".join(new), known.name),
        )


def _held(model: nn.Module, known: RuleFile, timeout: float) -> Result:
    """What the check finds about ``model``. Raises ContractError if that is not what the rules say."""
    from ddplint import checking
    from ddplint.checks import registry
    from ddplint.report import Report, render

    options = checking.Options(timeout=timeout, quiet=True)
    result = checking.checked(checking.Subject(known.target, known), options)
    live = dict(_unwrapped(model).named_parameters())
    traced = {p.name: p for p in result.analysis.parameters}
    for name in [*traced, *live]:
        if name not in live or name not in traced or tuple(live[name].shape) != traced[name].shape:
            lacks = "has another shape" if name in live and name in traced else "is in one of the two only"
            raise ContractError(
                f"the model is not the one of {known.target.factory}: {name} {lacks}",
                where=_named(known),
                fix="let the rule file's target build the model as the training script does",
            )
    parameters = tuple(replace(p, trainable=live[p.name].requires_grad) for p in result.analysis.parameters)
    unknown = next((p.name for p in parameters if p.trainable and p.usage is None), None)
    if unknown is not None:
        raise ContractError(
            f"{unknown} requires grad, and the target of {known.target.factory} has it frozen",
            where=_named(known),
            fix="let the rule file's target build the model as the training script does",
        )
    analysis = replace(result.analysis, parameters=parameters, rehearsal=_rehearsal(result, parameters))
    case = replace(result.case, analysis=analysis)
    result = replace(result, analysis=analysis, findings=registry.run(case))
    if result.fails:
        report = render("text", Report((result,)))
        raise ContractError("the model is not what its rules say", report=report, where=_named(known))
    return result


def _rehearsal(result: Result, parameters: Sequence[Any]) -> Any:
    """The rehearsal of what is trainable now: where all that is never used was frozen since, that was rehearsed too."""
    from ddplint.checks.base import OFF

    rehearsal = result.analysis.rehearsal
    left = any(p.trainable and p.usage == "never" for p in parameters)
    if rehearsal is None or rehearsal.frozen is None or left:
        return rehearsal
    return replace(rehearsal, outcomes={**rehearsal.outcomes, OFF: rehearsal.frozen}, frozen=None)


# ---------------------------------------------------------------------- rules and models


def _rules(ckpt: str, folder: str | Path | None) -> RuleFile:
    working, given = Path.cwd(), Path(folder) if folder is not None else None
    with os.scandir(_rules_folder(working, given)) as files:
        stamps = tuple(sorted((f.name, f.stat().st_mtime_ns) for f in files if f.name.endswith(".toml")))
    return _read(working, given, ckpt, stamps)


@functools.lru_cache(maxsize=16)
def _rules_folder(working: Path, folder: Path | None) -> Path:
    return find_project(working, folder).rules_dir


@functools.lru_cache(maxsize=16)
def _read(working: Path, folder: Path | None, ckpt: str, stamps: tuple[tuple[str, int], ...]) -> RuleFile:
    """The rule file of ``ckpt``; ``stamps`` of the folder's files make it a new one when any of them changes."""
    return find_rule_file(find_project(working, folder), ckpt)


def _named(known: RuleFile) -> str:
    return f"{shown(known.path)} ({known.name})"


def _documented(every: dict[str, Any], known: RuleFile, entries: Sequence[UnusedRule]) -> set[int]:
    """The ids of the parameters that ``entries`` cover, by any of their names. Raises where a pattern covers none."""
    found: set[int] = set()
    patterns = [(entry, pattern) for entry in entries for pattern in entry.params]
    names = _covered(tuple(pattern for _, pattern in patterns), tuple(every))
    for (entry, pattern), covered in zip(patterns, names, strict=True):
        found.update([id(every[name]) for name in covered])
        if not covered and not entry.optional and entry.action != "strip":
            raise DdplintError(
                f"{quoted(pattern)} names no parameter of the model",
                where=f"{shown(known.path)}:{entry.line}",
                fix="correct it, or set optional = true on the entry; nothing was changed",
            )
    return found


@functools.lru_cache(maxsize=256)
def _covered(patterns: tuple[str, ...], names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """For each of ``patterns`` the names that it covers."""
    return tuple(tuple(matching([pattern], names)) for pattern in patterns)


def _whole_modules(every: dict[str, Any], going: set[str]) -> Iterator[str]:
    """The outermost modules of which every parameter goes."""
    staying = {prefix for name in every if name not in going for prefix in _prefixes(name)}
    found: dict[str, None] = {}
    for name in every:
        if name in going:
            outermost = next((prefix for prefix in _prefixes(name) if prefix not in staying), None)
            if outermost is not None:
                found[outermost] = None
    yield from found


def _prefixes(name: str) -> Iterator[str]:
    """The modules that ``name`` is in, from the outermost."""
    parts = name.split(".")
    return (".".join(parts[:depth]) for depth in range(1, len(parts)))


def _absent(name: str, known: RuleFile) -> nn.Module:
    """What stands where the module ``name`` was."""
    from torch import nn

    why = f"{name} was stripped from the model, as {_named(known)} says, and is needed after all"

    class StrippedModule(nn.Module):
        """Nothing; whoever needs it is told why it is not there."""

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise DdplintError(why, fix="take it out of the rules, or mend the code that calls it")

        def __getattr__(self, attribute: str) -> Any:
            raise AttributeError(f"{why} (attribute {attribute})")

    return StrippedModule()


def _every(model: nn.Module) -> tuple[dict[str, Any], set[type]]:
    """What ``dict(model.named_parameters(remove_duplicate=False))`` is, and the classes of the modules, in one walk.

    PyTorch's own walk is a generator for each level of each module (``named_modules`` in torch/nn/modules/module.py).
    """
    every: dict[str, Any] = {}
    kinds: set[type] = set()
    waiting: list[tuple[str, nn.Module]] = [("", model)]
    while waiting:
        prefix, module = waiting.pop()
        kinds.add(type(module))
        for name, parameter in module._parameters.items():
            if parameter is not None:
                every[prefix + name] = parameter
        if module._modules:
            children = [(f"{prefix}{name}.", child) for name, child in module._modules.items() if child is not None]
            waiting += reversed(children)
    return every, kinds


def _refuse_wrapped(model: nn.Module, what: str, kinds: set[type]) -> None:
    if not any(_wrapper(kind) for kind in kinds):
        return
    for name, module in model.named_modules():
        kind = _wrapper(type(module))
        if kind:
            raise DdplintError(
                f"the model is wrapped in {kind} already" if not name else f"{name} is wrapped in {kind} already",
                where=what,
                fix=f"call {what} before the wrap: what is wrapped is managed as it was then",
            )


def _wrapper(kind: type) -> str:
    """The wrapper that ``kind`` is a class of; "" if it is none."""
    return next((base.__name__ for base in kind.__mro__ if base.__name__ in _LATE), "")


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside the wrappers that have it as ``module`` (torch.compile's as ``_orig_mod``)."""
    while type(model).__name__ in _WRAPPERS:
        inner = getattr(model, "module", None) or getattr(model, "_orig_mod", None)
        if inner is None:
            break
        model = inner
    return model


def _distributed() -> Any:
    """``torch.distributed`` if it is there and initialised, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
