"""Positions from the signature of the installed torch, and names that are known."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys

import pytest
import torch

from ddplint.callsites import known


def test_the_positions_are_those_of_the_installed_torch() -> None:
    names = list(inspect.signature(torch.nn.parallel.DistributedDataParallel.__init__).parameters)[1:]
    assert known.torch_positions() == {flag: names.index(flag) for flag in (known.FLAG, known.STATIC_GRAPH)}


def test_they_are_read_without_importing_torch() -> None:
    code = "import sys; from ddplint.callsites import find, known; known.torch_positions(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_the_known_positions_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    known.torch_positions.cache_clear()
    try:
        assert known.torch_positions()[known.FLAG] == 8
    finally:
        known.torch_positions.cache_clear()


def test_an_older_signature_has_other_positions() -> None:
    tree = ast.parse(
        "class DistributedDataParallel(Module):\n"
        "    def __init__(self, module, device_ids=None, find_unused_parameters=False): ...\n"
    )
    assert known.positions(tree, "DistributedDataParallel") == {known.FLAG: 2}
    assert known.positions(ast.parse(""), "DistributedDataParallel") == {}


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("ddp_find_unused_parameters_true", "on"),
        ("ddp_notebook_find_unused_parameters_true", "on"),
        ("ddp_fork_find_unused_parameters_false", "off"),
        ("fsdp", None),
        ("ddp_sharded", None),
        ("deepspeed_find_unused_parameters_true", None),
    ],
)
def test_names_of_strategies(name: str, state: str | None) -> None:
    setting = known.strategy(name)
    assert (setting.state if setting else None) == state


def test_accelerates_positions_are_those_of_the_installed_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    names = list(inspect.signature(accelerate.DistributedDataParallelKwargs).parameters)
    called = known.callee("accelerate.DistributedDataParallelKwargs")
    assert called is not None
    assert {flag: names.index(flag) for flag in (known.FLAG, known.STATIC_GRAPH)} == called.positions
