"""Cheap operations on a small tensor, one after the other: ``nodes`` of them, each with a parameter of its own or none."""

from __future__ import annotations

import torch
from torch import nn


class Chain(nn.Module):
    """``nodes`` operations; with ``parameters`` each multiplies by one, without all but the first are ``sin``."""

    def __init__(self, nodes: int, parameters: bool) -> None:
        super().__init__()
        self.sines = 0 if parameters else nodes - 1
        self.factors = nn.ParameterList(nn.Parameter(torch.zeros(4)) for _ in range(nodes if parameters else 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of any input that four factors can be multiplied with."""
        for factor in self.factors:
            x = x * factor
        for _ in range(self.sines):
            x = x.sin()
        return x


def build(nodes: int, parameters: bool) -> nn.Module:
    return Chain(nodes, parameters)


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    return (torch.zeros(4),), {}


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.sum()
