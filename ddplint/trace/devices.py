"""Devices: whatever device code asks for becomes the trace's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

TraceDevice = Literal["meta", "cpu"]


def _is_accelerator(device: Any) -> bool:
    """Whether ``device`` (a string, an index, a ``torch.device``) names a device that is not this machine's CPU."""
    if isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True  # an index means the current accelerator
    kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    return kind in {"cuda", "xpu", "hpu", "mps", "npu", "xla", "privateuseone"}


class DeviceMode(TorchFunctionMode):
    """Every device that code asks for becomes the trace's device.

    On ``cpu`` accelerators become the CPU. On ``meta`` the CPU does too, and what is made without a device is made on
    meta, as under ``torch.device("meta")``; random generators are left out, for meta tensors draw nothing.
    """

    def __init__(self, device: TraceDevice) -> None:
        super().__init__()
        self.device = torch.device(device)
        self.on_meta = device == "meta"
        self._rewrites: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]] = {
            torch.Tensor.to: self._to,
            torch.Tensor.type: self._type,
        }
        self._same: frozenset[Any] = frozenset({torch.Tensor.pin_memory})
        self._constructors: set[Any] = set(_device_constructors()) | {torch.normal}

    def _maps(self, device: Any) -> bool:
        return self.on_meta or _is_accelerator(device)

    def _to(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        tensor, *rest = args
        mapped: list[Any] = []
        for position, value in enumerate(rest):
            if isinstance(value, torch.Tensor):
                mapped += [self.device if self._maps(value.device) else value.device, value.dtype]
            elif isinstance(value, (str, torch.device)) or (position == 0 and type(value) is int):
                mapped.append(self.device if self._maps(value) else value)
            else:
                mapped.append(value)
        return (tensor, *mapped)

    @staticmethod
    def _type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(a.replace("torch.cuda.", "torch.") if isinstance(a, str) else a for a in args)

    def rewrite(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """``func`` and its arguments with every device mapped; ``kwargs`` is changed in place."""
        device = kwargs.get("device")
        if device is not None:
            if self._maps(device):
                kwargs["device"] = self.device
        elif self.on_meta and func in self._constructors and func is not torch.normal:
            kwargs["device"] = self.device
        if self.on_meta and kwargs.get("generator") is not None:
            del kwargs["generator"]
        rewrite = self._rewrites.get(func)
        if rewrite is not None:
            args = rewrite(args, kwargs)
        elif func is torch.Tensor.cuda or (func is torch.Tensor.cpu and self.on_meta):
            return torch.Tensor.to, (args[0], self.device)
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return func, args

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs) if kwargs else {}
        if func in self._same:
            return args[0]
        if func is torch.Tensor.record_stream:
            return None
        func, args = self.rewrite(func, args, kwargs)
        return func(*args, **kwargs)
