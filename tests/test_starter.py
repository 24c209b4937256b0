"""The starter rule file: it reads back, covers exactly what the trace found, and overwrites nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplint.analysis import Analysis, Location, Parameter, TraceRecord
from ddplint.checks.base import by_place, covers
from ddplint.errors import DdplintError
from ddplint.rules import RuleFile, TargetSpec, TensorSpec, load_rule_file
from ddplint.starter import starter, write_new
from tests.name_trees import name_trees

RECORD = TraceRecord(device="meta", device_reason="", paths=3, ranks=1, nodes=9, seconds=0.1)


def parameter(name: str, **facts: Any) -> Parameter:
    made: dict[str, Any] = {
        "name": name,
        "aliases": (),
        "module": name.rpartition(".")[0],
        "module_type": "Linear",
        "shape": (2, 3),
        "dtype": "float32",
        "numel": 6,
        "bytes": 24,
        "trainable": True,
        "usage": "always",
    }
    return Parameter(**{**made, **facts})


def analysis(*parameters: Parameter, notices: tuple[str, ...] = ()) -> Analysis:
    return Analysis("model.py:build", "2.13.0", parameters, RECORD, notices=notices)


def read_back(folder: Path, text: str) -> RuleFile:
    path = folder / "starter.toml"
    path.write_text(text, encoding="utf-8")
    return load_rule_file(path, folder)


CUT = Location(file="model.py", line=88, function="M.forward", text="h = self.neck(x).detach()")
HEAD: dict[str, Any] = {"usage": "never", "cause": "uncalled", "place": "a", "subtree": "head"}
NECK: dict[str, Any] = {"usage": "never", "cause": "severed", "place": "model.py:88", "location": CUT}
FOUND = analysis(
    parameter("body.0.weight"),
    parameter("body.1.weight"),
    parameter("head.fc.weight", **HEAD, why="`head` is not called"),
    parameter("head.fc.bias", **HEAD, why="`head` is not called"),
    parameter("neck.weight", **NECK, why="cut here"),
    parameter("neck.bias"),
    parameter("mask_token", usage="sometimes", cause="conditional", place="b", why="a draw decides"),
    parameter("frozen.weight", trainable=False, usage=None),
    notices=("the output's own .loss stands in for a loss",),
)


TEXT = """\
# Written by `ddplint init` from a trace of model.py:build (torch 2.13.0, meta, 3 paths).
# Every [[unused]] entry is a group of parameters that one place in the code explains. Read it, put
# the reason in your own words, and choose the action: allow (they stay as they are), freeze (the
# model has them with requires_grad=False) or strip (the model does not have them).
# the output's own .loss stands in for a loss

[checkpoint]
name = "hybrid"
# description = "what this checkpoint type is, in a few words"
# detect = ["head.**"]  # globs over the keys by which a checkpoint file of this type is known

[target]
factory = "model.py:build"
kwargs = { depth = 2 }
loss = "loss"

[ddp]
# find_unused_parameters = true  # as your training script wraps the model

# 2 parameters of `head` (12 weights, 29 % of the trainable ones): uncalled
# `head` is not called
[[unused]]
params = ["head.**"]
reason = "nothing in forward or in the loss calls or reads `head`"
action = "allow"

# `neck.weight` (6 weights, 14 % of the trainable ones): severed, model.py:88
# cut here
[[unused]]
params = ["neck.weight"]
reason = "the loss uses the value of `neck.weight`, but no gradient flows back: `h = self.neck(x).detach()`"
action = "allow"

# `mask_token` (6 weights, 14 % of the trainable ones): conditional
# a draw decides
[[unused]]
params = ["mask_token"]
reason = "only some paths use `mask_token`"
action = "allow"
when = "sometimes"
"""


def test_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = starter(FOUND, TargetSpec("model.py:build", kwargs={"depth": 2}, loss="loss"), "hybrid")
    assert text == TEXT
    rules = read_back(tmp_path, text)
    assert (rules.name, rules.target.factory, rules.target.loss) == ("hybrid", "model.py:build", "loss")
    assert [(entry.params, entry.when) for entry in rules.unused] == [
        (("head.**",), "never"),
        (("neck.weight",), "never"),
        (("mask_token",), "sometimes"),
    ]


@pytest.mark.parametrize("cause", ["uncalled", "discarded", "severed", "output-only", "conditional", None])
@pytest.mark.parametrize("usage", ["never", "sometimes"])
def test_every_cause_gives_a_reason(tmp_path: Path, cause: str | None, usage: str) -> None:
    found = analysis(parameter("a.weight", usage=usage, cause=cause, location=CUT), parameter("b.weight"))
    [entry] = read_back(tmp_path, starter(found, TargetSpec("a:b"), "x")).unused
    assert "`a.weight`" in entry.reason
    assert ("some" in entry.reason) == (usage == "sometimes" or cause == "conditional")
    assert entry.when == usage


def test_a_model_without_unused_parameters_has_no_entries(tmp_path: Path) -> None:
    rules = read_back(tmp_path, starter(analysis(parameter("a.weight")), TargetSpec("a:b"), "x"))
    assert rules.unused == ()


def test_frozen_and_tied_parameters_are_not_covered(tmp_path: Path) -> None:
    found = analysis(
        parameter("embed.weight", aliases=("decoder.weight",)),
        parameter("decoder.bias", usage="never"),
        parameter("head.fc.weight", usage="never", aliases=("spare.fc.weight",)),
        parameter("head.fc.scale", trainable=False, usage=None),
    )
    rules = read_back(tmp_path, starter(found, TargetSpec("a:b"), "x"))
    assert [entry.params for entry in rules.unused] == [("decoder.bias",), ("head.fc.weight",)]


@pytest.mark.parametrize(
    "target",
    [
        TargetSpec("a.b:c", {"x": [1, 2.5, True, {"y z": "q\n"}]}, inputs="a.b:inputs", variants="a.b:variants"),
        TargetSpec("a.py:c", inputs=(TensorSpec((2, 3)), TensorSpec((), "int64", -4, 9), 3, "s"), loss="0.loss"),
        TargetSpec("a:c", inputs={"x": TensorSpec((1,), "bool"), "flag": False}),
        TargetSpec("a:c", inputs=()),
        TargetSpec("a:c", step="a:step"),
    ],
)
def test_the_target_reads_back(tmp_path: Path, target: TargetSpec) -> None:
    again = read_back(tmp_path, starter(FOUND, target, "x")).target
    assert again == TargetSpec(
        target.factory, target.kwargs, target.inputs, target.variants, target.loss, target.step, str(tmp_path)
    )


SOURCE = """\
from elsewhere import make_inputs as inputs
raise RuntimeError("never run")
try:
    from fast import loss
