"""What PyTorch's own DistributedDataParallel does with a target, asked of it in one process and without a GPU.

DDP and its C++ reducer run on PyTorch's fake process group, one rank after the other, a few iterations for each setting,
one path an iteration. The reducer raises its real errors. What one process can't show, a rank that waits for another, is
read off the collectives that each rank issues: they are matched by order, as the backends match them.
"""

from __future__ import annotations

import gc
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ddplint.analysis import Rehearsal
from ddplint.errors import DdplintError
from ddplint.target import Target, said
from ddplint.trace.devices import TraceDevice
from ddplint.trace.environment import without_gpu
from ddplint.trace.patching import patched
from ddplint.trace.recorder import _composites_open
from ddplint.trace.run import build, on_device, seed_everything
from ddplint.trace.values import Answer, Answers, AnsweringMode, NoValue, Plan, answering

SETTINGS: dict[str, dict[str, bool]] = {
    "find_unused_parameters=False": {},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "static_graph=True": {"static_graph": True},
}
# The reducer's errors, by words of their texts (torch/csrc/distributed/c10d/reducer.cpp).
ERRORS = {
    "ready only once": "ready_twice",  # mark_variable_ready
    "finished reduction": "reduction_error",  # ensure_prior_reduction_finished
    "graph has changed": "reduction_error",  # autograd_hook, with static_graph
}
UNFINISHED = "finished reduction"
LEAST = 3  # iterations: the reducer rebuilds its buckets and static_graph compares from the second on
FURTHER = 2  # iterations after each path has been run once: an error comes one forward late, static_graph's two
PAYLOAD = 2**16  # elements of a broadcast that are kept for the other ranks


def rehearse(
    target: Target,
    plans: Sequence[Plan],
    device: TraceDevice,
    *,
    ranks: int = 2,
    ranks_differ: bool,
    default: Mapping[str, Answer] | None = None,
) -> Rehearsal:
    """What DDP does with ``target`` on ``ranks`` ranks, for each of ``SETTINGS``, over ``plans`` (feasible paths, at least one).

    A rank runs its own plans if there are several of them, else those of rank 0; each rank starts one further than the
    one before. ``ranks_differ``: whether the ranks can do different things under one plan; if not, and there is one plan
    only, the ranks beyond rank 0 do what rank 0 does and are not run. ``default`` as for ``Answers``.

    Raises DdplintError where no plan runs to its end under DDP though it does without, and for what the factory raises.
    """
    start = time.perf_counter()
    import torch._dynamo  # noqa: F401  # DDP imports it, and must not do so while torch is patched

    alone = ranks < 2 or (not ranks_differ and len({(p.inputs, p.seed, p.answers) for p in plans}) == 1)
    stages = [_Stage(target, _plans_of(rank, plans), device, rank, ranks, default) for rank in range(1 if alone else ranks)]
    iterations = max(LEAST, max(len(stage.plans) for stage in stages) + FURTHER)
    logs: dict[str, list[_Log]] = {setting: [] for setting in SETTINGS}
    with ExitStack() as stack:
        stack.enter_context(_nothing_left_behind())
        for stage in stages:
            with _group_set_aside(), without_gpu(stage.rank, ranks):
                for setting, log in logs.items():
                    log.append(stage.run(setting, iterations, sent=log[0].sent if log else None))
    outcomes, details = {}, {}
    for setting, of_ranks in logs.items():
        outcome, detail = _judge(of_ranks)
        outcomes[setting] = outcome
        left_out = [text for log in of_ranks for text in log.left_out]
        if text := "; ".join([detail, *left_out] if detail else left_out):
            details[setting] = text
    return Rehearsal(
        device=device,
        iterations=iterations,
        ranks=ranks,
        seconds=time.perf_counter() - start,
        outcomes=outcomes,
        details=details,
    )


def _plans_of(rank: int, plans: Sequence[Plan]) -> list[Plan]:
    own = [plan for plan in plans if plan.rank == rank]
    if len(own) < 2:
        own = [plan for plan in plans if plan.rank == plans[0].rank]
    return list(dict.fromkeys(own))


