"""Checkpoint files to read: every format, whole, and damaged."""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddplint.checkpoint import safetensors


def state() -> dict[str, Tensor]:
    """A small state dict of several types, two of its tensors on one storage, one of them empty."""
    torch.manual_seed(0)
    weight = torch.randn(4, 3)
    return {
        "encoder.weight": weight,
        "encoder.tied": weight,
        "encoder.bias": torch.randn(4).bfloat16(),
        "encoder.half": torch.randn(2, 2).half(),
        "encoder.none": torch.zeros(0, 5),
        "steps": torch.tensor(7),
    }


def training() -> dict[str, Any]:
    """A whole training checkpoint: the model, AdamW's state, numbers, and what scripts put beside."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "lr": 1e-3,
        "rng": torch.get_rng_state(),
        "args": argparse.Namespace(depth=3),
        "names": ["a", "b"],
    }


def save_safetensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> Path:
    """``tensors`` in the format, written by hand."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}
    entries, data = {}, b""
    for key, tensor in tensors.items():
        raw = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""
        entries[key] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    path.write_bytes(safetensors.written(entries, metadata) + data)
    return path


def save_sharded(folder: Path, tensors: dict[str, Tensor]) -> Path:
    """``tensors`` in two files, and their index."""
    shards = {"one.safetensors": list(tensors)[::2], "two.safetensors": list(tensors)[1::2]}
    for name, keys in shards.items():
        save_safetensors(folder / name, {key: tensors[key] for key in keys})
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {}, "weight_map": {key: name for name, keys in shards.items() for key in keys}})
    )
    return index


def of_every_format(folder: Path) -> dict[str, Path]:
    """One file of each."""
    torch.save(state(), folder / "zip.pt")
    torch.save(state(), folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(training(), folder / "training.pt")
    torch.save(training(), folder / "training_legacy.pt", _use_new_zipfile_serialization=False)
    save_safetensors(folder / "model.safetensors", state(), {"format": "pt"})
    (folder / "sharded").mkdir()
    return {
        **{name: folder / f"{name}.pt" for name in ("zip", "legacy", "training", "training_legacy")},
        "safetensors": folder / "model.safetensors",
        "sharded": save_sharded(folder / "sharded", state()),
    }


def damaged(data: bytes, draw: random.Random) -> bytes:
    """``data`` with one to three kinds of damage."""
    for _ in range(draw.randint(1, 3)):
        kind, at = draw.choice(("cut", "flip", "zero", "insert", "swap", "repeat", "head")), draw.randrange(len(data) + 1)
        span = draw.choice((1, 1, 4, 16, 64))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
        elif kind == "zero":
            data = data[:at] + bytes(len(data[at : at + span])) + data[at + span :]
        elif kind == "insert":
            data = data[:at] + draw.randbytes(span) + data[at:]
        elif kind == "swap":
            data = data[at:] + data[:at]
        elif kind == "repeat":
            data = data[:at] + data[at : at + span] * 2 + data[at + span :]
        else:  # where the pickle or the header is
            at = draw.randrange(min(len(data), 900) + 1)
            data = data[:at] + draw.randbytes(span) + data[at + span :]
    return data
