"""What PyTorch's own DistributedDataParallel does with a target, asked of it in one process and without a GPU.

DDP and its C++ reducer run on PyTorch's fake process group, one rank after the other, a few iterations for each setting,
one path an iteration. The reducer raises its real errors. What one process can't show, a rank that waits for another, is
read off the collectives that each rank issues: they are matched by order, as the backends match them.
"""

from __future__ import annotations

import gc
import itertools
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import nn
from torch._C import _distributed_c10d as native
from torch._C._distributed_c10d import GradBucket, ProcessGroup
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ddplint.analysis import Rehearsal
from ddplint.errors import DdplintError
from ddplint.stages import say
from ddplint.target import Target, last_line, said, take_step
from ddplint.trace.devices import TraceDevice, Twins
from ddplint.trace.environment import without_gpu
from ddplint.trace.patching import patched
from ddplint.trace.recorder import composites_open
from ddplint.trace.run import Built, build, on_device, seed_everything
from ddplint.trace.shapes import Shapes
from ddplint.trace.values import Answer, AnsweringMode, Answers, NoValue, Plan, answering
from ddplint.trace.versions import ddp_unsynchronised

SETTINGS = ("find_unused_parameters=False", "find_unused_parameters=True", "static_graph=True")
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
    steps: int = 1,
    default: Mapping[str, Answer] | None = None,
    settings: Sequence[str] = SETTINGS,
    frozen: frozenset[str] = frozenset(),
) -> Rehearsal:
    """What DDP does with ``target`` on ``ranks`` ranks, for each of ``settings``, over feasible ``plans``.

    A rank runs its own plans if there are several of them, else those of rank 0; each rank starts one further than the
    one before. ``ranks_differ``: whether the ranks can do different things under one plan; if not, and there is one plan
    only, the ranks beyond rank 0 do what rank 0 does and are not run. ``steps``: after how many iterations the model's
    state has shown what it changes. ``default`` as for ``Answers``. ``frozen``: parameters that do not require grad when
    the model is wrapped, whatever the factory says.

    Raises DdplintError where no plan runs to its end under DDP, and for what the factory raises.
    """
    start = time.perf_counter()
    import torch._dynamo  # noqa: F401  # DDP imports it, and must not do so while torch is patched

    alone = ranks < 2 or (not ranks_differ and len({(p.inputs, p.seed, p.answers) for p in plans}) == 1)
    shapes = Shapes() if device == "meta" else None
    stages = [
        _Stage(target, _plans_of(rank, plans), device, rank, ranks, default, shapes, frozen)
        for rank in range(1 if alone else ranks)
    ]
    iterations = max(LEAST, max(steps, *(len(stage.plans) for stage in stages)) + FURTHER)
    logs: dict[str, list[_Log]] = {setting: [] for setting in settings}
    with _nothing_left_behind():
        for stage in stages:
            with _group_set_aside(), without_gpu(stage.rank, ranks):
                for setting, log in logs.items():
                    say(f"DDP with {setting} on rank {stage.rank}")
                    log.append(stage.run(setting, iterations, sent=log[0].sent if log else None))
    outcomes, details = {}, {}
    for setting, of_ranks in logs.items():
        outcome, detail = _judge(of_ranks)
        outcomes[setting] = outcome
        said_of_it = [*detail, *(text for log in of_ranks for text in log.left_out)]
        if said_of_it:
            details[setting] = "; ".join(said_of_it)
    return Rehearsal(
        device=device,
        iterations=_telling([(outcomes[setting], of_ranks) for setting, of_ranks in logs.items()], iterations),
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
    iteration: int

    def matches(self, other: _Collective) -> bool:
        """Whether two ranks that issue these as their n-th get each other's data."""
        return (self.name, self.numel) == (other.name, other.numel)

    def __str__(self) -> str:
        size = "" if self.numel is None else f" ({self.numel} elements)"
        return f"{self.name}{size} of iteration {self.iteration}"


# "wait": the rank goes on when all that it has issued is done; "end": so it does because an iteration ends.
_Event = _Collective | Literal["wait", "end"]


@dataclass(slots=True)
class _Log:
    """What one rank did under one setting, in order; ``error`` is the reducer's, which ended it in that iteration."""

    rank: int
    events: list[_Event] = field(default_factory=list)
    iteration: int = 0  # the one that runs, from 1
    error: str = ""
    left_out: list[str] = field(default_factory=list)  # plans that raise under DDP only
    sent: list[torch.Tensor | None] = field(default_factory=list)  # what it broadcast, for the ranks that run after it

    def note(self, name: str, numel: int | None, group: tuple[int, ...], *, waits: bool) -> None:
        """Add a collective that is issued now, and whether it is waited for at once."""
        if len(group) > 1:
            self.events.append(_Collective(name, numel, group, self.iteration))
            if waits:
                self.events.append("wait")

    def fail(self, error: str) -> None:
        """The reducer raised: if it is because the iteration before left gradients out, that one waited for nothing."""
        self.error = error
        if UNFINISHED in error and self.events[-1:] == ["end"]:
            self.events.pop()

    def issued(self, iterations: int) -> list[_Collective]:
        """The collectives of the first ``iterations`` iterations."""
        return [e for e in self.events if isinstance(e, _Collective) and e.iteration <= iterations]


# ---------------------------------------------------------------------- seeing the collectives

# Of each collective of the dispatcher, by overload packet: its name in torch.distributed, and which argument holds what
# each rank gives; None where ranks may give different numbers of elements, or give nothing.
_Given = tuple[str, int | None]
_C10D: dict[str, _Given] = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), ("all_reduce", 0)),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "scatter_": ("scatter", 0),
    **dict.fromkeys(("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"), ("reduce_scatter", 0)),
    **dict.fromkeys(
        ("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"), ("all_gather", 1)
    ),
    "gather_": ("gather", 1),
    **dict.fromkeys(("alltoall_", "alltoall_base_"), ("all_to_all", None)),
    **dict.fromkeys(("barrier", "monitored_barrier_"), ("barrier", None)),
}
_FUNCTIONAL: dict[str, _Given] = {
    **dict.fromkeys(("all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_"), ("all_reduce", 0)),
    **dict.fromkeys(("broadcast", "broadcast_"), ("broadcast", 0)),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_into_tensor_out", "all_gather_into_tensor_coalesced"), ("all_gather", 0)
    ),
    **dict.fromkeys(
        ("reduce_scatter_tensor", "reduce_scatter_tensor_out", "reduce_scatter_tensor_coalesced"), ("reduce_scatter", 0)
    ),
    "all_to_all_single": ("all_to_all", None),
}


