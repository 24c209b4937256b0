"""A checkpoint file of whatever format, as its state dict's names, shapes and sizes. No weight is loaded, nothing is run."""

from __future__ import annotations

import io
import json
import stat
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddplint.checkpoint import safetensors
from ddplint.checkpoint.model import ITEM_SIZES, Checkpoint, Optimizer, Place, Tensor
from ddplint.checkpoint.pickles import OPCODES, Bounded, Broken, View, load
from ddplint.errors import DdplintError
from ddplint.fields import shown

LARGEST_PICKLE = 1 << 28  # bytes; that of a model with a million tensors has some forty million
LARGEST_LIST = 1 << 25  # bytes of a zip archive's list of what is in it, some eighty for each tensor
DEEPEST = 6  # levels at which a state dict or an optimizer's state is looked for
# torch.save's first pickle before 1.6, which is a magic number (torch/serialization.py, MAGIC_NUMBER).
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
# Where training scripts and frameworks put the model, the likeliest first.
USUAL = ("state_dict", "model_state_dict", "model", "module", "net", "network", "weights", "params")
# What torch.optim's optimizers keep in the shape of the parameter (torch/optim/*.py, ``_init_group``).
_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "square_avg", "exp_inf", "acc_delta", "sum", "prev", "ax")
_KNOWN = "expected .pt, .pth or .bin as torch.save writes them, .safetensors, or a sharded file's .index.json"


def read(path: Path, key: str | None = None) -> Checkpoint:
    """The checkpoint in ``path``; ``key`` names the state dict ("ema.model"), where the file has several.

    Raises DdplintError where the file is missing, cut off, of another format, or would run code when it is loaded.
    """
    where = shown(path)
    try:
        if path.is_dir():
            raise DdplintError("is a folder", where=where, fix=f"name a file in it: {_KNOWN}")
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for, a device never ends
            raise DdplintError("is no regular file", where=where, fix="copy it to one")
        if path.name.endswith(".index.json"):
            return _sharded(path, key)
        return _of_file(path, key)
    except Broken as broken:
        raise DdplintError(f"can't be read as a checkpoint: {broken}", where=where, fix=_KNOWN) from None
    except OSError as error:
        raise DdplintError(f"can't be read: {error.strerror or error}", where=where, fix="name a file that can be") from None
    except DdplintError as error:
        raise error if error.where else DdplintError(error.what, where=where, fix=error.fix) from None


def _of_file(path: Path, key: str | None) -> Checkpoint:
    with path.open("rb") as file:
        start = file.read(32)
    if not start:
        raise Broken("it is empty")
    if start.startswith(b"PK\x03\x04"):
        return _found(path, "zip", _zipped(path), key)
    if start.startswith(_LEGACY):
        return _found(path, "legacy", _legacy(path), key)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        head = safetensors.header(path)
        if key is not None:
            raise DdplintError("a safetensors file is one state dict", where="--key", fix="leave it out")
        return Checkpoint(path, "safetensors", tuple(safetensors.tensors(head.entries, path.name)), (), (), (path,))
    if start[:1] == b"\x80":
        raise Broken("it is a bare pickle, not what torch.save writes")
    raise Broken("it is none that is known")


# ---------------------------------------------------------------------- what torch.save writes


def _zipped(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            bounded = Bounded(file, LARGEST_LIST)
            with zipfile.ZipFile(bounded) as archive:
                bounded.left = LARGEST_PICKLE
                return _of_archive(archive)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, ValueError, OverflowError) as error:
        if isinstance(error, RecursionError):
            raise Broken("it is nested too deeply") from None
        raise Broken(f"its zip archive is not whole ({error})") from None


