"""The side of ``ddplint strip`` that holds weights: the file is written without the dead tensors, and that is proven.

It runs in the worker (``ddplint.worker``), as the target does. A file is read with ``weights_only=True`` (torch.load) or as
plain bytes (safetensors), never as a bare pickle.
"""

from __future__ import annotations

import contextlib
import copy
import mmap
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddplint.blame import blame
from ddplint.checkpoint import safetensors
from ddplint.errors import DdplintError
from ddplint.request import Request, Strip
from ddplint.stages import say
from ddplint.target import Target, load
from ddplint.trace.devices import DeviceMode
from ddplint.trace.environment import without_gpu
from ddplint.trace.recorder import tensors_in
from ddplint.trace.run import build, on_device, seed_everything, weight_bytes

SEEDS = 3  # each example input is run with as many


@dataclass(frozen=True, slots=True)
class Proof:
    """What was compared: runs of the model, and tensors in what they returned; ``others`` are kept tensors of the file."""

    runs: int
    outputs: int
    others: int

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


def strip(request: Request) -> Proof:
    """Write ``request.strip``'s draft, and prove it. Raises DdplintError where that can't be done or does not hold."""
    asked = request.strip
    assert asked is not None
    say("writing")
    write = _without_safetensors if asked.format == "safetensors" else _without_saved
    others = write(asked)
    before, after = _weights(Path(asked.file), asked), _weights(Path(asked.draft), asked)
    lost = before.keys() - after.keys()
    if lost != set(asked.keys) or any(not _same(before[key], after[key]) for key in after):
        raise DdplintError("what was written is not what was to be kept", where=asked.draft, fix="this is a bug of ddplint")
    say("proving")
    runs, outputs = _proven(request, asked, before, after)
    return Proof(runs, outputs, others + len(after))


# ---------------------------------------------------------------------- the file


def _without_safetensors(asked: Strip) -> int:
    head = safetensors.header(Path(asked.file))
    kept = {key: entry for key, entry in head.entries.items() if key not in asked.keys}
    entries, end = {}, 0
    for key, entry in sorted(kept.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        entries[key] = {**entry, "data_offsets": [end, end + last - first]}
        end += last - first
    ordered = {key: entries[key] for key in kept}
    with _writing(asked), open(asked.file, "rb") as source, open(asked.draft, "wb") as draft:
        draft.write(safetensors.written(ordered, head.metadata))
        for key in entries:
            first, last = kept[key]["data_offsets"]
            source.seek(head.data + first)
            _copied(source, draft, last - first)
        draft.flush()
        os.fsync(draft.fileno())
    return 0


@contextlib.contextmanager
def _writing(asked: Strip) -> Iterator[None]:
    """Raises DdplintError where the draft can't be written, on a full disk or for what torch.save can't save."""
    try:
        yield
    except RecursionError:
        raise DdplintError(
            "is nested too deeply for torch.save to write it again", where=asked.file, fix="save the state dict alone"
        ) from None
    except (OSError, RuntimeError) as error:  # torch.save's writer tells of a full disk in the latter
        what = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise DdplintError(
            f"can't be written to: {what}", where=str(Path(asked.draft).parent), fix="make room, or name a file elsewhere"
        ) from None


def _copied(source: Any, draft: Any, length: int) -> None:
    while length:
        piece = source.read(min(length, 1 << 24))
        if not piece:
            raise DdplintError("became shorter while it was read", where=source.name, fix="let nobody write to it")
        draft.write(piece)
        length -= len(piece)


def _without_saved(asked: Strip) -> int:
    """The number of tensors that are kept beside the state dict's."""
    value = _loaded(Path(asked.file), asked)
    pruned = _at(value, asked.place, lambda state: _without_keys(state, asked.keys))
    for place, dead in asked.optimizers:
        pruned = _at(pruned, place, lambda state, dead=dead: _without_numbers(state, set(dead)))
    with _writing(asked), open(asked.draft, "wb") as draft:
        torch.save(pruned, draft, _use_new_zipfile_serialization=asked.format == "zip")
        draft.flush()
        os.fsync(draft.fileno())
    again = _loaded(Path(asked.draft), asked)
    if not _equal(pruned, again):
        raise DdplintError("what was written is not what was to be kept", where=asked.draft, fix="this is a bug of ddplint")
    return sum(1 for _ in tensors_in([_at_only(again, place) for place, _ in asked.optimizers]))


def _loaded(path: Path, asked: Strip) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=asked.format == "zip")
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError) as error:
        what = " ".join(str(error).split())[:300]
        raise DdplintError(
            f"torch.load refuses it with weights_only=True: {what}", where=str(path), fix="save the state dict alone"
        ) from None


def _at(value: Any, place: Sequence[str | int], change: Any) -> Any:
    """``value`` with what is at ``place`` changed; the containers on the way are copies."""
    if not place:
        return change(value)
    made: Any = copy.copy(value) if not isinstance(value, tuple) else list(value)
    made[place[0]] = _at(value[place[0]], place[1:], change)
    return tuple(made) if isinstance(value, tuple) else made


def _at_only(value: Any, place: Sequence[str | int]) -> Any:
    for key in place:
        value = value[key]
    return value


def _without_keys(state: Any, keys: Sequence[str]) -> Any:
    gone = set(keys)
    kept = copy.copy(state)  # of its own type, whatever that is made of
    for key in gone:
        del kept[key]
    if isinstance(state, OrderedDict) and hasattr(state, "_metadata"):
        kept._metadata = state._metadata
    return kept


