"""TorchScript functions, which no mode sees; with PYTORCH_JIT=0 they run as Python."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.kinds.kind import Two


@torch.jit.script
def gate(a: Tensor, b: Tensor) -> Tensor:
    return torch.tanh(a) * torch.sigmoid(b)


@torch.jit.script
def cut(a: Tensor) -> Tensor:
    return a.detach() * 2


class ScriptedGate(Two):
    """Both inputs of a script carry gradient."""

    def forward(self, x: Tensor) -> Any:
        return gate(self.live(x), self.dead(x))


class ScriptedCut(Two):
    def forward(self, x: Tensor) -> Any:
        h = cut(self.dead(x))
        return self.live(x) + h
