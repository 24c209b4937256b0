"""A Llama of 69 billion weights (Llama 2's shape), a text of 128 tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


def build() -> nn.Module:
    shape = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        use_cache=False,
    )
    return LlamaForCausalLM(shape)


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    tokens = torch.ones(1, 128, dtype=torch.long)
    mask = torch.ones(1, 1, 128, 128, dtype=torch.bool).tril()  # of two dimensions, its values are read
    return (), {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def loss(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.loss
    return found
