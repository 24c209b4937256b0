"""Autocast where its device is not: a GPU's becomes the CPU's, and on meta, where PyTorch has none, tensors are cast here.

What is cast decides which calls a target can make (a product of two types raises outside autocast), not where gradients go:
a cast lets them through. The lists are the CPU's (``AutocastCPU`` in aten/src/ATen/autocast_mode.cpp).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Calls that run in autocast's type; of the others that autocast has a kernel for, these in the widest of their operands'
# types, and all further ones in float32. What calls one of these in C++ alone (einsum) is here by its own name.
_FAST = frozenset(
    {
        *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "linalg_vecdot"),
        *("conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        *("scaled_dot_product_attention", "prelu", "einsum"),
    }
)
# While a target runs, torch's own names answer for a GPU too (query_the_cpu).
_enabled, _type = torch.is_autocast_enabled, torch.get_autocast_dtype
_WIDEST = frozenset({"cat", "stack", "index_copy"})
_PYTHON_NAMES = {"cross_entropy_loss": "cross_entropy", "grid_sampler": "grid_sample"}


@functools.cache
def _cast_by_autocast() -> frozenset[str]:
    """Names of the calls that autocast has a kernel for, as the installed PyTorch registers them."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    names = {name.removeprefix("aten::").partition(".")[0] for name in registered}
    return frozenset(_PYTHON_NAMES.get(name, name) for name in names)


def wanted(name: str, given: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The type that the floating tensors among the ``given`` of a call are cast to under autocast; None if they are not."""
    if not _enabled("cpu"):
        return None
    if name in _FAST:
        return _type("cpu")
    if name in _WIDEST:
        types = [t.dtype for t in given if t.is_floating_point()]
        return functools.reduce(torch.promote_types, types) if types else None
    return torch.float32 if name in _cast_by_autocast() else None


def cast(value: Any, to: torch.dtype) -> Any:
    """``value`` as autocast gives it to a kernel: a floating tensor in ``to``, unless it is float64."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype not in (to, torch.float64):
        return value.to(to)
    return value


def _elsewhere(device: Any) -> bool:
    """Whether ``device`` is none that autocast has here: meta, or a GPU that this machine lacks."""
    if not isinstance(device, str) or device == "cpu":
        return False
    return device == "meta" or (device in ("cuda", "xpu", "mps") and not torch.get_device_module(device).is_available())


def on_the_cpu(init: Callable[..., None]) -> Callable[..., None]:
    """``torch.autocast.__init__`` for a machine without GPUs: their regions are the CPU's, in their own default type."""

    @functools.wraps(init)
    def wrapper(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if _elsewhere(device_type):
            if dtype is None:
                dtype = _type("cuda" if device_type == "meta" else device_type)
            device_type = "cpu"
        init(self, device_type, dtype, *args, **kwargs)

    return wrapper


def query_the_cpu(plain: Callable[[str], Any]) -> Callable[..., Any]:
    """``torch.is_autocast_enabled`` and ``torch.get_autocast_dtype``, of the regions that ``on_the_cpu`` makes."""

    @functools.wraps(plain)
    def wrapper(device_type: str = "cuda") -> Any:
        return plain("cpu" if _elsewhere(device_type) else device_type)

    return wrapper