def _without_numbers(optimizer: dict[str, Any], dead: set[int]) -> dict[str, Any]:
    """An optimizer's state dict without the parameters of these numbers; the others are numbered anew, in their order."""
    kept = [number for group in optimizer["param_groups"] for number in group["params"] if number not in dead]
    anew = {number: position for position, number in enumerate(kept)}
    groups = []
    for group in optimizer["param_groups"]:
        left = [position for position, number in enumerate(group["params"]) if number not in dead]
        changed = {**group, "params": [anew[group["params"][position]] for position in left]}
        if "param_names" in group:  # torch/optim/optimizer.py: one a parameter, where the optimizer was given names
            changed["param_names"] = [group["param_names"][position] for position in left]
        groups.append(changed)
    state = {anew.get(number, number): held for number, held in optimizer["state"].items() if number not in dead}
    return {**optimizer, "state": state, "param_groups": groups}


def _equal(one: Any, other: Any) -> bool:
    """Whether two loaded values are the same, tensors bit for bit."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and _same(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        same = type(one) is type(other) and len(one) == len(other)
        return same and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and bool(one == other or one != one)


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are the same, bit for bit: NaN is, too."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if not one.numel():
        return True
    left, right = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(left, right)


def _weights(path: Path, asked: Strip) -> dict[str, torch.Tensor]:
    """The state dict's tensors by key."""
    if asked.format != "safetensors":
        state = _at_only(_loaded(path, asked), asked.place)
        return {key: held for key, held in state.items() if isinstance(held, torch.Tensor)}
    head = safetensors.header(path)
    found = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        for tensor in safetensors.tensors(head.entries, path.name):
            dtype = getattr(torch, tensor.dtype)
            first, last = head.entries[tensor.key]["data_offsets"]
            flat = torch.zeros(0, dtype=dtype)
            if last > first:
                flat = torch.frombuffer(bytearray(data[head.data + first : head.data + last]), dtype=dtype)
            found[tensor.key] = flat.reshape(tensor.shape)
    return found


# ---------------------------------------------------------------------- the proof


def _proven(
    request: Request, asked: Strip, before: Mapping[str, torch.Tensor], after: Mapping[str, torch.Tensor]
) -> tuple[int, int]:
    """The runs and the tensors that were compared: the model with all of the file, and with NaN for what is gone."""
    with without_gpu(world_size=max(request.ranks, 1)):
        target = load(request.target)
        whole, missing = _filled(target, asked, before)
        _refuse_large(whole)
        expected = _returned(target, whole)
        del whole
        stripped, missing_now = _filled(target, asked, after)
        if missing_now - missing != set(asked.names) or missing - missing_now:
            odd = sorted((missing_now - missing) ^ set(asked.names))[:3]
            raise DdplintError(f"the stripped file lacks other names than the dead: {', '.join(odd)}", where=asked.file)
        gone = [p for name, p in stripped.named_parameters(remove_duplicate=False) if name in set(asked.names)]
        with torch.no_grad():
            for parameter in gone:
                floating = parameter.is_floating_point() or parameter.is_complex()
                parameter.fill_(float("nan") if floating else True if parameter.dtype == torch.bool else 101)
        found = _returned(target, stripped)
    compared = 0
    for run, (one, other) in enumerate(zip(expected, found, strict=True), 1):
        if len(one) != len(other) or not all(_same(a, b) for a, b in zip(one, other, strict=True)):
            raise DdplintError(
                f"the model computes something else without them (run {run} of {len(expected)})",
                where=asked.file,
                fix="their values are used, if not trained: freeze them, and let them stay",
            )
        compared += len(one)
    return len(expected), compared


def _filled(target: Target, asked: Strip, weights: Mapping[str, torch.Tensor]) -> tuple[nn.Module, set[str]]:
    """A new model with ``weights``, and the names that these lack."""
    model = build(target, "cpu", ()).model
    given = {name: weights[key] for key, name in asked.renamed if key in weights}
    try:
        result = model.load_state_dict(given, strict=False)
    except (RuntimeError, ValueError) as error:
        raise DdplintError(" ".join(str(error).split())[:300], where=asked.file, fix="it does not fit the model") from None
    return model, set(result.missing_keys)


def _refuse_large(model: nn.Module) -> None:
    """Raise DdplintError if two such models do not fit into the memory that is free now."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 2 * weight_bytes(model) > free:
        raise DdplintError("the model does not fit into memory twice, which the proof needs", fix="use a larger machine")


def _returned(target: Target, model: nn.Module) -> list[list[torch.Tensor]]:
    """What each run returns: forward's tensors and the loss, or the step's loss."""
    found = []
    for number in range(len(target.inputs) if target.step is None else 1):
        for seed in range(SEEDS):
            seed_everything(seed)
            try:
                with DeviceMode("cpu"):
                    if target.step is not None:
                        found.append(list(tensors_in(target.step(model))))
                        continue
                    args, kwargs = on_device(target.inputs[number](), "cpu")
                    output = model(*args, **kwargs)
                    found.append([t.detach().clone() for t in (*tensors_in(output), target.loss(output)[0])])
            except DdplintError:
                raise
            except Exception as error:
                raise blame("forward", error) from error
    return found
