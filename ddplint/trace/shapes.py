"""Operators on meta tensors, computed once for each combination of shapes.

Most of a run on meta is Python that works out what an operator's result looks like; a model's layers, its paths and DDP's
iterations ask for the same again and again.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class _Unlike(Exception):
    """An argument or a result that says more than its shape."""


def _shape(value: Any) -> Any:
    """What of ``value`` an operation's result on meta depends on, hashable. Raises _Unlike."""
    kind = type(value)
    if kind is torch.Tensor or kind is nn.Parameter:
        if not value.is_meta or value.layout is not torch.strided or value.dtype.is_complex:  # complex: may be conjugate
            raise _Unlike
        return value.shape, value.stride(), value.dtype
    if isinstance(value, torch.Tensor):
        raise _Unlike
    if kind is list or kind is tuple:
        return tuple([_shape(item) for item in value])
    return kind, value


class Shapes:
    """Calls operators on meta tensors, and computes only once what comes out for the same operator, shapes and numbers.

    Meta tensors are nothing but shapes, and layers and iterations are alike: of a large model's calls a few hundred
    differ. Only operators that return new tensors are answered from memory.
    """

    def __init__(self) -> None:
        self._pure: dict[Any, bool] = {}
        self._known: dict[Any, tuple[bool, tuple[Any, ...]]] = {}

    @staticmethod
    def _is_pure(func: Any) -> bool:
        schema = func._schema
        by_value = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
        return (
            bool(schema.returns)
            and all(str(r.type) == "Tensor" and r.alias_info is None for r in schema.returns)
            and all(argument.alias_info is None for argument in schema.arguments)
            and not by_value.intersection(func.tags)
        )

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``func(*args, **kwargs)``."""
        pure = self._pure.get(func)
        if pure is None:
            pure = self._pure[func] = self._is_pure(func)
        if not pure:
            return func(*args, **kwargs)
        try:
            key = (func, _shape(args), tuple([(name, _shape(value)) for name, value in kwargs.items()]))
            known = self._known.get(key)
        except (_Unlike, TypeError):  # TypeError: not hashable
            return func(*args, **kwargs)
        if known is not None:
            several, shapes = known
            made = [_made(shape) for shape in shapes]
            return tuple(made) if several else made[0]
        result = func(*args, **kwargs)
        several = isinstance(result, tuple)
        with contextlib.suppress(_Unlike):
            self._known[key] = several, _shape(result if several else (result,))
        return result


def _made(shape: Any) -> torch.Tensor | None:
    """A new tensor of a shape that ``_shape`` gave; a backward returns None for the gradients it is not asked for."""
    if len(shape) == 2:
        return None
    size, stride, dtype = shape
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


class RememberingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, operators on meta tensors are answered by ``shapes``."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled while this is on. Else each operator goes through ``torch._dynamo``, and that is imported
        (``TorchDispatchMode.__init_subclass__`` in torch/utils/_python_dispatch.py).
        """
        return False

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes = shapes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # what is called from here is not the target's
            return self.shapes.call(func, args, kwargs or {})
