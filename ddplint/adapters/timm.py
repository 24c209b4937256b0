"""timm: the example image has the size and channels that the model was built for; the loss is taken of all outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddplint.adapters.base import Adapted, Given, Inputs

NAME = "timm"
BATCH = 2


def adapt(made: Any, given: Given) -> Adapted | None:
    """``made`` as a timm model: a class of timm's with a ``default_cfg``; else None."""
    if "timm" not in sys.modules or not isinstance(made, nn.Module) or not type(made).__module__.startswith("timm."):
        return None
    configured = getattr(made, "pretrained_cfg", None) or getattr(made, "default_cfg", None)
    if not configured or given.inputs or given.step or given.known:
        return Adapted(NAME, made)
    shape = (BATCH, *_size(made, configured))
    return Adapted(NAME, made, inputs=_maker(shape), notices=(f"timm: the example input is an image of shape {shape}",))


def _size(model: nn.Module, configured: Any) -> tuple[int, int, int]:
    """Channels, height and width. ``default_cfg`` has those of the pretrained weights; arguments of the factory that
    changed them show in the first convolution, and in the patch embedding's size.
    """
    channels, height, width = configured["input_size"]
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    if first is not None:
        channels = first.in_channels
    built = getattr(getattr(model, "patch_embed", None), "img_size", None)
    if built is not None:
        height, width = built if isinstance(built, (tuple, list)) else (built, built)
    return int(channels), int(height), int(width)


def _maker(shape: tuple[int, ...]) -> Callable[[], Inputs]:
    return lambda: ((torch.linspace(0.0, 40.0, torch.Size(shape).numel()).sin().reshape(shape),), {})