def _operators() -> dict[Any, _Given]:
    """The dispatcher's collectives that this PyTorch has. Sends between two ranks are not among them."""
    found: dict[Any, _Given] = {}
    for space, names in ((torch.ops.c10d, _C10D), (torch.ops._c10d_functional, _FUNCTIONAL)):
        for name, given in names.items():
            packet = getattr(space, name, None)
            if packet is not None:
                found |= {getattr(packet, overload): given for overload in packet.overloads()}
    return found


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs the collectives of the code that runs, DDP's own and the target's, and gives meta tensors what they lack.

    The reducer reads its used map and its bucket order back from the device. From meta there is nothing to read: what it
    wrote there stands. What rank 0 broadcast, such as the bucket order, is what the ranks that run after it get.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """As of ``RememberingMode``."""
        return False

    def __init__(self, log: _Log, sent: list[torch.Tensor | None] | None, shapes: Shapes | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = log
        self.shapes = shapes
        self.received = None if sent is None else iter(sent)
        self.collectives = _operators()
        self._put: tuple[torch.Tensor, torch.Tensor] | None = None  # the meta tensor last written, and its value

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # else what is called here arrives at the answering mode as the target's
            if func is torch.ops.aten.copy_.default and args[0].is_meta != args[1].is_meta:
                return self._copy(args[0], args[1])
            if func in self.collectives:
                self._collective(func, args, kwargs or {})
            if self.shapes is not None:
                return self.shapes.call(func, args, kwargs or {})
            return func(*args, **kwargs) if kwargs else func(*args)

    def _copy(self, to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if to.is_meta:
            if source.dtype is torch.int32:  # the reducer's (at::kInt)
                self._put = (to, source.clone())
        elif self._put is not None and self._put[0] is source:
            to.copy_(self._put[1])
        return to

    def _collective(self, func: Any, args: Any, kwargs: Any) -> None:
        name, position = self.collectives[func]
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        held = [] if position is None else pytree.tree_leaves(args[position])
        tensors = [value for value in held if isinstance(value, torch.Tensor)]
        # Objects travel as bytes, as many as the longest has: a number that only ranks that really talk can agree on.
        sized = bool(tensors) and all(t.dtype is not torch.uint8 for t in tensors)
        waits = name == "broadcast" or "group_name" in given or not given.get("async_op", True)
        self.log.note(name, sum(t.numel() for t in tensors) if sized else None, _ranks_of(given), waits=waits)
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
        group = next(known for known, name in c10d._world.pg_names.items() if name == group)
    elif not isinstance(group, ProcessGroup):
        group = ProcessGroup.unbox(group)
    return tuple(dist.get_process_group_ranks(group))


# ---------------------------------------------------------------------- one rank


class _Raised(Exception):
    """A plan raised something that is not the reducer's."""

    def __init__(self, plan: Plan, iteration: int, error: BaseException) -> None:
        self.plan, self.iteration, self.error = plan, iteration, error
        super().__init__(said(error))


@dataclass(slots=True)
class _Stage:
    """One rank with its plans, ready to be run under each setting."""

    target: Target
    plans: list[Plan]
    device: TraceDevice
    rank: int
    ranks: int
    default: Mapping[str, Answer] | None
    shapes: Shapes | None
    frozen: frozenset[str]

    def run(self, setting: str, iterations: int, *, sent: list[torch.Tensor | None] | None) -> _Log:
        """``iterations`` iterations under ``setting``, one plan each; a plan that raises is left out, and all run again."""
        plans, left_out = list(self.plans), []
        while True:
            try:
                log = self._iterate(plans, setting, iterations, sent)
            except _Raised as raised:
                alone = self._raises_alone(plans, raised.iteration)
                plans.remove(raised.plan)
                if not plans:
                    raise self._blame(setting, raised, alone) from raised.error
                if not alone:
                    path = f"the path with {_describe(raised.plan)}"
                    left_out.append(f"rank {self.rank}: {path} raises under DDP only and is left out: {raised}")
            else:
                log.left_out = left_out
                return log

    def _blame(self, setting: str, raised: _Raised, alone: bool) -> DdplintError:
        if alone:
            return DdplintError(f"no path could be rehearsed: {raised}", where=self.target.name)
        return DdplintError(
            f"under DistributedDataParallel ({setting}) it raised {raised}",
            where=last_line(raised.error) or self.target.name,
            fix="it runs without; if it reads attributes of the model, the wrapped model has them under .module",
        )

    def _build(self) -> Built:
        built = build(self.target, self.device, ())
        for name, parameter in built.parameters.items():
            if name in self.frozen:
                parameter.requires_grad_(False)
        return built

    def _plan(self, plans: Sequence[Plan], iteration: int) -> Plan:
        return plans[(iteration - 1 + self.rank) % len(plans)]

    def _iterate(self, plans: Sequence[Plan], setting: str, iterations: int, sent: list[torch.Tensor | None] | None) -> _Log:
        log = _Log(self.rank)
        built = self._build()
        with _Watch(log, sent, self.shapes):
            with ddp_unsynchronised():
                ddp = DistributedDataParallel(
                    built.model,
                    find_unused_parameters=setting == "find_unused_parameters=True",
                    static_graph=setting == "static_graph=True",
                )
            # DDP checks a hook's annotations, which are text in this file: a lambda has none.
            ddp.register_comm_hook(log, lambda state, bucket: _reduced(state, bucket))
            for iteration in range(1, iterations + 1):
                log.iteration, plan = iteration, self._plan(plans, iteration)
                try:
                    self._step(built, ddp, plan)
                except (Exception, NoValue) as error:
                    if not any(words in str(error) for words in ERRORS):
                        raise _Raised(plan, iteration, error) from error
                    log.fail(said(error))
                    break
                log.events.append("end")
                if not self.target.zeroes:
                    ddp.zero_grad()
        return log

    def _raises_alone(self, plans: Sequence[Plan], iteration: int) -> bool:
        """Whether the same iterations up to that one raise without DDP as well."""
        built = self._build()
        try:
            for before in range(1, iteration + 1):
                self._step(built, built.model, self._plan(plans, before))
                if not self.target.zeroes:
                    built.model.zero_grad()
        except (Exception, NoValue):
            return True
        return False

    def _step(self, built: Built, model: nn.Module, plan: Plan) -> None:
        """One iteration: forward, loss and backward as the trace ran them (``ddplint.trace.run.trace``)."""
        target, device = self.target, self.device
        roots: list[Any] = []
        answers, twins = Answers(dict(plan.answers), default=self.default), Twins(built.twins)
        seed_everything(plan.seed)
        inputs = on_device(target.inputs[plan.inputs](), device, twins) if target.step is None else None
        with (
            answering(answers),
            composites_open(),
            patched(torch.autograd, _engine_run_backward=_noting(vars(torch.autograd)["_engine_run_backward"], roots)),
            AnsweringMode(device, answers, twins),
        ):
            if inputs is None:
                assert target.step is not None
                loss = take_step(target.step, model)
            else:
                args, kwargs = inputs
                loss, _ = target.loss(model(*args, **kwargs))
            if not roots or (loss.grad_fn is not None and loss.grad_fn not in roots):
                torch.autograd.backward(loss)


def _reduced(log: _Log, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """DDP's communication hook: the bucket's all-reduce, noted and done at once.

    The fake group's own returns no tensor, which the reducer's default hook can't take.
    """
    buffer = bucket.buffer()
    numel = None if buffer.layout is torch.sparse_coo else buffer.numel()
    name = f"all_reduce of gradient bucket {bucket.index()}"
    log.note(name, numel, tuple(range(dist.get_world_size())), waits=False)
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
    return ", ".join(parts)


# ---------------------------------------------------------------------- what it comes to


def _judge(logs: Sequence[_Log]) -> tuple[str, list[str]]:
    """The outcome and what explains it. An error counts if its rank gets there: it may have to wait for ever before."""
    waiting = _waiting(logs)
    failed = [log for log in logs if log.error and log.rank not in waiting]
    if failed:
        first = min(failed, key=lambda log: (log.iteration, log.rank))
        outcome = next(outcome for words, outcome in ERRORS.items() if words in first.error)
        # The first sentence says what; those after it give advice.
        texts = [f"rank {log.rank}, iteration {log.iteration}: {log.error.split('. ', 1)[0]}" for log in failed]
        return outcome, [*texts, *(f"rank {rank} waits in {collective}" for rank, collective in waiting.items())]
    # A training run may end after any iteration: what is unmatched then is waited for, whatever would have come later.
    for iteration in range(1, max(log.iteration for log in logs) + 1):
        text = _unmatched([log.issued(iteration) for log in logs])
        if text:
            return "hang", [text]
    return "ok", []


def _telling(judged: Sequence[tuple[str, Sequence[_Log]]], iterations: int) -> int:
    """The largest number of iterations, up to ``iterations``, after which a run has done all that was found.

    What one rank lacks after one iteration it may have made up for after the next, and then a run that ends there passes.
    """

    def tells(outcome: str, logs: Sequence[_Log], number: int) -> bool:
        if outcome == "hang":
            return bool(_unmatched([log.issued(number) for log in logs]))
        return outcome == "ok" or any(log.error and log.iteration <= number for log in logs)

    numbers = range(iterations, 0, -1)
    return next((n for n in numbers if all(tells(outcome, logs, n) for outcome, logs in judged)), iterations)


def _waiting(logs: Sequence[_Log]) -> dict[int, _Collective]:
    """What each rank that does not get to its end waits for, all ranks running at once."""
    at = [0] * len(logs)
    issued: list[list[_Collective]] = [[] for _ in logs]
    stuck: dict[int, _Collective] = {}
    moved = True
    while moved:
        moved = False
        for rank, log in enumerate(logs):
            stuck.pop(rank, None)
            while at[rank] < len(log.events):
                event = log.events[at[rank]]
                if isinstance(event, _Collective):
                    issued[rank].append(event)
                elif (lacking := _lacking(rank, issued)) is not None:
                    stuck[rank] = lacking
                    break
                at[rank] += 1
                moved = True
    return stuck


def _lacking(rank: int, issued: Sequence[Sequence[_Collective]]) -> _Collective | None:
    """A collective of ``rank`` that another rank has not issued in the same order."""
    for side_by_side in _in_order(issued):
        own = side_by_side.get(rank)
        if own is not None and not all(c is not None and c.matches(own) for c in side_by_side.values()):
            return own
    return None


def _unmatched(issued: Sequence[Sequence[_Collective]]) -> str:
    """Which rank waits for what if nothing more is issued; "" if none does."""
    for side_by_side in _in_order(issued):
        waiting, own = next((rank, c) for rank, c in side_by_side.items() if c is not None)
        for rank, other in side_by_side.items():
            if other is None:
                return f"rank {waiting} waits in {own}, which rank {rank} does not issue"
            if not other.matches(own):
                return f"rank {waiting} waits in {own}, rank {rank} in {other}"
    return ""


def _in_order(issued: Sequence[Sequence[_Collective]]) -> Iterator[dict[int, _Collective | None]]:
    """The n-th collectives of the ranks of a group, side by side, for each n and group; None where a rank has no n-th."""
    for group in sorted({c.group for own in issued for c in own}):
        members = [rank for rank in group if rank < len(issued)]
        columns = [[c for c in issued[rank] if c.group == group] for rank in members]
        for row in itertools.zip_longest(*columns):
            yield dict(zip(members, row, strict=True))


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
    native._unregister_all_process_groups()
    try:
        yield
    finally:
        for held, before in zip(maps, kept, strict=True):
            held.update(before)
        world.group_count = count
        c10d._update_default_pg(default)
        for group, name in world.pg_names.items():
            native._register_process_group(name, group)


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
