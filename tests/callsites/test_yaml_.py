"""The corpus of YAML call sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplint.callsites import known, yaml_
from ddplint.callsites.model import Wrap
from ddplint.callsites.source import utf8_source
from ddplint.errors import DdplintError


def wraps(text: str) -> list[Wrap]:
    return yaml_.wraps(utf8_source(Path("config.yaml"), text.encode()))


CLASS_PATH = "trainer:\n  strategy:\n    class_path: {}\n    init_args:\n      find_unused_parameters: {}\n"
TARGET = "strategy:\n  _target_: {}\n  find_unused_parameters: {}\n"
DDP_STRATEGY = "lightning.pytorch.strategies.DDPStrategy"

FOUND = [
    (CLASS_PATH.format(DDP_STRATEGY, "true"), "class_path on fixable"),
    (CLASS_PATH.format("DDPStrategy", "false"), "class_path off"),
    (CLASS_PATH.format(DDP_STRATEGY, "${flag}"), "class_path unknown"),
    (f"strategy:\n  class_path: {DDP_STRATEGY}\n", "class_path off"),
    (f"strategy:\n  class_path: {DDP_STRATEGY}\n  init_args: {{find_unused_parameters: True}}\n", "class_path on fixable"),
    (TARGET.format("pytorch_lightning.strategies.DDPStrategy", "yes"), "_target_ on fixable"),
    (TARGET.format("pytorch_lightning.strategies.ddp.DDPStrategy", "false"), "_target_ off"),
    (TARGET.format("torch.nn.parallel.DistributedDataParallel", "TRUE"), "_target_ on fixable"),
    (TARGET.format("accelerate.DistributedDataParallelKwargs", "'true'"), "_target_ unknown"),
    ("args:\n  _target_: transformers.TrainingArguments\n  ddp_find_unused_parameters: true\n", "_target_ on fixable"),
    ("args:\n  _target_: transformers.TrainingArguments\n", "_target_ conditional"),
    ("ddp_find_unused_parameters: false\nbf16: true\n", "training-arguments off"),
    ("ddp_find_unused_parameters: null\n", "training-arguments conditional"),
    ("trainer:\n  strategy: ddp_find_unused_parameters_true\n", "strategy-name on fixable"),
    ('trainer: {strategy: "ddp_find_unused_parameters_true"}\n', "strategy-name on fixable"),
    ("strategy: ddp_find_unused_parameters_false\n", "strategy-name off"),
    ("strategy: ddp\naccelerator: gpu\n", "strategy-name off"),
    (f"base: &ddp\n  _target_: {DDP_STRATEGY}\n  find_unused_parameters: true\nother: *ddp\n", "_target_ on"),
    (f"flag: &flag true\ns:\n  _target_: {DDP_STRATEGY}\n  find_unused_parameters: *flag\n", "_target_ on"),
    (f"b: &b {{find_unused_parameters: true}}\ns:\n  <<: *b\n  _target_: {DDP_STRATEGY}\n", "_target_ unknown"),
    ("a: 1\n---\nstrategy: ddp_find_unused_parameters_true\n", "strategy-name on fixable"),
    ("x: !custom {strategy: ddp_find_unused_parameters_true}\n", "strategy-name on fixable"),
]


@pytest.mark.parametrize(("text", "wanted"), FOUND)
def test_what_the_flag_is(text: str, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_version", lambda package: "2.5.0")
    (wrap,) = wraps(text)
    setting = wrap.find_unused_parameters
    assert f"{wrap.form} {setting.state}{' fixable' if setting.edit else ''}" == wanted
    if setting.edit is not None:
        assert text[setting.edit.start : setting.edit.end] == setting.edit.before


@pytest.mark.parametrize(
    "text",
    [
        "# strategy: ddp_find_unused_parameters_true\n",
        "help: |\n  strategy: ddp_find_unused_parameters_true\n",
        "find_unused_parameters: true\n",
        "strategy: ddp\n",
        "strategy: fsdp\ndevices: 2\n",
        "_target_: mine.DDPStrategy\nfind_unused_parameters: true\n",
        "_target_: paddle.DataParallel\nfind_unused_parameters: true\n",
        "",
    ],
)
def test_what_only_looks_like_a_wrap(text: str) -> None:
    assert wraps(text) == []


def test_where_it_is() -> None:
    (wrap,) = wraps(f"# é\nmodel: 1\nstrategy:\n  _target_: {DDP_STRATEGY}\n  static_graph: true\n")
    assert (wrap.line, wrap.column, wrap.callee, wrap.static_graph.state) == (4, 3, DDP_STRATEGY, "on")


def test_an_alias_of_itself_ends() -> None:
    assert wraps("a: &a\n  b: *a\n  c: ddp_\n") == []


@pytest.mark.parametrize("text", ["a: [ddp_\n", "{% if x %}\n", "a: \x00\n"])
def test_what_is_not_yaml_is_one_line(text: str) -> None:
    with pytest.raises(DdplintError, match="not YAML") as raised:
        wraps(text)
    assert "\n" not in str(raised.value)