except ImportError:
    def loss(output): ...
class build: ...
"""


@pytest.mark.parametrize(
    ("factory", "source", "parts"),
    [
        ("case.py", SOURCE, ("case.py:build", "case.py:inputs", None, "case.py:loss", None)),
        (
            "case.py:m",
            "inputs, variants = 1, 2",
            ("case.py:m", "case.py:inputs", "case.py:variants", None, None),
        ),
        ("case:build", "step: object = len", ("case:build", None, None, None, "case:step")),
        ("case.py", "loss: object", ("case.py:build", None, None, None, None)),
        ("case.py", "broken(", ("case.py:build", None, None, None, None)),
        ("missing:build", "", ("missing:build", None, None, None, None)),
    ],
)
def test_what_target_takes_from_the_module_is_written_out(
    tmp_path: Path, factory: str, source: str, parts: tuple[str | None, ...]
) -> None:
    (tmp_path / "case.py").write_text(source)
    spec = TargetSpec(factory, base=str(tmp_path), from_module=True)
    target = read_back(tmp_path, starter(FOUND, spec, "x")).target
    assert (target.factory, target.inputs, target.variants, target.loss, target.step) == parts


def test_a_module_inside_a_package_is_found_without_importing_it(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise RuntimeError\n")
    (tmp_path / "pack" / "model.py").write_text("def loss(output): ...\n")
    spec = TargetSpec("pack.model:build", base=str(tmp_path), from_module=True)
    assert read_back(tmp_path, starter(FOUND, spec, "x")).target.loss == "pack.model:loss"


def test_a_target_that_toml_cannot_say() -> None:
    with pytest.raises(DdplintError, match="NoneType has no form in TOML"):
        starter(FOUND, TargetSpec("a:b", {"x": None}), "x")


CAUSES = ["uncalled", "discarded", "severed", "output-only", "conditional", None]


@settings(derandomize=True, deadline=None)
@given(name_trees(), st.randoms(use_true_random=False), st.text(max_size=30))
def test_it_covers_exactly_the_unused_set(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], random: Random, why: str
) -> None:
    parameters = [
        parameter(
            name,
            trainable=random.random() < 0.9,
            usage=random.choice(["always", "never", "never", "sometimes"]),
            cause=random.choice(CAUSES),
            place=random.choice(["here", "there", ""]),
            why=why,
        )
        for name in names
    ]
    found = analysis(*parameters)
    rules = read_back(tmp_path_factory.getbasetemp(), starter(found, TargetSpec("a:b"), "x"))
    covered = [{p.name for p in parameters if covers(entry, p)} for entry in rules.unused]
    groups = [
        {p.name for p in group if p.usage == usage} for group in by_place(found.unused()) for usage in ("never", "sometimes")
    ]
    assert covered == [group for group in groups if group]
    for entry, group in zip(rules.unused, covered, strict=True):
        assert all(p.usage == entry.when for p in parameters if p.name in group)


def test_a_new_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new.toml"
    write_new(path, "é = 1\n")
    assert path.read_bytes() == "é = 1\n".encode()
    assert os.listdir(tmp_path) == ["new.toml"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def refused(path: Path) -> str:
    with pytest.raises(DdplintError) as raised:
        write_new(path, "new")
    return str(raised.value)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "old.toml"
    path.write_text("old")
    link = tmp_path / "link.toml"
    link.symlink_to("nowhere")
    for taken in (path, link, tmp_path):
        assert refused(taken) == f"{taken}: exists already; move it away, or choose another name"
    assert path.read_text() == "old"
    assert sorted(os.listdir(tmp_path)) == ["link.toml", "old.toml"]


def test_no_folder_to_write_in(tmp_path: Path) -> None:
    path = tmp_path / "none" / "new.toml"
    assert refused(path) == f"{path.parent}: no such folder; make it, then write {path}"
    assert refused(tmp_path / ("x" * 300)).endswith("can't be written: File name too long")
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    path = tmp_path / "new.toml"
    write_new(path, "text")
    assert path.read_text() == "text"
    assert refused(path).endswith("exists already; move it away, or choose another name")
    assert os.listdir(tmp_path) == ["new.toml"]