# ---------------------------------------------------------------------- what a rank did


@dataclass(frozen=True, slots=True)
class _Collective:
    """A collective as the other ranks have to match it: its name, the elements each rank gives, the ranks it is among."""

    name: str
    numel: int | None  # None: ranks may give different numbers
    group: tuple[int, ...]
    waits: bool  # whether the rank goes on only when it is done; else it is waited for when the iteration ends

    def matches(self, other: _Collective) -> bool:
        """Whether two ranks that issue these as their n-th get each other's data."""
        return (self.name, self.numel) == (other.name, other.numel)

    def text(self) -> str:
        return self.name if self.numel is None else f"{self.name} ({self.numel} elements)"


_END: Literal["end"] = "end"  # of an iteration: all that was issued has been waited for
_Event = _Collective | Literal["end"]


@dataclass(slots=True)
class _Log:
    """What one rank did under one setting, in order; ``error`` is the reducer's, which ended it."""

    rank: int
    iterations: list[list[_Event]] = field(default_factory=list)
    error: str = ""
    left_out: list[str] = field(default_factory=list)  # plans that raise under DDP only
    sent: list[torch.Tensor | None] = field(default_factory=list)  # what it broadcast, for the ranks that run after it

    def note(self, collective: _Collective) -> None:
        """Add what is issued now."""
        if len(collective.group) > 1:
            self.iterations[-1].append(collective)

    def fail(self, error: str) -> None:
        """The reducer raised: if it is because the iteration before left gradients out, that one waited for nothing."""
        self.error = error
        before = self.iterations[-2:-1] if not self.iterations[-1] else []
        if UNFINISHED in error and before and before[0] and before[0][-1] == _END:
            before[0].pop()


# ---------------------------------------------------------------------- seeing the collectives

