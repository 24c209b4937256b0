"""accelerate: what ``Accelerator.prepare`` returns, taken apart. The model is the one inside its wrap."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from ddplint.adapters.base import parameters_of
from ddplint.errors import DdplintError

NAME = "accelerate"


def forget() -> None:
    """Let accelerate find out anew which rank it runs on: it keeps what it found first (accelerate/state.py).

    Only on the process group that ddplint has made itself; a live process keeps its state.
    """
    state = sys.modules.get("accelerate.state")
    if state is None or not dist.is_initialized() or dist.get_backend() != "fake":
        return
    state.AcceleratorState._reset_state(True)
    state.GradientState._reset_state()


def imported() -> bool:
    """Whether the target has imported accelerate."""
    return "accelerate" in sys.modules


def is_prepared(made: Any) -> bool:
    """Whether an Accelerator has prepared ``made`` (accelerate/accelerator.py, ``prepare``)."""
    return imported() and bool(getattr(made, "_is_accelerate_prepared", False))


class _Held:
    """What the optimizers have that were prepared with a model: names of its own parameters, and others."""

    __slots__ = ("names", "others")  # no state of the model that a path could change

    def __init__(self, names: list[str], others: list[nn.Parameter]) -> None:
        self.names, self.others = names, others


def hold(model: Any, parameters: list[nn.Parameter]) -> None:
    """Keep with ``model`` what its optimizers have: by name, for parameters are replaced where a model is moved to meta."""
    names = {id(p): name for name, p in model.named_parameters()}
    own = [names[id(p)] for p in parameters if id(p) in names]
    model.ddplint_optimized = _Held(own, [p for p in parameters if id(p) not in names])


def held(model: Any) -> list[nn.Parameter]:
    """What ``hold`` kept."""
    kept: _Held = model.ddplint_optimized
    return [*(model.get_parameter(name) for name in kept.names), *kept.others]


def taken_apart(made: Any) -> tuple[Any, list[nn.Parameter]]:
    """The one module among several prepared objects, and the parameters of the optimizers among them.

    What is no sequence, or holds no module, is returned as it is. Raises DdplintError where there are several.
    """
    if not imported() or not isinstance(made, Sequence) or isinstance(made, (str, bytes)):
        return made, []
    modules = [item for item in made if isinstance(item, nn.Module)]
    if len(modules) > 1:
        raise DdplintError(
            f"the factory returned {len(modules)} modules", where="factory", fix="return the one that is trained under DDP"
        )
    return (modules[0] if modules else made), parameters_of(made)
