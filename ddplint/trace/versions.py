"""What differs between the releases of PyTorch that ddplint runs on (docs/versions.md), met here and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
