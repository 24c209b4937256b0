"""What an adapter answers, and what it may ask: classes of a framework that the target has imported itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Adapted:
    """What a factory returned, as its framework means it.

    ``model`` is what DDP wraps; ``inputs()`` makes example inputs, ``complete(inputs)`` adds to given ones what the model
    needs for a loss; ``loss(output)`` and ``step(model)`` as in ``ddplint.target.Target``; ``trained(model)`` the parameters
    of its optimizers. None where the framework has nothing to say. ``zeroes``: the model's step clears gradients itself.
    ``notices`` say what was made up.
    """

    name: str
    model: nn.Module
    inputs: Callable[[], Inputs] | None = None
    complete: Callable[[Inputs], Inputs] | None = None
    loss: Callable[[Any], Any] | None = None
    step: Callable[[nn.Module], Any] | None = None
    trained: Callable[[nn.Module], list[nn.Parameter]] | None = None
    zeroes: bool = False
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gives beside the factory; an adapter fills in the rest. ``known``: that has been done, and only the
    model is wanted.
    """

    inputs: bool
    loss: bool
    step: bool
    known: bool = False


def known(module: str, name: str) -> type | None:
    """The class ``name`` of ``module`` if that module is imported, else None: an instance of it can't be there."""
    found = getattr(sys.modules.get(module), name, None)
    return found if isinstance(found, type) else None


def is_a(value: object, *places: tuple[str, str]) -> bool:
    """Whether ``value`` is an instance of one of the classes at ``places``, (module, name) each."""
    classes = tuple(found for module, name in places if (found := known(module, name)) is not None)
    return isinstance(value, classes)


def parameters_of(optimizers: Iterable[Any]) -> list[nn.Parameter]:
    """The parameters in the groups of ``optimizers``, each once."""
    found: dict[int, nn.Parameter] = {}
    for optimizer in optimizers:
        for group in getattr(optimizer, "param_groups", ()):
            found |= {id(p): p for p in group["params"] if isinstance(p, nn.Parameter)}
    return list(found.values())


def fresh(value: Any) -> Any:
    """``value`` with every tensor in its containers copied, so that a run can't change the next one's."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, Mapping):
        copied = {key: fresh(item) for key, item in value.items()}
        return copied if type(value) is dict else _rebuilt(value, copied)
    if isinstance(value, (list, tuple)):
        items = [fresh(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _rebuilt(value: Any, copied: dict[Any, Any]) -> Any:
    """A mapping of the same class (transformers' BatchEncoding); where its class can't be made so, a dict."""
    try:
        return type(value)(copied)
    except TypeError:
        return copied