# Which argument holds what each rank gives; None where ranks may give different numbers, or give nothing.
_GIVES: dict[str, int | None] = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "scatter_"), 0),
    **dict.fromkeys(("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"), 0),
    **dict.fromkeys(("allgather_", "_allgather_base_", "allgather_coalesced_", "gather_"), 1),
    "allgather_into_tensor_coalesced_": 1,
    **dict.fromkeys(("alltoall_", "alltoall_base_", "barrier", "monitored_barrier_"), None),
}
_FUNCTIONAL: dict[str, int | None] = {
    **dict.fromkeys(("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"), 0),
    **dict.fromkeys(("broadcast", "broadcast_", "all_gather_into_tensor", "all_gather_into_tensor_coalesced"), 0),
    **dict.fromkeys(("all_gather_into_tensor_out", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"), 0),
    "reduce_scatter_tensor_out": 0,
    "all_to_all_single": None,
}


def _operators() -> dict[Any, int | None]:
    """The dispatcher's collectives that this PyTorch has. Sends between two ranks are not among them."""
    found: dict[Any, int | None] = {}
    for space, names in ((torch.ops.c10d, _GIVES), (torch.ops._c10d_functional, _FUNCTIONAL)):
        for name, gives in names.items():
            packet = getattr(space, name, None)
            if packet is not None:
                found |= {getattr(packet, overload): gives for overload in packet.overloads()}
    return found


class _Watch(TorchDispatchMode):
    """Logs the collectives of the code that runs, DDP's own and the target's, and gives meta tensors what they lack.

    The reducer reads its used map and its bucket order back from the device. From meta there is nothing to read: what it
    wrote there stands. What rank 0 broadcast, such as the bucket order, is what the ranks that run after it get.
    """

    def __init__(self, log: _Log, sent: list[torch.Tensor | None] | None) -> None:
        super().__init__()
        self.log = log
        self.received = None if sent is None else iter(sent)
        self.collectives = _operators()
        self._put: tuple[torch.Tensor, torch.Tensor] | None = None  # the meta tensor last written, and its value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # else what is called here arrives at the answering mode as the target's
            if func is torch.ops.aten.copy_.default and args[0].is_meta != args[1].is_meta:
                return self._copy(args[0], args[1])
            if func in self.collectives:
                self._collective(func, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if to.is_meta:
            if source.dtype is torch.int32:  # the reducer's (at::kInt)
                self._put = (to, source.clone())
        elif self._put is not None and self._put[0] is source:
            to.copy_(self._put[1])
        return to

    def _collective(self, func: Any, args: Any, kwargs: Any) -> None:
        schema = func._schema
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        name = schema.name.rpartition("::")[2].strip("_")
        gives = self.collectives[func]
        tensors = [] if gives is None else [t for t in pytree.tree_leaves(args[gives]) if isinstance(t, torch.Tensor)]
        # Objects travel as bytes of the largest one's length, which only ranks that really talk can agree on.
        sized = bool(tensors) and all(t.dtype is not torch.uint8 for t in tensors)
        waits = name == "broadcast" or "group_name" in given or not given.get("async_op", True)
        self.log.note(_Collective(name, sum(t.numel() for t in tensors) if sized else None, _ranks_of(given), waits))
        if name == "broadcast" and given.get("root_rank", given.get("src")) == 0 and len(tensors) == 1:
            self._broadcast(tensors[0])

    def _broadcast(self, tensor: torch.Tensor) -> None:
        if self.received is None:
            value = self._put[1] if self._put is not None and self._put[0] is tensor else None
            if not tensor.is_meta and tensor.numel() <= PAYLOAD:
                value = tensor.detach().clone()
            self.log.sent.append(value)
            return
        value = next(self.received, None)
        if value is None or value.shape != tensor.shape or value.dtype != tensor.dtype:
            return
        if tensor.is_meta:
            self._put = (tensor, value)
        else:
            tensor.detach().copy_(value)


def _ranks_of(given: Mapping[str, Any]) -> tuple[int, ...]:
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, str):
        group = c10d._resolve_process_group(group)
    elif not isinstance(group, dist.ProcessGroup):
        group = dist.ProcessGroup.unbox(group)
    return tuple(dist.get_process_group_ranks(group))


# ---------------------------------------------------------------------- one rank


class _Raised(Exception):
    """A plan raised something that is not the reducer's."""

    def __init__(self, plan: Plan, error: BaseException) -> None:
        self.plan, self.error = plan, error
        super().__init__(said(error))


class _Mode(AnsweringMode):
    """The trace's answers again, and as in the trace CPU tensors that meet an operation on meta are moved there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.on_meta and any(type(t) is torch.Tensor and not t.is_meta and t.dim() for t in _flat(args, kwargs)):
            args, kwargs = pytree.tree_map(self._move, (args, kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    @staticmethod
    def _move(value: Any) -> Any:
        return value.to("meta") if type(value) is torch.Tensor and not value.is_meta and value.dim() else value


def _flat(args: Any, kwargs: Any) -> Iterator[Any]:
    for value in (*args, *kwargs.values()) if kwargs else args:
        if type(value) in (tuple, list):
            yield from value
        else:
            yield value


@dataclass(slots=True)
class _Stage:
    """One rank with its plans, ready to be run under each setting."""

    target: Target
    plans: list[Plan]
    device: TraceDevice
    rank: int
    ranks: int
    default: Mapping[str, Answer] | None

    def run(self, setting: str, iterations: int, *, sent: list[torch.Tensor | None] | None) -> _Log:
        """``iterations`` iterations under ``setting``, one plan each; a plan that raises is left out, and all run again."""
        plans, left_out = list(self.plans), []
        while True:
            try:
                log = self._iterate(plans, setting, iterations, sent)
            except _Raised as raised:
                if self._raises_alone(raised.plan):
                    plans.remove(raised.plan)
                else:
                    text = f"rank {self.rank}: {_describe(raised.plan)} raises under DDP only and is left out ({raised})"
                    left_out.append(text)
                    plans.remove(raised.plan)
                if not plans:
                    raise DdplintError(
                        f"under DistributedDataParallel ({setting}) it raised {raised}",
                        where=self.target.name,
                        fix="it runs without; a wrapped model keeps its own attributes under .module",
                    ) from raised.error
                continue
            log.left_out += left_out
            return log

    def _iterate(
        self, plans: Sequence[Plan], setting: str, iterations: int, sent: list[torch.Tensor | None] | None
    ) -> _Log:
        log = _Log(self.rank)
        model = build(self.target, self.device, ()).model
        with _Watch(log, sent):
            ddp = DistributedDataParallel(model, init_sync=False, **SETTINGS[setting])
            ddp.register_comm_hook(log, lambda state, bucket: _reduced(state, bucket))  # no annotations as text
            for iteration in range(iterations):
                log.iterations.append([])
                plan = plans[(iteration + self.rank) % len(plans)]
                try:
                    self._step(ddp, plan)
                except (Exception, NoValue) as error:
                    if not any(words in str(error) for words in ERRORS):
                        raise _Raised(plan, error) from error
                    log.fail(said(error))
                    break
                log.iterations[-1].append(_END)
                ddp.zero_grad()
        return log

    def _step(self, model: nn.Module, plan: Plan) -> None:
        """One iteration: forward, loss and backward as the trace ran them (``ddplint.trace.run.trace``)."""
        target, device = self.target, self.device
        roots: list[Any] = []
        answers = Answers(dict(plan.answers), default=self.default)
        seed_everything(plan.seed)
        inputs = on_device(target.inputs[plan.inputs](), device) if target.step is None else None
        engine = torch.autograd._engine_run_backward
        with answering(answers), _composites_open(), patched(torch.autograd, _engine_run_backward=_noting(engine, roots)):
            with _Mode(device, answers):
                if inputs is None:
                    assert target.step is not None
                    loss = target.step(model)
                else:
                    args, kwargs = inputs
                    loss, _ = target.loss(model(*args, **kwargs))
                if not roots or (loss.grad_fn is not None and loss.grad_fn not in roots):
                    loss.backward()

    def _raises_alone(self, plan: Plan) -> bool:
        """Whether ``plan`` raises without DDP as well."""
        model = build(self.target, self.device, ()).model
        try:
            self._step(model, plan)
        except (Exception, NoValue):
            return True
        return False


def _reduced(log: _Log, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: the bucket's all-reduce, noted and done at once.

    The fake group's own returns no tensor, which the reducer's default hook can't take.
    """
    buffer = bucket.buffer()
    numel = None if buffer.layout is torch.sparse_coo else buffer.numel()
    name = f"all-reduce of gradient bucket {bucket.index()}"
    log.note(_Collective(name, numel, tuple(range(dist.get_world_size())), waits=False))
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


def _noting(plain: Callable[..., Any], roots: list[Any]) -> Callable[..., Any]:
    """Autograd's entry, with what the target itself calls backward on kept in ``roots``."""

    def run(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad", False):
            roots.extend(t.grad_fn for t in tensors if isinstance(t, torch.Tensor))
        return plain(tensors, *args, **kwargs)

    return run


def _describe(plan: Plan) -> str:
    parts = [f"inputs {plan.inputs}", f"seed {plan.seed}"]
    parts += [f"{answer!r} at {fork.file}:{fork.line}" for fork, answer in plan.answers]
    return f"the path with {', '.join(parts)}"


# ---------------------------------------------------------------------- what it comes to


def _judge(logs: Sequence[_Log]) -> tuple[str, str]:
    """The outcome and its explanation. An error counts if its rank gets there, not having to wait for ever before."""
    failed = [log for log in _arrived(logs) if log.error]
    if failed:
        first = min(failed, key=lambda log: (len(log.iterations), log.rank))
        outcome = next(outcome for words, outcome in ERRORS.items() if words in first.error)
        return outcome, f"rank {first.rank}, iteration {len(first.iterations)}: {first.error}"
    # A training run may end after any iteration: what is unmatched then is waited for, whatever would have come later.
    for iteration in range(1, max(len(log.iterations) for log in logs) + 1):
        text = _unmatched(logs, iteration)
        if text:
            return "hang", f"iteration {iteration}: {text}"
    return "ok", ""


def _arrived(logs: Sequence[_Log]) -> list[_Log]:
    """The ranks that get to the end of what they did, or to their error, with every rank running at once."""
    events = [[event for iteration in log.iterations for event in iteration] for log in logs]
    at = [0] * len(logs)
    issued: list[list[_Collective]] = [[] for _ in logs]
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(events):
            while at[rank] < len(own):
                event = own[at[rank]]
                if event != _END and (not issued[rank] or issued[rank][-1] is not event):
                    issued[rank].append(event)
                    moved = True
                if (event == _END or event.waits) and not _all_matched(rank, issued):
                    break
                at[rank] += 1
                moved = True
    return [log for log, position, own in zip(logs, at, events, strict=True) if position == len(own)]


def _all_matched(rank: int, issued: Sequence[Sequence[_Collective]]) -> bool:
    """Whether every rank has issued what ``rank`` has, in the same order in each group."""
    if len(issued) == 1:
        return True
    for group in {c.group for c in issued[rank]}:
        own = [c for c in issued[rank] if c.group == group]
        for other in group:
            theirs = [c for c in issued[other] if c.group == group]
            if len(theirs) < len(own) or not all(a.matches(b) for a, b in zip(own, theirs, strict=False)):
                return False
    return True


def _unmatched(logs: Sequence[_Log], iterations: int) -> str:
    """Which rank waits for what when each has run that many iterations; "" if none does."""
    issued = [[e for events in log.iterations[:iterations] for e in events if e != _END] for log in logs]
    for group in sorted({c.group for own in issued for c in own}):
        of_group = {rank: [c for c in issued[rank] if c.group == group] for rank in group if rank < len(logs)}
        for position in range(max(map(len, of_group.values()))):
            at = {rank: own[position] if position < len(own) else None for rank, own in of_group.items()}
            waiting = next(rank for rank, collective in at.items() if collective is not None)
            its = at[waiting]
            assert its is not None
            for rank, theirs in at.items():
                if theirs is None or not its.matches(theirs):
                    where = f"its collective {position + 1} of those"
                    instead = f"issues {theirs.text()} instead" if theirs is not None else f"issued {len(of_group[rank])}"
                    return f"rank {waiting} waits in {its.text()}, {where} so far; rank {rank} {instead}"
    return ""


# ---------------------------------------------------------------------- leaving nothing behind


@contextmanager
def _group_set_aside() -> Iterator[None]:
    """A process group that is already there (under torchrun, in a training script) is put by, and put back."""
    if not dist.is_initialized():
        yield
        return
    world = c10d._world
    default, count = world.default_pg, world.group_count
    maps = [getattr(world, name) for name in ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag")]
    maps += [world.tags_to_pg, world.pg_coalesce_state]
    kept = [dict(held) for held in maps]
    c10d._update_default_pg(None)
    for held in maps:
        held.clear()
    world.group_count = 0
    c10d._unregister_all_process_groups()
    try:
        yield
    finally:
        for held, before in zip(maps, kept, strict=True):
            held.update(before)
        world.group_count = count
        c10d._update_default_pg(default)
        for group, name in world.pg_names.items():
            c10d._register_process_group(name, group)


@contextmanager
def _nothing_left_behind() -> Iterator[None]:
    """Generators, warnings' filters and the garbage collector as they were; the collector is off meanwhile."""
    numpy = sys.modules.get("numpy")
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy is not None else None
    collecting = gc.isenabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DDP's hints, and the target's own that the trace has let through already
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()
            torch.set_rng_state(states[0])
            random.setstate(states[1])
            if numpy is not None:
                numpy.random.set_state(states[2])
