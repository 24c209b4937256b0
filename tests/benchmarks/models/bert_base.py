"""A BERT-base with two labels, as a user has it: 110 million weights, a batch of 2 texts of 128 tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification


def build() -> nn.Module:
    return BertForSequenceClassification(BertConfig())


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    return (torch.ones(2, 128, dtype=torch.long),), {"labels": torch.zeros(2, dtype=torch.long)}


def loss(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.loss
    return found
