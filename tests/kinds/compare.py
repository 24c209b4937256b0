"""What a real run says about a kind, what ddplint says, and the two held against each other."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parallel.distributed import _find_tensors

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.graph import GradientGraph, gradient_graph
from ddplint.request import Request
from ddplint.rules import TargetSpec, matches
from ddplint.target import Target, load
from ddplint.trace.devices import DeviceMode
from ddplint.trace.environment import without_gpu
from ddplint.trace.recorder import tensors_in
from ddplint.trace.run import Path, build, seed_everything, trace
from ddplint.trace.values import Answers, Plan
from tests.kinds.kind import Kind

Device = Literal["auto", "meta", "cpu"]


@dataclass(frozen=True, slots=True)
class Plain:
    """A run without ddplint: every trainable parameter, and those whose ``.grad`` it left None."""

    trainable: tuple[str, ...]
    never: frozenset[str]


_plain: dict[type[Kind], Plain] = {}
_analysed: dict[tuple[type[Kind], Device], Analysis] = {}


def plain(kind: type[Kind]) -> Plain:
    """Forward, loss and backward of ``kind`` as anyone would run them. Run once."""
    if kind not in _plain:
        _plain[kind] = _run_plainly(kind)
    return _plain[kind]


def _run_plainly(kind: type[Kind]) -> Plain:
    seed_everything(0)
    with kind.plainly():
        model = kind()
        if kind.step is not None:
            loss = kind.step(model)
            if isinstance(loss.grad_fn, torch.autograd.graph.Node) and kind.__name__ not in ALREADY:
                loss.backward()  # type: ignore[no-untyped-call]
        else:
            args, kwargs = kind.inputs()
            kind.loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Plain(tuple(trainable), frozenset(name for name, p in trainable.items() if p.grad is None))


ALREADY = frozenset({"StepReturnsWhatItBackwarded"})  # the graph of the loss it returns is used up


def analysed(kind: type[Kind], device: Device) -> Analysis:
    """ddplint's answer for one step on one rank. Asked once."""
    if (kind, device) not in _analysed:
        request = Request(kind.spec(), device=device, ranks=1, steps=1, rehearse=False)
        _analysed[kind, device] = analyse(request)
    return _analysed[kind, device]


def never(analysis: Analysis) -> frozenset[str]:
    return frozenset(p.name for p in analysis.parameters if p.trainable and p.usage == "never")


def unreached_from_outputs(analysis: Analysis) -> frozenset[str]:
    return frozenset(p.name for p in analysis.parameters if p.trainable and not p.from_outputs)


def covered(names: tuple[str, ...], globs: tuple[str, ...]) -> frozenset[str]:
    return frozenset(name for name in names if any(matches(glob, name) for glob in globs))


def misplaced(kind: type[Kind], analysis: Analysis) -> list[str]:
    """Each unused parameter that is not explained as a marked line of the kind says, in words."""
    explanations = kind.explanations()
    file = inspect.getsourcefile(kind)
    found = []
    for parameter in analysis.unused():
        wanted = [e for e in explanations if e.is_about(parameter.name)]
        place = parameter.location
        got = (parameter.cause, place.line if place is not None else None)
        if got not in [(e.cause, e.line) for e in wanted] or (place is not None and place.file != file):
            found.append(f"{parameter.name}: wanted {wanted}, got {parameter.cause} at {place}: {parameter.why}")
    return found


@dataclass(frozen=True, slots=True)
class Traced:
    """One recorded path of a target, with its graph."""

    target: Target
    path: Path
    graph: GradientGraph

    @property
    def model(self) -> torch.nn.Module:
        return self.path.built.model


def traced(spec: TargetSpec, device: Literal["meta", "cpu"] = "cpu") -> Traced:
    """The target as it is, recorded once."""
    with without_gpu(rank=0, world_size=1):
        target = load(spec)
        path = trace(target, build(target, device, ()), device, Plan(), Answers({}))
        return Traced(target, path, gradient_graph(path.recording))


def _loss_and_outputs(target: Target, model: Any, args: Any, kwargs: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    output = model(*args, **kwargs)
    found: tuple[Tensor, ...] = tuple(_find_tensors(output))  # type: ignore[no-untyped-call]
    return target.loss(output)[0], found


@dataclass(frozen=True, slots=True)
class Replay:
    """What the model itself gives, and the recorded graph run as a module: loss and outputs."""

    eager: tuple[Tensor, tuple[Tensor, ...]]
    replayed: tuple[Tensor, tuple[Tensor, ...]]

    def differing(self) -> list[str]:
        """What is not equal to the last bit."""
        (loss, outputs), (other, others) = self.eager, self.replayed
        if len(outputs) != len(others):
            return [f"{len(outputs)} outputs, {len(others)} replayed"]
        pairs = [("loss", loss, other), *(("output", a, b) for a, b in zip(outputs, others, strict=True))]
        return [
            f"{name}: {a} replayed as {b}"
            for name, a, b in pairs
            if not torch.equal(a.detach().as_subclass(Tensor), b.detach().as_subclass(Tensor))
        ]


def replay(spec: TargetSpec) -> Replay:
    """Record ``spec`` on the CPU, then run model and recording, each from the same state, seed and inputs."""
    with without_gpu(rank=0, world_size=1):
        target = load(spec)
        seed_everything(0)
        eager_model = build(target, "cpu", ()).model
        built = build(target, "cpu", ())
        recording = trace(target, built, "cpu", Plan(), Answers({})).recording
        recording.graph.lint()
        fresh = build(target, "cpu", ()).model
        module = recording.graph_module(fresh)

        seed_everything(0)
        args, kwargs = target.inputs[0]()
        with DeviceMode("cpu"):  # what asks for a GPU gets the CPU
            eager = _loss_and_outputs(target, eager_model, args, kwargs)
        seed_everything(0)
        args, kwargs = target.inputs[0]()
        given = [*tensors_in(args), *(t for value in kwargs.values() for t in tensors_in(value))]
        return Replay(eager, module(*given))
