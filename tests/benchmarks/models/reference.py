"""The reference finetune model from the checkpoint type hybrid, as rules/hybrid.toml has it."""

from __future__ import annotations

from torch import nn

from ddplint.reference import finetune

inputs, loss = finetune.inputs, finetune.loss


def build() -> nn.Module:
    return finetune.build(checkpoint="hybrid")
