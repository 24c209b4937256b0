from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path as Folder
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ddplint.errors import DdplintError
from ddplint.rules import TargetSpec
from ddplint.target import load
from ddplint.trace.environment import without_gpu
from ddplint.trace.run import Built, Path, build, on_device, seed_everything, trace, weight_bytes
from ddplint.trace.values import Answers, NoValue, Plan
from tests.kinds.lines import line_of


class Net(nn.Module):
    def __init__(self, freeze: bool = False) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)  # a is put here
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        if freeze:
            self.b.bias.requires_grad_(False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Any) -> Any:
        return self.b(self.a(x))  # multiplies


class ReadsValues(nn.Module):
    """Drop rates by position, as many vision models have them."""

    def __init__(self) -> None:
        super().__init__()
        rates = [x.item() for x in torch.linspace(0, 0.2, 3)]
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Dropout(rate)) for rate in rates))
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.layers[0][0].weight  # type: ignore[index]

    def forward(self, x: Any) -> Any:
        return self.tied(self.layers(x))


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise ValueError("no such size\nand more")  # refuses


class Nothing(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(2)

    def forward(self, x: Any) -> Any:
        return self.head(x)


class ForwardRaises(Net):
    def forward(self, x: Any) -> Any:
        return self.a(x) + dict[str, Any]()["missing"]  # raises here


class NoGradient(Net):
    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            return self.b(self.a(x))


class BackwardRaises(Net):
    def forward(self, x: Any) -> Any:
        h = torch.tanh(self.a(x))
        y = h.square()
        h.mul_(2)
        return self.b(y)


class Reads(Net):
    def forward(self, x: Any) -> Any:
        y = self.a(x)
        return y * float(y.sum())  # reads here


class Draws(Net):
    def forward(self, x: Any) -> Any:
        return self.b(self.a(x) * random.random() * np.random.rand() * torch.rand(()))


class StepThatClearsUp(Net):
    """The gradients are gone when the step ends, as in most training loops."""


def clears_up(model: Any) -> torch.Tensor:
    loss: torch.Tensor = model.a(torch.randn(2, 4)).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    model.zero_grad()
    return loss.detach()


def no_tensor(model: Any) -> Any:
    return 3


def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 4),), {}


def wide_inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 5),), {}


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


def spec(name: str, **options: Any) -> TargetSpec:
    if "step" not in options:
        options = {"inputs": f"{__name__}:inputs", "loss": f"{__name__}:loss", **options}
    return TargetSpec(f"{__name__}:{name}", **options)


def built(name: str, device: Any = "cpu", documented: tuple[str, ...] = (), **kwargs: Any) -> Built:
    with without_gpu():
        return build(load(spec(name, kwargs=kwargs)), device, documented)


def run(name: str, device: Any = "cpu", seed: int = 0, **options: Any) -> Path:
    with without_gpu():
        target = load(spec(name, **options))
        return trace(target, build(target, device, ()), device, Plan(seed=seed), Answers({}))


def refused(name: str, device: Any = "cpu", **options: Any) -> str:
    with pytest.raises(DdplintError) as caught:
        run(name, device, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def at(comment: str) -> str:
    """``file:line`` of the line with that comment, as errors have it: relative to the working folder."""
    return f"{os.path.relpath(__file__)}:{line_of(__file__, comment)}"


# ---------------------------------------------------------------------- build


def test_on_meta_no_weight_takes_memory() -> None:
    model = built("Net", "meta").model
    assert {t.device.type for t in (*model.parameters(), *model.buffers())} == {"meta"}
    assert weight_bytes(model) == (4 * 4 + 4 + 4) * 4 + 8  # the shared weight once, the counter of 8 bytes


def test_a_factory_that_reads_values_is_built_and_moved_with_its_ties() -> None:
    model = built("ReadsValues", "meta").model
    assert all(p.is_meta and isinstance(p, nn.Parameter) and p.requires_grad for p in model.parameters())
    assert model.get_parameter("tied.weight") is model.get_parameter("layers.0.0.weight")
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == pytest.approx([0, 0.1, 0.2])


def test_trainable_is_as_the_factory_left_it() -> None:
    assert built("Net", freeze=True).trainable == {"a.weight", "a.bias"}


def test_a_documented_frozen_parameter_is_traced_as_if_trainable() -> None:
    one = built("Net", documented=("b",), freeze=True)
    assert one.trainable == {"a.weight", "a.bias"}
    assert {n for n, p in one.model.named_parameters() if p.requires_grad} == {"a.weight", "a.bias", "b.bias"}


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_lazy_module_gets_its_shape_from_the_inputs(device: Any) -> None:
    assert built("Lazy", device).model.get_parameter("head.weight").shape == (2, 4)


def test_where_a_module_was_put_into_its_owner() -> None:
    one = built("Net")
    assert one.sites[id(one.model), "a"].location().text == "self.a = nn.Linear(4, 4)  # a is put here"


def test_no_gradient_is_left_from_the_factory() -> None:
    assert all(p.grad is None for p in built("Net").model.parameters())


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_factory_that_raises_is_named_with_its_last_line(device: Any) -> None:
    said = refused("Raises", device)
    assert said.startswith(f"{at('refuses')}: the factory raised ValueError: no such size; ")


def test_nothing_to_train_is_refused() -> None:
    assert "the model has no trainable parameter" in refused("Nothing")


# ---------------------------------------------------------------------- inputs


def test_inputs_are_moved_and_keep_what_else_they_are() -> None:
    (moved, flag), keywords = on_device(
        ((torch.ones(2, requires_grad=True), 3), {"more": [torch.zeros(1, dtype=torch.long)]}), "meta"
    )
    assert moved.is_meta
    assert moved.requires_grad
    assert moved.is_leaf
    assert flag == 3
    assert keywords["more"][0].is_meta
    assert keywords["more"][0].dtype == torch.long


def test_all_generators_are_seeded() -> None:
    drawn = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        drawn.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[1], drawn[2], strict=True))