def _of_archive(archive: zipfile.ZipFile) -> Any:
    entries = {entry.filename: entry for entry in archive.infolist()}
    # PyTorch's own reader finds the first of two, and takes upper for lower case (caffe2/serialize/inline_container.cc)
    if len({name.lower() for name in entries}) < len(archive.infolist()):
        raise Broken("two entries of its zip archive have one name")
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 for entry in entries.values()):
        raise Broken("its zip archive is compressed or encrypted, which torch.save does not do")
    pickles = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1:
        raise Broken("its zip archive is not one of torch.save (with one data.pkl)")
    folder = pickles[0].removesuffix("data.pkl")
    if any(name.startswith(f"{folder}code/") for name in entries):
        raise Broken("it is a TorchScript archive, not a checkpoint")
    if entries[pickles[0]].file_size > LARGEST_PICKLE:
        raise Broken("its pickle is larger than any checkpoint's")
    # zipfile reads no more than the size that the archive's own list gives
    loaded = load(io.BytesIO(archive.read(pickles[0])))
    for storage in loaded.storages:
        entry = entries.get(f"{folder}data/{storage.key}")
        if entry is None or entry.file_size < storage.numel * ITEM_SIZES[storage.dtype]:
            raise Broken(f"the bytes of storage {storage.key[:40]!r} are not all there")
    return loaded.value


