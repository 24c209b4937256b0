"""Devices: whatever device code asks for becomes the trace's own; on meta, small tensors keep their values beside them.

A meta tensor has no values, and a mask, an index table or a drawn number is asked for them. So small tensors that come
with values (example inputs, what factory functions make, buffers) have a *twin* on the CPU, and what is computed from
tensors with twins alone is computed on the twins as well. Weights have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from ddplint.trace import autocast

TraceDevice = Literal["meta", "cpu"]


def _is_accelerator(device: Any) -> bool:
    """Whether ``device`` (a string, an index, a ``torch.device``) names a device that is not this machine's CPU."""
    if isinstance(device, bool):
        return False
    if isinstance(device, int):
        return True  # an index means the current accelerator
    kind = device.type if isinstance(device, torch.device) else str(device).partition(":")[0]
    return kind in {"cuda", "xpu", "hpu", "mps", "npu", "xla", "privateuseone"}


SMALL = 2**16  # elements, up to which a tensor has a twin


class Twins:
    """CPU tensors with the values of meta tensors. ``below``: those known before, which are looked up and not changed."""

    def __init__(self, below: Twins | None = None) -> None:
        self.below = below
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._lost: set[int] = set()  # storages of twins that were written to with values nobody knows

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The twin of ``tensor``; a tensor that is not on meta is its own."""
        if not tensor.is_meta:
            return tensor
        pair = self._known.get(id(tensor))
        if pair is None:
            return self.below.of(tensor) if self.below is not None else None
        return None if self._lost and _storage(pair[1]) in self._lost else pair[1]

    def put(self, tensor: torch.Tensor, twin: torch.Tensor) -> None:
        """Make ``twin`` hold the values of ``tensor``."""
        if tensor.is_meta and twin.numel() <= SMALL and not twin.is_meta:
            self._known[id(tensor)] = tensor, twin.detach()

    def copy(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """``tensor`` has the values of ``other`` from now on, known or not."""
        twin = self.of(other)
        if twin is not None:
            self.put(tensor, twin)
        else:
            self.lose(tensor)

    def lose(self, tensor: torch.Tensor) -> None:
        """``tensor`` was written to with unknown values: nothing is known of it and its views any more."""
        twin = self.of(tensor)
        if twin is not None and tensor.is_meta:
            self._lost.add(_storage(twin))


# What these make does not depend on the values of what they are given.
_CONSTANT = {"zeros_like": torch.zeros, "ones_like": torch.ones, "new_zeros": torch.zeros, "new_ones": torch.ones}


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def tensors_among(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested lists, tuples, dicts and slices, in order."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_among(value)
    elif isinstance(values, dict):
        for value in values.values():
            yield from tensors_among(value)
    elif isinstance(values, slice):
        yield from tensors_among((values.start, values.stop, values.step))


def replaced(values: Any, change: Callable[[Any], Any]) -> Any:
    """``values`` with ``change`` applied to everything in nested lists, tuples, dicts and slices."""
    if isinstance(values, torch.Tensor):
        return change(values)
    if isinstance(values, (list, tuple)):
        changed = [replaced(value, change) for value in values]
        if isinstance(values, list):
            return changed
        return type(values)(*changed) if hasattr(values, "_fields") else tuple(changed)
    if isinstance(values, dict):
        return {key: replaced(value, change) for key, value in values.items()}
    if isinstance(values, slice):
        return slice(*(replaced(part, change) for part in (values.start, values.stop, values.step)))
    return change(values)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter that in-place operations raise; -1 for a tensor that keeps none.

    Inference tensors do not, nor what one was made of by ``.data = `` (there ``is_inference()`` does not say so).
    """
    try:
        return tensor._version
    except RuntimeError:
        return -1


# Products of which every kernel wants operands of one type; those for meta do not look (torch/_meta_registrations.py).
_SAME_TYPE = frozenset(
    {
        *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "addbmm", "baddbmm", "addmv"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    }
)


def _refuse_mixed_types(given: Sequence[torch.Tensor]) -> None:
    """Raise what a real product of these raises."""
    types = list(dict.fromkeys(t.dtype for t in given if t.is_floating_point() or t.is_complex()))
    if len(types) > 1:
        raise RuntimeError(f"expected operands of one type, but got {types[0]} and {types[1]}")


