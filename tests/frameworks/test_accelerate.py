from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.frameworks.idiom import never, script, without_gradient

pytest.importorskip("accelerate")

PREPARED = """
import torch
from accelerate import Accelerator
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.old_head = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x))


def build():
    accelerator = Accelerator(cpu=True)
    model = Net()
    optimizer = torch.optim.AdamW([*model.body.parameters(), *model.head.parameters()])
    return accelerator.prepare(model, optimizer)


def alone():
    return Accelerator(cpu=True, mixed_precision="bf16").prepare(Net())


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.pow(2).mean()
"""


@pytest.mark.parametrize("factory", ["build", "alone"])
def test_a_prepared_model_is_the_module_itself(tmp_path: Path, factory: str) -> None:
    source = script(tmp_path, PREPARED)
    found = source.analysed(factory, rehearse=True)
    model = source.load().Net()
    model(torch.ones(2, 4)).pow(2).mean().backward()
    assert never(found) == without_gradient(model) == {"old_head.weight", "old_head.bias"}
    assert found.adapter == "accelerate"
    assert found.rehearsal is not None
    assert list(found.rehearsal.outcomes.values()) == ["reduction_error", "ok", "ok"]


def test_the_optimizer_that_is_prepared_with_it_says_what_it_leaves_out(tmp_path: Path) -> None:
    found = script(tmp_path, PREPARED).analysed("build")
    assert found.notices == (
        "the optimizers leave out 2 of the model's trainable parameters: old_head.weight, old_head.bias",
    )


def test_a_branch_on_the_rank_is_seen(tmp_path: Path) -> None:
    source = PREPARED.replace("model = Net()", "model = Net()\n    model.main = accelerator.is_main_process").replace(
        "return self.head(self.body(x))", "return (self.head if self.main else self.old_head)(self.body(x)).sum()"
    )
    found = script(tmp_path, source).analysed("build")
    assert {p.usage for p in found.parameters if "head" in p.name} == {"sometimes"}


def test_two_models_are_refused(tmp_path: Path) -> None:
    source = PREPARED.replace("prepare(model, optimizer)", "prepare(model, Net())")
    assert script(tmp_path, source).refused("build").startswith("factory: the factory returned 2 modules; return the one")
