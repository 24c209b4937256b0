"""The three rule files hold exactly what real backward runs leave unused."""

import fnmatch
import importlib
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddplint.reference.finetune import build

RULES = Path(__file__).resolve().parents[2] / "rules"
CHECKPOINTS = ("grover_base", "cmim", "hybrid")


def read(checkpoint: str) -> dict[str, Any]:
    return tomllib.loads((RULES / f"{checkpoint}.toml").read_text(encoding="utf-8"))


def by_segments(name: str, pattern: str) -> bool:
    """`*` stays within a dot-separated segment, `**` does not."""
    regex = re.escape(pattern).replace(r"\*\*", ".*").replace(r"\*", "[^.]*")
    return re.fullmatch(regex, name) is not None


MATCHERS = [by_segments, fnmatch.fnmatchcase]


@pytest.mark.parametrize("matches", MATCHERS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_the_patterns_cover_exactly_what_is_never_used(
    usage: Callable[..., tuple[set[str], set[str]]], checkpoint: str, matches: Callable[[str, str], bool]
) -> None:
    rules = read(checkpoint)
    model = build(**rules["target"]["kwargs"])
    never, sometimes = usage(model)
    names = {name for name, p in model.named_parameters() if p.requires_grad}
    covered = [
        {name for name in names if any(matches(name, pattern) for pattern in entry["params"])} for entry in rules["unused"]
    ]
    assert set.union(*covered) == never
    assert sum(len(entry) for entry in covered) == len(never)
    assert sometimes == set()
    for entry in rules["unused"]:
        for pattern in entry["params"]:
            assert any(matches(name, pattern) for name in names), pattern


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_each_entry_has_a_reason_and_allows(checkpoint: str) -> None:
    rules = read(checkpoint)
    assert set(rules) == {"checkpoint", "target", "ddp", "unused"}
    assert rules["checkpoint"]["name"] == checkpoint
    assert rules["ddp"] == {"find_unused_parameters": True}
    for entry in rules["unused"]:
        assert set(entry) == {"params", "reason", "action"}
        assert entry["action"] == "allow"
        assert len(entry["reason"].split()) > 5


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_the_target_names_callables(checkpoint: str) -> None:
    target = read(checkpoint)["target"]
    assert target.pop("kwargs") == {"checkpoint": checkpoint}
    assert set(target) == {"factory", "inputs", "variants", "loss"}
    for reference in target.values():
        module, _, function = reference.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def checkpoint_keys(checkpoint: str) -> set[str]:
    """The keys of such a checkpoint file, as pretraining writes it: no finetune readout, no task heads."""
    keys = {
        key
        for key in build(checkpoint).state_dict()
        if not key.startswith(("readout.", "mol_atom_from_atom_ffn.", "mol_atom_from_bond_ffn."))
    }
    if checkpoint == "grover_base":
        return {re.sub(r"^kermt\.", "grover.", key) for key in keys}
    if checkpoint == "cmim":
        return {key for key in keys if not key.startswith("kermt.")}
    return keys


@pytest.mark.parametrize("matches", MATCHERS)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_checkpoint_file_is_told_by_its_keys(checkpoint: str, matches: Callable[[str, str], bool]) -> None:
    keys = checkpoint_keys(checkpoint)
    found = {
        name: len(detect)
        for name in CHECKPOINTS
        if (detect := read(name)["checkpoint"]["detect"])
        and all(any(matches(key, pattern) for key in keys) for pattern in detect)
    }
    # A hybrid file holds all that a cmim file holds, and more: the type with more patterns is the one.
    assert max(found, key=lambda name: found[name]) == checkpoint
    assert checkpoint == "hybrid" or set(found) == {checkpoint}