class DeviceMode(TorchFunctionMode):
    """Every device that code asks for becomes the trace's device.

    On ``cpu`` accelerators become the CPU. On ``meta`` the CPU does too, and what is made without a device is made on
    meta, as under ``torch.device("meta")``.
    """

    def __init__(self, device: TraceDevice, twins: Twins | None = None) -> None:
        super().__init__()
        self.twins = twins if twins is not None else Twins()
        self.device = torch.device(device)
        self.on_meta = device == "meta"
        self._moved: dict[int, torch.Tensor] = {}
        self._kept: list[torch.Tensor] = []
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
        return self.execute(func, args, kwargs)

    def execute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The call itself; on meta on the twins as well, if all tensors in it have one."""
        if not self.on_meta:
            return func(*args, **kwargs)
        args, kwargs = self._all_on_meta(args, kwargs)
        given = list(tensors_among((args, kwargs)))
        name = getattr(func, "__name__", "")
        twins = [self.twins.of(t) for t in given]
        known = all(twin is not None for twin in twins)
        versions = [(t, version_of(t)) for t, twin in zip(given, twins, strict=True) if twin is not None and not known]
        on_twins = {key: value for key, value in kwargs.items() if key != "device"}
        if "device" in kwargs:
            on_twins["device"] = "cpu"
        drawing = kwargs.pop("generator", None)  # meta tensors draw nothing, and a CPU generator does not fit them
        to = autocast.wanted(name, given)
        if to is None and name in _SAME_TYPE:
            _refuse_mixed_types(given)
        try:
            if to is None:
                result = func(*args, **kwargs)
            else:
                cast_args, cast_kwargs = replaced((args, kwargs), lambda value: autocast.cast(value, to))
                result = func(*cast_args, **cast_kwargs)
        except (RuntimeError, NotImplementedError):
            if not known or not given or any(t.requires_grad for t in given):
                return self._by_positions(func, args, kwargs)
            result = None
            values = self._on_twins(func, args, on_twins)
            return replaced(values, self._on_meta) if any(True for _ in tensors_among(values)) else values
        finally:
            if drawing is not None:
                kwargs["generator"] = drawing
        for tensor, version in versions:
            if version_of(tensor) != version:
                self.twins.lose(tensor)
        if name == "__set__" and func.__self__.__name__ == "data" and isinstance(args[1], torch.Tensor):
            self.twins.copy(args[0], args[1])
        elif not known and name in _CONSTANT and isinstance(result, torch.Tensor) and result.numel() <= SMALL:
            self.twins.put(result, _CONSTANT[name](tuple(result.shape), dtype=result.dtype, device="cpu"))
        made = list(tensors_among(result))
        makes = known and (given or func in self._constructors) and all(t.numel() <= SMALL for t in made)
        if makes and (made or any(version_of(t) > 0 for t in given)):
            values = self._on_twins(func, args, on_twins)
            found = list(tensors_among(values))
            if len(found) == len(made):  # a twin has no `.grad` of its own
                for tensor, twin in zip(made, found, strict=True):
                    self.twins.put(tensor, twin)
        return result

    def _on_twins(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        def twin(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.twins.of(value)
            return torch.device("cpu") if isinstance(value, torch.device) and value.type == "meta" else value

        with torch.no_grad():
            return func(*replaced(args, twin), **replaced(kwargs, twin))

    def _on_meta(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_meta:
            return value
        moved = value.to("meta")
        self.twins.put(moved, value)
        return moved

    def _by_positions(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Indexing by a mask whose values are known, of a tensor whose values are not: by the positions in the mask."""
        if getattr(func, "__name__", "") == "masked_select" and len(args) == 2:
            known = self.twins.of(args[1])
            if known is None:
                return func(*args, **kwargs)
            shape = torch.broadcast_shapes(args[0].shape, known.shape)  # type: ignore[no-untyped-call]
            args = args[0].expand(shape), self._on_meta(known.expand(shape).contiguous())
            func = torch.Tensor.__getitem__
        if getattr(func, "__name__", "") != "__getitem__":
            return func(*args, **kwargs)
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        positions: list[Any] = []
        for part in index:
            if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
                mask = self.twins.of(part)
                if mask is None:
                    return func(*args, **kwargs)
                positions += [self._on_meta(p) for p in mask.nonzero(as_tuple=True)]
            else:
                positions.append(part)
        return torch.Tensor.__getitem__(args[0], tuple(positions))

    def _all_on_meta(self, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Arguments with CPU tensors (from numpy, from a file) put on meta; a 0-dim CPU tensor mixes with any device."""
        if all(t.is_meta or t.dim() == 0 for t in tensors_among((args, kwargs))):
            return args, kwargs

        def move(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.is_meta or value.dim() == 0:
                return value
            if value.requires_grad:
                raise RuntimeError("a CPU tensor that requires grad meets meta tensors")
            known = self._moved.get(id(value))
            if known is None:
                known = self._on_meta(value)
                self._moved[id(value)] = known
                self._kept.append(value)
            return known

        return replaced(args, move), replaced(kwargs, move)
