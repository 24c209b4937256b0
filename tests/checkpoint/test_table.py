"""What becomes of a file's tensors in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ddplint.analysis import Buffer
from ddplint.checkpoint.model import Checkpoint, Optimizer, Tensor
from ddplint.checkpoint.table import Stored, detected, renamed, stored, total
from ddplint.errors import DdplintError
from ddplint.rules import RuleFile
from tests.made import analysis, frozen, rules, unused, used


def checkpoint(
    keys: Mapping[str, tuple[int, ...]], *optimizers: Optimizer, storages: Mapping[str, str] | None = None
) -> Checkpoint:
    tensors = []
    for key, shape in keys.items():
        numel = 1
        for size in shape:
            numel *= size
        tensors.append(Tensor(key, shape, "float32", 4 * numel, (storages or {}).get(key, key)))
    return Checkpoint(Path("model.pt"), "zip", tuple(tensors), (), optimizers, (Path("model.pt"),))


MODEL = analysis(
    used("body.w", aliases=("tied.w",)),
    unused("head.w"),
    frozen("old.w"),
    buffers=(Buffer("norm.mean", (), (10,), "float32", 40),),
)
ALL = {"body.w": (10,), "head.w": (10,), "old.w": (10,), "norm.mean": (10,)}


def statuses(table: Stored) -> dict[str, str]:
    return {row.key or row.name: f"{row.status}{' dead' if row.dead else ''}" for row in table.rows}


def test_each_tensor_has_a_status() -> None:
    keys = {"body.w": (10,), "head.w": (10,), "old.w": (5, 2), "other.w": (3,)}
    table = stored(checkpoint(keys), MODEL, {})
    assert statuses(table) == {
        "body.w": "loaded",
        "head.w": "loaded dead",
        "old.w": "mismatched",
        "other.w": "dropped",
        "norm.mean": "fresh",
    }
    assert table.of("mismatched")[0].wanted == (10,)


def test_any_name_of_a_tied_parameter_fills_it() -> None:
    table = stored(checkpoint({"tied.w": (10,), "head.w": (10,), "old.w": (10,), "norm.mean": (10,)}), MODEL, {})
    assert [row.name for row in table.of("fresh")] == []


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_what_wrappers_put_before_every_key_is_left_out(prefix: str) -> None:
    table = stored(checkpoint({prefix + key: shape for key, shape in ALL.items()}), MODEL, {})
    assert (table.prefix, {row.status for row in table.rows}) == (prefix, {"loaded"})


def test_a_model_whose_own_names_begin_so_keeps_them() -> None:
    own = analysis(used("module.w"))
    assert statuses(stored(checkpoint({"module.w": (10,)}), own, {})) == {"module.w": "loaded"}


def test_the_loader_renames_by_the_longest_prefix_and_leaves_out() -> None:
    rename: dict[str, str | bool] = {"grover.": "kermt.", "grover.old.": "old.", "latent.": "", "seen.": False}
    assert renamed("grover.a", rename) == "kermt.a"
    assert renamed("grover.old.a", rename) == "old.a"
    assert renamed("latent.body.w", rename) == "body.w"
    assert renamed("seen.a", rename) is None
    assert renamed("other", rename) == "other"
    table = stored(checkpoint({"latent.body.w": (10,), "seen.head.w": (10,)}), MODEL, rename)
    assert [(row.key, row.name, row.status, row.renamed) for row in table.rows[:2]] == [
        ("latent.body.w", "body.w", "loaded", True),
        ("seen.head.w", "", "dropped", False),
    ]


def test_tensors_on_one_storage_lie_in_the_file_once() -> None:
    keys = {"body.w": (10,), "tied.w": (10,), "head.w": (10,)}
    table = stored(checkpoint(keys, storages={"body.w": "0", "tied.w": "0", "head.w": "1"}), MODEL, {})
    assert total(row for row in table.rows if row.key) == 80
    assert total(table.of("fresh")) == 80


@pytest.mark.parametrize(
    ("numbers", "state", "expected"),
    [
        ((0, 1, 2), {0: 8, 1: 16}, 16),  # all three
        ((5, 7), {5: 8, 7: 16}, 16),  # the two that are trainable
        ((0, 1, 2, 3), {1: 16}, None),  # of another model
    ],
)
def test_the_optimizers_state_of_the_dead(numbers: tuple[int, ...], state: dict[int, int], expected: int | None) -> None:
    optimizer = Optimizer(("optimizer",), (numbers,), state)
    assert stored(checkpoint(ALL, optimizer), MODEL, {}).state_bytes == expected


def test_without_an_optimizer_there_is_no_state() -> None:
    assert stored(checkpoint(ALL), MODEL, {}).state_bytes is None


def test_a_type_is_told_by_all_of_its_globs_and_the_most_of_them() -> None:
    def of(name: str, *detect: str) -> RuleFile:
        return replace(rules(), name=name, detect=detect)

    small, large, other = of("small", "body.*"), of("large", "body.*", "head.*"), of("other", "body.*", "gone.*")
    types = [small, large, other, of("none")]
    found = checkpoint({"module.body.w": (1,), "module.head.w": (1,)})
    assert detected(found, types) is large
    with pytest.raises(DdplintError, match=r"its keys are those of large, twin alike; name the type with --ckpt"):
        detected(found, [*types, of("twin", "head.*", "*.w")])
    with pytest.raises(DdplintError, match=r"its keys are those of no checkpoint type"):
        detected(checkpoint({"x": (1,)}), types)
    with pytest.raises(DdplintError, match=r"name a target with --target"):
        detected(found, [])
