"""A wav2vec2 of 48 layers with layer drop (XLS-R's shape of a billion weights), half a second of sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification


def build() -> nn.Module:
    shape = Wav2Vec2Config(
        hidden_size=1280,
        intermediate_size=5120,
        num_hidden_layers=48,
        num_attention_heads=16,
        conv_bias=True,
        do_stable_layer_norm=True,
        feat_extract_norm="layer",
        layerdrop=0.1,
    )
    return Wav2Vec2ForSequenceClassification(shape)


def inputs() -> tuple[tuple[object, ...], dict[str, object]]:
    sound = torch.randn(2, 8000, generator=torch.Generator().manual_seed(1))
    return (sound,), {"labels": torch.zeros(2, dtype=torch.long)}


def loss(output: Any) -> torch.Tensor:
    found: torch.Tensor = output.loss
    return found