def _legacy(path: Path) -> Any:
    size = path.stat().st_size
    with path.open("rb") as file:
        bounded = Bounded(file, LARGEST_PICKLE)
        for _ in range(3):  # the magic number, the protocol's version, the system's properties
            load(bounded, 1000)
        loaded = load(bounded, OPCODES // 2)
        known = {storage.key: storage for storage in loaded.storages}
        keys = load(bounded, OPCODES // 2).value
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise Broken("the list of its storages is missing")
        for key in keys:
            counted = file.read(8)
            if len(counted) < 8:
                raise Broken("it was cut off")
            numel = int.from_bytes(counted, "little")
            if numel > size:
                raise Broken("it was cut off")
            if key in known and numel < known[key].numel:
                raise Broken(f"the bytes of storage {key[:40]!r} are not all there")
            length = numel * ITEM_SIZES[known[key].dtype if key in known else "uint8"]
            if length > size - file.tell():
                raise Broken("it was cut off")
            file.seek(length, io.SEEK_CUR)
        if not known.keys() <= set(keys):
            raise Broken("the list of its storages is not whole")
    return loaded.value


def _walk(value: Any, place: Place = (), seen: set[int] | None = None) -> Iterator[tuple[Place, Any]]:
    """The tensors and containers in nested dicts, lists and tuples with their places, as deep as is looked for.

    What is in a container that is there several times is given once.
    """
    seen = set() if seen is None else seen
    yield place, value
    if not isinstance(value, (dict, list, tuple)) or not value or id(value) in seen or len(place) >= DEEPEST:
        return
    seen.add(id(value))
    for key, held in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(key, (str, int)) and isinstance(held, (dict, list, tuple, View)):
            yield from _walk(held, (*place, key), seen)


# ---------------------------------------------------------------------- the state dict in it


def _found(path: Path, format_: Any, value: Any, key: str | None) -> Checkpoint:
    dicts = [(place, item) for place, item in _walk(value) if isinstance(item, dict)]
    alone = {id(item): item for _, item in dicts}  # each looked at once, however often it is there
    known = {at: found for at, item in alone.items() if (found := _optimizer(item)) is not None}
    optimizers = tuple(replace(known[id(item)], place=place) for place, item in dicts if id(item) in known)
    inside = {optimizer.place for optimizer in optimizers}
    elsewhere = [(p, item) for p, item in dicts if not any(p[:length] in inside for length in range(len(p) + 1))]
    states: dict[Place, Any] = {}
    for mostly in (True, False):
        held = {at for at, item in alone.items() if _is_state_dict(item, mostly=mostly)}
        states = states or {place: item for place, item in elsewhere if id(item) in held}
    if not states and optimizers:
        raise Broken("it holds an optimizer's state and no model's")
    place = _chosen(states, key)
    tensors = tuple(
        Tensor(name, item.shape, item.dtype, item.bytes, item.storage.key)
        for name, item in states[place].items()
        if isinstance(item, View)
    )
    return Checkpoint(path, format_, tensors, place, optimizers, (path,))


def _is_state_dict(value: Any, *, mostly: bool) -> bool:
    """Whether ``value`` maps names to tensors: ``mostly``, or some among others."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    held = sum(isinstance(item, View) for item in value.values())
    return held > 0 and (held * 2 >= len(value) or not mostly)


def _chosen(states: dict[Place, Any], key: str | None) -> Place:
    named = {".".join(map(str, place)): place for place in states}
    if key is not None:
        if key not in named:
            raise DdplintError(f"no state dict at {key[:80]!r}", where="--key", fix=_of(named))
        return named[key]
    if not states:
        raise Broken("it holds no state dict, no mapping of names to tensors")
    if len(states) == 1:
        return next(iter(states))
    # where one is in it under a usual name, the top holds a random state or two beside it
    usual = [name for name in USUAL if name in named] or [name for name in named if not name]
    if len(usual) != 1:
        raise DdplintError(f"there are {len(states)} state dicts in it", fix=f"name one with --key. {_of(named)}")
    return named[usual[0]]


def _of(named: dict[str, Place]) -> str:
    names = [name[:80] or '""' for name in named]
    return f"There are: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}" if names else "There is none"


def _optimizer(value: dict[Any, Any]) -> Optimizer | None:
    """``value`` as a state dict of torch.optim (torch/optim/optimizer.py, ``state_dict``); None if it is none."""
    if not {"state", "param_groups"} <= value.keys():
        return None
    state, groups = value["state"], value["param_groups"]
    if not isinstance(state, dict) or not isinstance(groups, list):
        return None
    numbers = []
    names: list[str] = []
    seen: set[int] = set()
    for group in groups:
        params = group.get("params") if isinstance(group, dict) else None
        if not isinstance(params, list) or not all(type(number) is int for number in params):
            return None
        if not seen.isdisjoint(params) or len(set(params)) < len(params):
            raise Broken("a parameter is in its optimizer twice")
        seen.update(params)
        numbers.append(tuple(params))
        called = group.get("param_names")
        names += [n for n in called if isinstance(n, str)] if isinstance(called, list) and len(called) == len(params) else []
    sizes: dict[int, int] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    looked = 0
    for number, item in state.items():
        if type(number) is int:
            sizes[number] = 0
            for _, held in _walk(item):
                looked += 1
                if looked > OPCODES:
                    raise Broken("more of an optimizer's state than any checkpoint has")
                sizes[number] += held.bytes if isinstance(held, View) else 0
            kept = [item[name] for name in _MOMENTS if isinstance(item.get(name), View)] if isinstance(item, dict) else []
            shapes.update((number, moment.shape) for moment in kept[:1])
    return Optimizer((), tuple(numbers), sizes, tuple(names) if len(names) == len(seen) else (), shapes)


# ---------------------------------------------------------------------- a file of several


def _sharded(path: Path, key: str | None) -> Checkpoint:
    if key is not None:
        raise DdplintError("a sharded checkpoint is one state dict", where="--key", fix="leave it out")
    try:
        with path.open("rb") as file:
            index = json.loads(file.read(safetensors.LONGEST))
        shard_of = dict(index["weight_map"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Broken("it is no index of a sharded checkpoint (a JSON object with a weight_map)") from None
    if not shard_of:
        raise Broken("its weight_map is empty")
    names_in: dict[str, list[str]] = defaultdict(list)
    for tensor, name in shard_of.items():
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", "..") or not name.isprintable():
            raise Broken(f"its weight_map names {str(name)[:80]!r}, which is no file beside it")
        if name.endswith(".index.json"):
            raise Broken(f"its weight_map names {name[:80]!r}, which is an index itself")
        names_in[name].append(tensor)
    files = tuple(path.parent / name for name in names_in)
    tensors: dict[str, Tensor] = {}
    formats = set()
    for shard in map(read, files):
        formats.add(shard.format)
        held = {tensor.key: tensor for tensor in shard.tensors}
        for name in names_in[shard.path.name]:
            if name not in held:
                raise Broken(f"{name[:80]!r} is not in {shard.path.name}, where its weight_map has it")
            tensors[name] = held[name]
    return Checkpoint(path, next(iter(formats)), tuple(tensors[name] for name in shard_of), (), (), (path, *files))
