"""The header of a safetensors file: eight bytes of its length, JSON, then the tensors' bytes.

Written against the format's description in its own repository (huggingface/safetensors, README.md, "Format").
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddplint.checkpoint.model import DIMENSIONS, ITEM_SIZES, Tensor
from ddplint.checkpoint.pickles import Broken

LONGEST = 1 << 25  # bytes of a header, some hundred for each tensor; the format allows 100 MB, 2.5 GB once they are parsed

_TYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
}


@dataclass(frozen=True, slots=True)
class Header:
    """``entries`` as they are written, in their order; ``data`` is where the tensors' bytes begin in the file."""

    entries: dict[str, dict[str, Any]]
    metadata: dict[str, str] | None
    data: int


def header(path: Path) -> Header:
    """The header of ``path``. Raises Broken where the file is not whole or not of this format, OSError as reading does."""
    size = os.path.getsize(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or length > size - 8:
            raise Broken("its header is not whole")
        if length > LONGEST:
            raise Broken("its header is longer than any checkpoint's")
        text = file.read(length)
    try:
        entries = json.loads(text.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError):
        raise Broken("its header is no JSON object") from None
    if not isinstance(entries, dict):
        raise Broken("its header is no JSON object")
    metadata = entries.pop("__metadata__", None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise Broken("its __metadata__ is not text alone")
    _refuse_bad_offsets(entries, size - 8 - length)
    return Header(entries, metadata, 8 + length)


def tensors(entries: dict[str, dict[str, Any]], file: str) -> list[Tensor]:
    """The tensors of a header's entries."""
    return [
        Tensor(
            key,
            tuple(entry["shape"]),
            _TYPES[entry["dtype"]],
            entry["data_offsets"][1] - entry["data_offsets"][0],
            f"{file}:{key}",
        )
        for key, entry in entries.items()
    ]


def written(entries: dict[str, dict[str, Any]], metadata: dict[str, str] | None) -> bytes:
    """A header, with its length in front, padded with blanks to a multiple of eight bytes."""
    table = entries if metadata is None else {"__metadata__": metadata, **entries}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _refuse_bad_offsets(entries: dict[str, Any], size: int) -> None:
    """Raise Broken unless each entry's bytes are as many as its shape says and all lie side by side over ``size`` bytes."""
    spans = []
    for key, entry in entries.items():
        name = key[:80]
        if key != key.encode(errors="replace").decode():
            raise Broken(f"its entry {name!r} has a name that is no Unicode text")
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise Broken(f"its entry {name!r} is not one of dtype, shape and data_offsets")
        shape, offsets = entry["shape"], entry["data_offsets"]
        whole = all(
            isinstance(part, list) and all(type(n) is int and 0 <= n < 2**62 for n in part) for part in (shape, offsets)
        )
        known = isinstance(entry["dtype"], str) and entry["dtype"] in _TYPES
        if not whole or not known or len(offsets) != 2 or len(shape) > DIMENSIONS:
            raise Broken(f"its entry {name!r} has a dtype, shape or offsets that can't be")
        numel = 1
        for length in shape:
            numel *= length
        if offsets[1] - offsets[0] != numel * ITEM_SIZES[_TYPES[entry["dtype"]]]:
            raise Broken(f"the bytes of {name!r} are not as many as its shape says")
        spans.append(tuple(offsets))
    end = 0
    for first, last in sorted(spans):
        if first != end:
            raise Broken("its tensors do not lie side by side")
        end = last
    if end != size:
        raise Broken(f"it has {size:,} bytes of tensors where its header says {end:,}: it was cut off or added to")
