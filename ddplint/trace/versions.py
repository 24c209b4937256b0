"""What differs between the releases of PyTorch that ddplint runs on (docs/versions.md), met here and nowhere else."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import distributed

from ddplint.trace.patching import patched


def function_apply() -> Callable[..., Any]:
    """``torch.autograd.Function.apply`` as a function of the class and the call's arguments.

    A classmethod of Python's (torch/autograd/function.py); since 2.14 one of C++'s that ``Function`` inherits.
    """
    found = next(vars(owner)["apply"] for owner in torch.autograd.Function.__mro__ if "apply" in vars(owner))
    if isinstance(found, classmethod):
        return found.__func__

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return found.__get__(None, cls)(*args, **kwargs)

    return apply


@contextmanager
def ddp_unsynchronised() -> Iterator[None]:
    """While the block runs, a DDP is made without asking other ranks: what ``init_sync=False`` does where it is known.

    2.6 does not know that argument (torch/nn/parallel/distributed.py); what it leaves out are these two calls.
    """

    def nothing(*args: Any, **kwargs: Any) -> None:
        return None

    with patched(distributed, _verify_param_shape_across_processes=nothing, _sync_module_states=nothing):
        yield


@functools.cache
def collectives_on_meta() -> torch.library.Library | None:
    """Kernels for meta tensors of the collectives, where PyTorch has none (2.6); None where it has them.

    They are those for the CPU: these hand the tensors to the process group, and the fake one looks into none. They stay as
    long as what is returned is held, here until the process ends.
    """
    if not dist.is_available() or torch._C._dispatch_has_kernel_for_dispatch_key("c10d::broadcast_", "Meta"):
        return None
    library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
    on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    for qualified in torch._C._dispatch_get_registrations_for_dispatch_key("CPU"):
        space, _, name = qualified.partition("::")
        if space == "c10d":
            packet, _, overload = name.partition(".")
            operator = getattr(getattr(torch.ops.c10d, packet), overload or "default")
            library.impl(name, functools.partial(operator.redispatch, on_cpu), "Meta")  # type: ignore[no-untyped-call]
    return library


@functools.cache
def _kept_from_dynamo() -> tuple[Any, ...]:
    """The functions of PyTorch's own meta kernels that call ``torch._dynamo`` first (torch/_compile.py)."""
    from torch import _decomp, _meta_registrations, _refs
    from torch._decomp import decompositions

    wrapper = torch._compile._disable_dynamo(lambda: None).__code__
    spaces = [_refs, _refs.fft, _refs.linalg, _refs.nn.functional, _refs.special, _meta_registrations, decompositions]
    tables = [vars(space) for space in spaces] + list(_decomp.global_decomposition_table.values())
    found: dict[int, Any] = {}
    seen: set[int] = set()
    waiting = [value for table in tables for value in list(table.values())]
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or id(function) in seen:
            continue
        seen.add(id(function))
        held = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
        waiting += held
        if function.__code__ is wrapper:
            kept = held[wrapper.co_freevars.index("fn")]
            found[id(kept)] = kept
    return tuple(found.values())


@contextmanager
def dynamo_left_alone() -> Iterator[None]:
    """While the block runs, operators on meta tensors do not import ``torch._dynamo``, which takes about a second.

    They ask it not to compile them. Nothing is compiled here. What is set is what they would keep of its answer.
    """
    if "torch._dynamo" in sys.modules:
        yield
        return
    functions = [function for function in _kept_from_dynamo() if not hasattr(function, "__dynamo_disable")]
    for function in functions:
        function.__dynamo_disable = function
    try:
        yield
    finally:
        for function in functions:
            del function.__dynamo_disable
