"""A Llama of 7 billion weights (Llama 2's shape), a text of 128 tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def build() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(use_cache=False))


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    tokens = torch.ones(1, 128, dtype=torch.long)
    mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()  # of two dimensions, its values are read
    return (), {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def loss(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.loss
    return found
