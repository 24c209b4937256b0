"""A machine without GPUs: what finetune code asks of CUDA, of ``torch.compile`` and of other ranks, answered here.

A trace must not stop because there is no GPU. Devices are mapped to the trace's own (devices.py), queries get plain
answers, profiler ranges and streams do nothing, nothing is compiled, and ``torch.distributed`` runs on PyTorch's fake
process group. What is True on this machine stays True: ``torch.cuda.is_available()`` is not touched.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddplint.trace.autocast import on_the_cpu, query_the_cpu
from ddplint.trace.draws import draws_watched
from ddplint.trace.patching import patched
from ddplint.trace.sites import Site, call_site
from ddplint.trace.versions import collectives_on_meta, dynamo_left_alone

_COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all"),
    *("all_to_all_single", "broadcast", "reduce", "gather", "scatter"),
)


class _Idle:
    """A stream, an event, a device guard: usable as one, and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.cuda_stream = 0
        self.device = torch.device("cpu")

    def __enter__(self) -> _Idle:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def query(self) -> bool:
        """Work that was never queued is done."""
        return True

    def elapsed_time(self, other: object) -> float:
        """Milliseconds between two events: none passed."""
        return 0.0

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    record = wait = synchronize = wait_stream = wait_event = record_event = _nothing


def _answer(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return value

    return answer


def _cuda_answers() -> dict[str, Any]:
    """What ``torch.cuda`` says about a GPU that is not there; functions that already answer without one are left."""
    properties = SimpleNamespace(
        name="no GPU", major=8, minor=0, total_memory=80 * 1024**3, multi_processor_count=108, warp_size=32
    )
    idle = ("synchronize", "set_device", "ipc_collect", "set_stream", "reset_peak_memory_stats", "init", "set_rng_state")
    # A function of its own each: torch._dynamo.trace_rules refuses one object under two names.
    answers: dict[str, Any] = {name: _answer(None) for name in idle}
    return answers | {
        "current_device": _answer(0),
        "get_device_capability": _answer((8, 0)),
        "get_device_properties": _answer(properties),
        "get_device_name": _answer(properties.name),
        "mem_get_info": _answer((properties.total_memory, properties.total_memory)),
        "get_rng_state": torch.random.get_rng_state,
        "current_stream": _answer(_Idle()),
        "default_stream": _answer(_Idle()),
        "Stream": _Idle,
        "Event": _Idle,
        "device": _Idle,
        "stream": _answer(_Idle()),
    }


class _NotCompiled(nn.Module):
    """What ``torch.compile(module)`` returns here: the same names (``_orig_mod.``) and no compiler."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._orig_mod(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._modules["_orig_mod"], name)


def _compile(model: Any = None, **options: Any) -> Any:
    """``torch.compile`` without compiling: a module is wrapped under its usual name, a function is returned as it is."""
    if model is None:
        return lambda function: _compile(function)
    return _NotCompiled(model) if isinstance(model, nn.Module) else model


def _uncompiled_method(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    return None


@contextmanager
def _fake_process_group(rank: int, world_size: int) -> Iterator[None]:
    """PyTorch's fake process group as the default one: collectives return at once and leave tensors as they are."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():  # a caller's own group (guard, pytest under torchrun) is left alone
        yield
        return
    old = collectives_on_meta()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    lacking = {"monitored_barrier": _answer(None)}
    if old is not None:  # its fake group copies with autograd's knowledge, which no real one does
        lacking |= {name: torch.no_grad()(vars(dist)[name]) for name in _COLLECTIVES}
    try:
        with process_group_kept(), patched(dist, **lacking), patched(dist.distributed_c10d, **lacking):
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def process_group_kept() -> Iterator[None]:
    """The process group that is there stays: a target that sets one up or takes it down changes nothing."""
    keep = {"init_process_group": _answer(None), "destroy_process_group": _answer(None)}
    with patched(dist, **keep), patched(dist.distributed_c10d, **keep):
        yield


def _load_on_cpu(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def wrapper(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        return load(f, "cpu" if map_location is None else map_location, *args, **kwargs)

    return wrapper


class _CpuGenerator(torch.Generator):
    """A generator for a device that is not there draws on the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch.Generator takes a device


@dataclass(slots=True)
class Environment:
    """What the environment noted: ``rank_asked``, the places that asked which rank they run on."""

    rank_asked: list[Site] = field(default_factory=list)


def _ask_rank(plain: Callable[..., int], environment: Environment) -> Callable[..., int]:
    @functools.wraps(plain)
    def get_rank(*args: Any, **kwargs: Any) -> int:
        site = call_site(sys._getframe(1))
        if site is not None and site not in environment.rank_asked:
            environment.rank_asked.append(site)
        return plain(*args, **kwargs)

    return get_rank


@contextmanager
def cuda_answered() -> Iterator[None]:
    """What a target asks of CUDA and of the compiler is answered, where there is no GPU; the process group is left alone."""
    nvtx = SimpleNamespace(
        rangePushA=_answer(0), rangePop=_answer(0), rangeStartA=_answer(0), rangeEnd=_answer(None), markA=_answer(None)
    )
    # Without CUDA SyncBatchNorm refuses its input (torch/nn/modules/batchnorm.py); its gradient paths are BatchNorm's.
    batch_norm = nn.modules.batchnorm._BatchNorm.forward
    with ExitStack() as stack:
        stack.enter_context(patched(sys, excepthook=sys.excepthook))  # init_process_group puts its own in front
        if not torch.cuda.is_available():
            stack.enter_context(patched(torch.cuda, **_cuda_answers()))
            stack.enter_context(patched(torch.cuda.nvtx, _nvtx=nvtx))
            stack.enter_context(patched(torch, Generator=_CpuGenerator))
        stack.enter_context(patched(torch.autocast, __init__=on_the_cpu(torch.autocast.__init__)))
        queries = {name: query_the_cpu(getattr(torch, name)) for name in ("is_autocast_enabled", "get_autocast_dtype")}
        stack.enter_context(patched(torch, **queries))
        stack.enter_context(patched(torch, compile=_compile, load=_load_on_cpu(torch.load)))
        stack.enter_context(patched(nn.Module, compile=_uncompiled_method))
        stack.enter_context(patched(nn.SyncBatchNorm, forward=batch_norm))
        yield


@contextmanager
def without_gpu(rank: int = 0, world_size: int = 2) -> Iterator[Environment]:
    """The whole environment: CUDA's answers, no compiler, one rank of a fake process group, draws that can be forced.

    Enter it before the target is imported, so that names a target imports from ``torch.cuda``, ``torch.distributed`` or
    ``random`` are these.
    """
    environment = Environment()
    with ExitStack() as stack:
        stack.enter_context(dynamo_left_alone())
        stack.enter_context(cuda_answered())
        stack.enter_context(_fake_process_group(rank, world_size))
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        stack.enter_context(_variables({name: str(value) for name, value in variables.items()}))
        asked = {"get_rank": _ask_rank(dist.get_rank, environment)}
        stack.enter_context(patched(dist, **asked))
        stack.enter_context(patched(dist.distributed_c10d, **asked))
        stack.enter_context(draws_watched())
        yield environment


@contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """Environment variables as a launcher (torchrun) sets them, put back afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