# ---------------------------------------------------------------------- trace


def test_the_three_answers_of_a_run() -> None:
    path = run("Net")
    assert path.received == path.walked == path.from_outputs == {"a.weight", "a.bias", "b.bias"}
    assert [tuple(t.shape) for t in path.outputs] == [(2, 4)]
    assert path.no_backward == ""


def test_backward_runs_on_meta_too() -> None:
    assert run("Net", "meta").received == frozenset({"a.weight", "a.bias", "b.bias"})


def test_a_run_can_be_repeated_to_the_same_numbers() -> None:
    first, second, other = (run("Draws", seed=seed).outputs[0] for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_gradients_that_a_step_clears_were_received() -> None:
    path = run("StepThatClearsUp", step=f"{__name__}:clears_up")
    assert path.received == frozenset({"a.weight", "a.bias"})


def test_hooks_are_taken_away_again() -> None:
    path = run("Net")
    assert all(not p._post_accumulate_grad_hooks for p in path.built.model.parameters())


def test_a_read_on_meta_has_no_value() -> None:
    with pytest.raises(NoValue) as caught:
        run("Reads", "meta")
    assert caught.value.need == "__float__() reads a tensor's value"
    assert caught.value.site is not None
    assert caught.value.site.location().text.endswith("# reads here")


def test_a_read_with_real_tensors_goes_on() -> None:
    assert run("Reads").received == frozenset({"a.weight", "a.bias"})


def test_a_forward_that_raises_is_named_with_its_last_line() -> None:
    said = refused("ForwardRaises")
    assert said.startswith(f"{at('raises here')}: forward raised KeyError: 'missing'")


def test_inputs_of_the_wrong_shape_are_a_fault_of_forward() -> None:
    said = refused("Net", inputs=f"{__name__}:wide_inputs")
    assert said.startswith(f"{at('multiplies')}: forward raised RuntimeError: ")
    assert "2x5" in said


def test_a_loss_without_gradient_is_refused() -> None:
    assert refused("NoGradient").startswith("loss: the loss has no gradient")


def test_a_backward_that_raises_is_refused() -> None:
    assert "backward raised RuntimeError: one of the variables needed for gradient computation" in refused("BackwardRaises")


def test_a_step_that_returns_no_tensor_is_refused() -> None:
    assert refused("Net", step=f"{__name__}:no_tensor") == (
        "step: the step returned a int; it has to return the loss, a scalar tensor"
    )


def test_the_caller_finds_grad_mode_as_it_was() -> None:
    with pytest.raises(DdplintError):
        run("ForwardRaises")
    assert torch.is_grad_enabled()


LONG = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x = x * self.weight
        for _ in range(30_000):
            x = x.sin()
        return x.sum()

def build():
    return Model()

def inputs():
    return (torch.ones(4),), {}
"""
SMALL_STACK = """
import threading
from pathlib import Path
from tests.programs_oracle import ask

found = []
threading.stack_size(512 * 1024)
thread = threading.Thread(target=lambda: found.append(ask(Path("long.py").read_text(), Path.cwd())))
thread.start()
thread.join()
print(found[0].parameters[0].usage, found[0].trace.nodes > 30_000)
"""


def test_a_long_chain_is_freed_without_deep_recursion(tmp_path: Folder) -> None:
    (tmp_path / "long.py").write_text(LONG)
    root = str(Folder(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", SMALL_STACK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "always True\n"), ended.stderr
