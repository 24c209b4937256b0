"""A BERT-large with two labels: 335 million weights, a batch of 2 texts of 128 tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def build() -> nn.Module:
    shape = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return BertForSequenceClassification(shape)


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    return (torch.ones(2, 128, dtype=torch.long),), {"labels": torch.zeros(2, dtype=torch.long)}


def loss(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.loss
    return found
