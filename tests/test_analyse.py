from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.rules import TargetSpec
from tests.kinds.lines import line_of


class Net(nn.Module):
    """Reads a value only if it is told to."""

    def __init__(self, reads: bool = False, evaluating: bool = False, freeze: bool = False) -> None:
        super().__init__()
        self.reads = reads
        self.live = nn.Linear(4, 4)
        self.dead = nn.Linear(4, 4)
        self.live.bias.requires_grad_(not freeze)
        self.train(not evaluating)

    def forward(self, x: Any) -> Any:
        y = self.live(x)
        return y * y.sum().item() if self.reads else y  # decides


class NoMetaKernel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y = self.live(x)
        return y * torch.bincount(y.argmax(-1)).sum()  # has no meta kernel


def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 4),), {}


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def spec(name: str = "Net", with_loss: bool = True, **kwargs: Any) -> TargetSpec:
    return TargetSpec(
        f"{__name__}:{name}",
        kwargs=kwargs,
        inputs=f"{__name__}:inputs",
        loss=f"{__name__}:loss" if with_loss else None,
    )


def run(target: TargetSpec, **options: Any) -> Analysis:
    return analyse(Request(target, **{"ranks": 1, "steps": 1, "rehearse": False, **options}))


def never(analysis: Analysis) -> list[str]:
    return [p.name for p in analysis.unused() if p.usage == "never"]


def test_meta_needs_no_reason() -> None:
    found = run(spec())
    assert (found.trace.device, found.trace.device_reason) == ("meta", "")
    assert never(found) == ["dead.weight", "dead.bias"]
    assert found.target == f"{__name__}:Net"
    assert found.torch_version == torch.__version__
    assert found.trace.nodes > 3
    assert found.trace.seconds > 0


def test_a_value_read_takes_real_tensors_and_says_where() -> None:
    found = run(spec(reads=True))
    assert found.trace.device == "cpu"
    assert found.trace.device_reason == f"item() reads a tensor's value (test_analyse.py:{line_of(__file__, 'decides')})"
    assert never(found) == ["dead.weight", "dead.bias"]


def test_a_missing_meta_kernel_takes_real_tensors() -> None:
    found = run(spec("NoMetaKernel"))
    assert found.trace.device == "cpu"
    assert found.trace.device_reason.startswith("bincount does not run on meta tensors (test_analyse.py:")
    assert never(found) == []


def test_the_device_can_be_chosen() -> None:
    found = run(spec(), device="cpu")
    assert (found.trace.device, found.trace.device_reason) == ("cpu", "--device cpu")
    assert never(found) == ["dead.weight", "dead.bias"]


def test_weights_over_the_limit_stay_on_meta_with_forced_answers() -> None:
    found = run(spec(reads=True), cpu_limit=100)
    assert found.trace.device == "meta"
    assert "item() reads a tensor's value" in found.trace.device_reason
    assert never(found) == ["dead.weight", "dead.bias"]


def test_meta_by_request_forces_answers_too() -> None:
    found = run(spec(reads=True), device="meta")
    assert found.trace.device == "meta"
    assert never(found) == ["dead.weight", "dead.bias"]


@pytest.mark.parametrize("device", ["auto", "meta", "cpu"])
def test_nothing_else_depends_on_the_device(device: Any) -> None:
    expected, found = run(spec(), device="cpu"), run(spec(), device=device)
    assert found.parameters == expected.parameters


def test_an_analysis_is_the_same_each_time() -> None:
    first, second = run(spec(reads=True)), run(spec(reads=True))
    assert first.parameters == second.parameters
    assert first.trace.nodes == second.trace.nodes


def test_the_worker_can_send_it() -> None:
    found = run(spec(), explain="live.weight")
    assert Analysis.from_json(found.to_json()) == found


def test_frozen_parameters_have_no_usage_unless_documented() -> None:
    plain = {p.name: p for p in run(spec(freeze=True)).parameters}
    documented = {p.name: p for p in run(spec(freeze=True), documented=("live.*",)).parameters}
    assert (plain["live.bias"].trainable, plain["live.bias"].usage) == (False, None)
    assert (documented["live.bias"].trainable, documented["live.bias"].usage) == (False, "always")


def test_a_way_only_for_the_parameter_that_is_asked_about() -> None:
    assert run(spec()).way == ()
    assert [step.operation for step in run(spec(), explain="live.weight").way] == ["linear", "mean"]


def test_notices_say_what_was_assumed() -> None:
    assert run(spec()).notices == ()
    (stand_in,) = run(spec(with_loss=False)).notices
    assert "stands in" in stand_in
    (evaluating,) = run(spec(evaluating=True)).notices
    assert "eval mode" in evaluating


def test_what_the_target_raises_is_one_line() -> None:
    with pytest.raises(DdplintError) as caught:
        run(TargetSpec(f"{__name__}:Net", inputs=()))
    assert "\n" not in str(caught.value)
    assert "forward raised TypeError" in str(caught.value)


RENAMES = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.again = self.one
        self.one.weight = self.two.weight

    def forward(self, x):
        return self.one(x) + self.two(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        doubled = {name: p * 2 for name, p in self.block.named_parameters()}
        return torch.func.functional_call(self.block, doubled, (x,))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""


def test_names_are_those_that_the_model_was_built_with(tmp_path: Path) -> None:
    """``functional_call`` on shared weights with an alias leaves the model with others; DDP has wrapped it before."""
    (tmp_path / "renames.py").write_text(RENAMES)
    space: dict[str, Any] = {}
    exec(RENAMES, space)
    model = space["build"]()
    before = [name for name, _ in model.named_parameters()]
    model(torch.ones(2, 4))
    assert [name for name, _ in model.named_parameters()] != before
    found = analyse(Request(TargetSpec("renames.py:build", base=str(tmp_path), from_module=True), rehearse=False))
    assert [p.name for p in found.parameters] == before
    assert {p.usage for p in found.parameters} == {"always"}
