"""One rank's part of ``ddplint cost``: a target wrapped with the flag on and with it off, and steps of both by turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.profiler import profile
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _find_tensors

from ddplint.target import Inputs, Target
from ddplint.trace.devices import DeviceMode
from ddplint.trace.run import build, on_device, seed_everything
from ddplint.verify import Timing

WARM_UP = 3  # steps of each wrap that are not timed: buckets are rebuilt in the second
ROUND = 5  # steps of one wrap before it is the other's turn
PROFILED = 5  # steps of each wrap under the profiler, after the timed ones
SHARE = 0.7  # of the time limit, after which no further round begins
# RECORD_FUNCTION in Reducer::search_unused_parameters (torch/csrc/distributed/c10d/reducer.cpp), and the name that gloo's
# all-reduces are profiled under (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).
SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
REDUCE = "gloo:all_reduce"

Step = Callable[[nn.Module, Target, Inputs | None], None]
"""Forward, loss and backward of a target on a model, wrapped or not."""


@dataclass(slots=True)
class _Wrap:
    """The target in a wrap of its own; ``seconds`` of its timed steps so far."""

    ddp: DistributedDataParallel
    seconds: list[float]
    number: int = 0  # of its steps; the seeds of both wraps' steps are the same


@dataclass(slots=True)
class Bench:
    """Steps of ``target`` on this rank; ``mode`` is on while the target's code runs, ``say`` is told what is being done."""

    target: Target
    step: Step
    say: Callable[[str], None]
    mode: Callable[[], AbstractContextManager[Any]] = nullcontext

    def measured(self, timing: Timing, limit: float) -> dict[str, Any]:
        """What the flag costs, JSON-ready; no round begins when most of ``limit`` seconds is over."""
        deadline = time.monotonic() + SHARE * limit
        self.say("building the model")
        redirected = self._needs_redirection()
        on = self._wrapped(timing, flag=True)
        off = self._wrapped(timing, flag=False) if timing.off else None
        wraps = [wrap for wrap in (on, off) if wrap is not None]
        for wrap in wraps:
            self.say("warming up")
            for _ in range(WARM_UP):
                self._run(wrap)
        self.say("timing")
        left, turn = timing.steps, 0
        while left > 0:
            for wrap in wraps if turn % 2 else reversed(wraps):  # neither is always the first
                wrap.seconds += [self._run(wrap) for _ in range(min(ROUND, left))]
            left, turn = left - ROUND, turn + 1
            if _agreed(time.monotonic() > deadline):
                break
        self.say("profiling")
        answers: dict[str, Any] = {"off": None, "redirected": redirected, "threads": torch.get_num_threads()}
        for name, wrap in zip(("on", "off"), wraps, strict=False):
            answers[name] = {"seconds": wrap.seconds, **self._profiled(wrap)}
        nodes, edges = self._graph(on)
        return {**answers, "nodes": nodes, "edges": edges, **self._optimized(on, frozenset(timing.dead))}

    def _needs_redirection(self) -> bool:
        """Whether the target runs only with its devices mapped to the CPU; asked of a bare model, before any wrap."""
        model = build(self.target, "cpu", ()).model
        seed_everything(0)
        try:
            self.step(model, self.target, self._inputs())
        except Exception:  # with DeviceMode it is raised again where it has another cause
            self.mode = _redirected
            with self.mode():
                self.step(build(self.target, "cpu", ()).model, self.target, self._inputs())
            return True
        return False

    def _wrapped(self, timing: Timing, *, flag: bool) -> _Wrap:
        """A new model in DDP with the flag on, or off and what is never used frozen."""
        built = build(self.target, "cpu", ())
        for name in () if flag else timing.dead:
            built.parameters[name].requires_grad_(False)
        return _Wrap(DistributedDataParallel(built.model, find_unused_parameters=flag), [])

    def _inputs(self) -> Inputs | None:
        return on_device(self.target.inputs[0](), "cpu") if self.target.step is None else None

    def _run(self, wrap: _Wrap) -> float:
        """One step of ``wrap``: seconds from when all ranks are ready to the end of this one's backward."""
        seed_everything(wrap.number)
        wrap.number += 1
        inputs = self._inputs()
        dist.barrier()
        start = time.perf_counter()
        with self.mode():
            self.step(wrap.ddp, self.target, inputs)
        seconds = time.perf_counter() - start
        if not self.target.zeroes:
            wrap.ddp.zero_grad()
        return seconds

    def _profiled(self, wrap: _Wrap) -> dict[str, Any]:
        """What PyTorch's profiler and DDP's own record say of ``wrap``'s steps."""
        search: list[float] = []
        reduces: list[int] = []
        wrap.ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]  # else few leave a record
        for _ in range(PROFILED):
            with profile(record_shapes=True) as profiled:
                self._run(wrap)
            # As recorded: to make the profiler's own events of them takes far longer than the step.
            events = profiled.kineto_results.events() if profiled.kineto_results is not None else []
            search += [event.duration_ns() / 1e9 for event in events if event.name() == SEARCH]
            reduces = [_elements(event.shapes()) for event in events if event.name() == REDUCE]
        record = wrap.ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
        rebuilt = bool(record.get("has_rebuilt_buckets"))
        sizes = str(record.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes", ""))
        return {
            "buckets": [int(size) for size in sizes.split(",") if size.strip()],
            "rebuilt": rebuilt,
            "reduces": reduces,
            "search": search,
            "unused_bytes": int(record.get("unused_parameter_size", 0)),
        }

    def _graph(self, wrap: _Wrap) -> tuple[int, int]:
        """Nodes and edges behind what the wrapped model's forward returns."""
        found: list[tuple[int, int]] = []

        def count(module: nn.Module, args: Any, output: Any) -> None:
            if not found:  # of several forwards in one step the first
                found.append(graph_size(t.grad_fn for t in _find_tensors(output)))  # type: ignore[no-untyped-call]

        handle = wrap.ddp.module.register_forward_hook(count)
        self._run(wrap)
        handle.remove()
        return found[0] if found else (0, 0)

    def _optimized(self, wrap: _Wrap, dead: frozenset[str]) -> dict[str, int | None]:
        """The bytes of AdamW's state after one step of the wrap, what of it belongs to ``dead``, and how many of those have
        a gradient then. None where the target's own step clears gradients.
        """
        if self.target.zeroes:
            return dict.fromkeys(("optimizer_bytes", "dead_optimizer_bytes", "dead_gradients"))
        named = dict(wrap.ddp.module.named_parameters())
        optimizer = torch.optim.AdamW(p for p in named.values() if p.requires_grad)
        seed_everything(wrap.number)
        with self.mode():
            self.step(wrap.ddp, self.target, self._inputs())
        optimizer.step()
        sizes = {name: _state_bytes(optimizer.state.get(p, {})) for name, p in named.items()}
        return {
            "optimizer_bytes": sum(sizes.values()),
            "dead_optimizer_bytes": sum(size for name, size in sizes.items() if name in dead),
            "dead_gradients": sum(p.grad is not None for name, p in named.items() if name in dead),
        }


def graph_size(roots: Iterable[Any]) -> tuple[int, int]:
    """Nodes and edges of autograd's graph behind ``roots``, as DDP's search visits them.

    ``Reducer::search_unused_parameters`` (torch/csrc/distributed/c10d/reducer.cpp) takes each function that it has not seen
    from a stack and looks at all its ``next_edges`` that lead anywhere.
    """
    seen = {root for root in roots if root is not None}
    stack, edges = list(seen), 0
    while stack:
        for function, _ in stack.pop().next_functions:
            if function is not None:
                edges += 1
                if function not in seen:
                    seen.add(function)
                    stack.append(function)
    return len(seen), edges


def _redirected() -> AbstractContextManager[Any]:
    return DeviceMode("cpu")


def _agreed(own: bool) -> bool:
    """What rank 0 says: all ranks run the same number of steps."""
    said = torch.tensor([own], dtype=torch.uint8)
    dist.broadcast(said, 0)
    return bool(said.item())


def _elements(shapes: Iterable[Iterable[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _state_bytes(state: dict[str, Any]) -> int:
    return sum(v.numel() * v.element_size() for v in state.values() if isinstance(v, torch.Tensor))
