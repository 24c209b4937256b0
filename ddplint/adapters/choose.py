"""Which adapter applies: found from what the factory returned, and from what the target has imported."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from ddplint.adapters import accelerate, lightning, peft, timm, transformers
from ddplint.adapters.base import Adapted, Given
from ddplint.adapters.transformers import without_weights as without_weights

FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "accelerate", "peft", "timm")
_IN_TURN = (lightning.adapt, peft.adapt, transformers.adapt, timm.adapt)


def imported() -> bool:
    """Whether the target has imported a framework that there is an adapter for."""
    return any(name in sys.modules for name in FRAMEWORKS)


def from_class(factory: Callable[..., Any]) -> Callable[..., Any] | None:
    """A factory made of a framework's own class; None if ``factory`` is none."""
    return factory if lightning.is_class(factory) else transformers.from_class(factory)


def adapt(made: Any, given: Given) -> Adapted | None:
    """What the framework of ``made`` makes of it; None if it is nobody's. Raises what the target raises."""
    whole, optimized = accelerate.taken_apart(made)
    prepared = accelerate.is_prepared(whole) or whole is not made
    model = whole.module if isinstance(whole, nn.parallel.DistributedDataParallel) else whole
    found = next((adapted for adapter in _IN_TURN if (adapted := adapter(model, given)) is not None), None)
    if not prepared:
        return found
    found = found or Adapted("", model)
    name = f"{found.name}, {accelerate.NAME}" if found.name else accelerate.NAME
    if not optimized:
        return replace(found, name=name)
    accelerate.hold(found.model, optimized)
    return replace(found, name=name, trained=accelerate.held)
