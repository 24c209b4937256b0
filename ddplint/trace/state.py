"""A model's own state, kept so that every path starts from the same place."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from types import GeneratorType, ModuleType
from typing import Any

import torch
from torch import nn

from ddplint.trace.devices import version_of
from ddplint.trace.run import Built


@dataclass(frozen=True, slots=True)
class Changes:
    """What a step changed in a model: anything (its truth), and whether more than the running statistics of normalisation
    layers. ``untouched``: ids of the tensors that it did not write to; none, where anything but tensors changed.
    """

    anything: bool = True
    lasting: bool = False
    untouched: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return self.anything


class State:
    """A model's own state, to start each path from the same place.

    Buffers and parameters, plain attributes, and what these hold: containers, arrays, tensors and ordinary objects. A
    generator can't be put back; a model that has one counts as changed after every step.
    """

    def __init__(self, built: Built) -> None:
        model = built.model
        self._owners: dict[int, tuple[Any, dict[str, Any]]] = {}  # modules and objects, with copies of their attributes
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        for module in model.modules():
            self._keep(module, tensors)
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
        self._statistics = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
        self._pictures = self._seen()
        self._tensors = [(t, t.detach().clone(), version_of(t)) for t in tensors.values()]
        known = ((t, built.twins.of(t)) for t in tensors.values())
        self._twins = [(twin, twin.clone()) for t, twin in known if twin is not None and t.is_meta]

    def _keep(self, owner: Any, tensors: dict[int, torch.Tensor]) -> None:
        if id(owner) in self._owners:
            return
        self._owners[id(owner)] = owner, {}
        self._owners[id(owner)] = owner, {key: self._copied(value, tensors) for key, value in vars(owner).items()}

    def _copied(self, value: Any, tensors: dict[int, torch.Tensor]) -> Any:
        """``value`` with its containers copied; tensors and objects inside are noted, and stay themselves."""
        if isinstance(value, torch.Tensor):
            tensors.setdefault(id(value), value)
        elif type(value) in (list, tuple, set):
            return type(value)(self._copied(item, tensors) for item in value)
        elif isinstance(value, deque):
            return deque((self._copied(item, tensors) for item in value), value.maxlen)
        elif isinstance(value, dict):
            copied = copy.copy(value)
            copied.update((key, self._copied(item, tensors)) for key, item in value.items())
            return copied
        elif _is_array(value) or (hasattr(value, "__next__") and not isinstance(value, GeneratorType)):
            return copy.copy(value)
        elif _is_object(value):
            self._keep(value, tensors)
        return value

    def _seen(self) -> list[Any]:
        memo: dict[int, Any] = {}
        return [_picture(vars(owner), memo) for owner, _ in self._owners.values()]

    def changed(self) -> Changes:
        """What a step left different."""
        written = frozenset(id(t) for t, _, version in self._tensors if version_of(t) != version)
        if self._seen() != self._pictures:
            return Changes(lasting=True)
        untouched = frozenset(id(t) for t, _, _ in self._tensors) - written
        return Changes(bool(written), bool(written - self._statistics), untouched)

    def restore(self) -> None:
        """Put everything back."""
        for owner, before in self._owners.values():
            now = vars(owner)
            for key in [k for k in now if k not in before]:
                del now[key]
            for key, value in before.items():
                if key not in now or not _alike(now[key], value):
                    now[key] = self._copied(value, {})
        with torch.no_grad():
            for tensor, value, version in self._tensors:
                if version_of(tensor) != version and not tensor.is_meta:
                    tensor.detach().copy_(value)
                tensor.grad = None
            for twin, value in self._twins:
                twin.copy_(value)
        self._tensors = [(t, value, version_of(t)) for t, value, _ in self._tensors]


def _alike(now: Any, before: Any) -> bool:
    """Whether an attribute is as it was. What is still itself is: of what can change within, ``before`` is a copy, or it is
    an object, which is kept by itself.
    """
    if now is before:
        return True
    if type(now) is type(before) and isinstance(now, (dict, list, set, tuple)) and not now and not before:
        return True
    memo: dict[int, Any] = {}
    return bool(_picture(now, memo) == _picture(before, memo))


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _is_object(value: Any) -> bool:
    """Whether ``value`` is an object of the target's, with attributes that its code may change."""
    if isinstance(value, (type, ModuleType, nn.Module, torch.Tensor)) or callable(value) or not hasattr(value, "__dict__"):
        return False
    return not type(value).__module__.startswith(("torch.", "builtins"))


def _picture(value: Any, memo: dict[int, Any]) -> Any:
    """What of ``value`` can change, comparable: plain values as they are, anything else by identity."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, torch.Tensor):  # whether it was written to is asked of its version
        return id(value)
    if id(value) in memo:
        return memo[id(value)]
    memo[id(value)] = id(value)  # of one that holds itself
    picture: Any = id(value)
    if isinstance(value, (list, tuple, deque)):
        picture = type(value), [_picture(item, memo) for item in value]
    elif isinstance(value, dict):
        picture = [(_picture(key, memo), _picture(item, memo)) for key, item in value.items()]
    elif isinstance(value, (set, frozenset)):
        picture = {_picture(item, memo) if isinstance(item, str) else hash(item) for item in value}
    elif _is_array(value):
        picture = value.tobytes()
    elif hasattr(value, "__next__"):
        picture = object()  # how far it has come can't be asked
    elif _is_object(value):
        picture = id(value), _picture(vars(value), memo)
    memo[id(value)] = picture
    return picture
