"""All paths of a small model as the explorer finds them, and plain runs of it to hold them against."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddplint.analyse import analyse
from ddplint.analysis import Analysis, Parameter
from ddplint.graph import gradient_graph
from ddplint.request import Request
from ddplint.rules import TargetSpec
from ddplint.target import Inputs, load
from ddplint.trace.devices import TraceDevice
from ddplint.trace.environment import without_gpu
from ddplint.trace.explore import DEFAULT_PATHS, Exploration, Explorer
from ddplint.trace.run import Path, build, seed_everything
from ddplint.trace.values import Answer
from ddplint.usage import answers
from tests.kinds.kind import Kind


def owners(names: frozenset[str]) -> frozenset[str]:
    """The modules that hold the parameters ``names``: "aux" for "aux.weight" and "aux.bias"."""
    return frozenset(name.rpartition(".")[0] for name in names)


@dataclass(frozen=True, slots=True)
class Explored:
    """An exploration, how many runs it took, and the modules with trainable parameters."""

    found: Exploration
    runs: int
    modules: frozenset[str]

    @property
    def used(self) -> list[frozenset[str]]:
        """The modules used on each path."""
        return [owners(outcome.used) for outcome in self.found.outcomes]

    @property
    def sometimes(self) -> frozenset[str]:
        """The modules used on some paths only."""
        return frozenset.union(*self.used) - frozenset.intersection(*self.used)

    @property
    def never(self) -> frozenset[str]:
        """The modules used on no path."""
        return self.modules - frozenset.union(*self.used)

    @property
    def forced(self) -> list[tuple[Answer, ...]]:
        """The answers forced on each path, in the order in which they were added."""
        return [tuple(answer for _, answer in outcome.plan.answers) for outcome in self.found.outcomes]

    def domains(self) -> set[str]:
        """The kinds of value that were asked for, over all paths."""
        return {fork.domain for outcome in self.found.outcomes for fork in outcome.asked}


def explored(
    target: type[Kind] | TargetSpec,
    device: TraceDevice = "cpu",
    *,
    steps: int = 1,
    limit: int = DEFAULT_PATHS,
    default: dict[str, Answer] | None = None,
) -> Explored:
    """All paths of ``target`` on rank 0."""
    spec = target if isinstance(target, TargetSpec) else target.spec()

    def judge(path: Path) -> frozenset[str]:
        used, _, _ = answers(path, gradient_graph(path.recording))
        return frozenset(name for name, is_used in used.items() if is_used)

    with without_gpu():
        loaded = load(spec)
        built = build(loaded, device, ())
        explorer = Explorer(loaded, built, device, judge, limit=limit, default=default)
        found = explorer.all(explorer.first(), steps=steps)
    return Explored(found, explorer.runs, owners(built.trainable))


def analysed(target: type[Kind] | TargetSpec, **options: Any) -> Analysis:
    """ddplint's answer, by default for one step on one rank and without a rehearsal."""
    spec = target if isinstance(target, TargetSpec) else target.spec()
    return analyse(Request(spec, **{"ranks": 1, "steps": 1, "rehearse": False, **options}))


def weights(analysis: Analysis) -> Mapping[str, Parameter]:
    """The parameters called ``weight``, by the module that holds them."""
    return {p.module: p for p in analysis.parameters if p.name.endswith("weight")}


def with_usage(analysis: Analysis, usage: str) -> frozenset[str]:
    """The modules whose parameters have ``usage``."""
    return frozenset(p.module for p in analysis.parameters if p.usage == usage)


def plain_runs(
    kind: type[Kind], *made: Callable[[], Inputs], seeds: Sequence[int] = (0,), steps: int = 1
) -> set[frozenset[str]]:
    """The modules that get a gradient in runs without ddplint, for each of the inputs ``made``, each seed and each step."""
    return {
        owners(used)
        for make in made or (kind.inputs,)
        for seed in seeds
        for used in _run_plainly(kind, make, seed=seed, steps=steps)
    }


def _run_plainly(kind: type[Kind], make: Callable[[], Inputs], *, seed: int, steps: int) -> list[frozenset[str]]:
    seed_everything(seed)
    model: nn.Module = kind()
    seed_everything(seed)
    found = []
    for _ in range(steps):
        model.zero_grad()
        if kind.step is not None:
            loss = kind.step(model)
        else:
            args, kwargs = make()
            loss = kind.loss(model(*args, **kwargs))
        torch.autograd.backward(loss)
        found.append(frozenset(name for name, p in model.named_parameters() if p.grad is not None))
    return found
