"""The walk of DDP's search, and the parts of a rank's measuring that one process can show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import FileStore

from ddplint.cost_rank import WARM_UP, Bench, graph_size
from ddplint.target import Target
from ddplint.verify import Timing
from ddplint.verify_rank import one_step


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone, over gloo."""
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Three layers, one of them not called."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dead = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the two layers that are called."""
        out: torch.Tensor = self.b(self.a(x))
        return out


def target(**more: object) -> Target:
    made = {
        "name": "net",
        "build": Net,
        "inputs": (lambda: ((torch.ones(1, 2),), {}),),
        "loss": lambda output: (output.sum(), ""),
        "step": None,
    }
    return Target(**{**made, **more})  # type: ignore[arg-type]


def own_walk(root: object) -> tuple[int, int]:
    """Nodes and edges by recursion, each node once."""
    nodes: dict[object, list[object]] = {}

    def visit(node: object) -> None:
        if node not in nodes:
            nodes[node] = [n for n, _ in node.next_functions if n is not None]  # type: ignore[attr-defined]
            for following in nodes[node]:
                visit(following)

    visit(root)
    return len(nodes), sum(map(len, nodes.values()))


def test_the_walk_counts_nodes_once_and_every_edge() -> None:
    weight = torch.ones(2, requires_grad=True)
    twice = weight * weight  # two edges to one accumulator
    assert graph_size([twice.grad_fn]) == own_walk(twice.grad_fn) == (2, 2)
    out = Net()(torch.ones(1, 2))
    assert graph_size([out.grad_fn]) == own_walk(out.grad_fn)
    assert graph_size([out.grad_fn, twice.grad_fn, None, out.grad_fn]) == tuple(
        a + b for a, b in zip(own_walk(out.grad_fn), (2, 2), strict=True)
    )
    assert graph_size([None]) == (0, 0)


def test_both_wraps_take_the_same_steps(alone: None) -> None:
    said: list[str] = []
    steps = 12
    found = Bench(target(), one_step, said.append).measured(Timing(("dead.weight", "dead.bias"), True, steps), 60.0)
    assert said == ["building the model", "warming up", "warming up", "timing", "profiling"]
    assert len(found["on"]["seconds"]) == len(found["off"]["seconds"]) == steps
    assert found["on"]["unused_bytes"] == 4 * 15
    assert found["off"]["unused_bytes"] == 0
    assert (found["nodes"], found["edges"]) == own_walk(Net()(torch.ones(1, 2)).grad_fn)


def test_rounds_end_when_the_time_does(alone: None) -> None:
    found = Bench(target(), one_step, lambda stage: None).measured(Timing((), False, 1000), 0.0)
    assert 0 < len(found["on"]["seconds"]) < 10
    assert found["off"] is None


def test_a_step_that_clears_gradients_leaves_the_optimizer_unmeasured(alone: None) -> None:
    def step(model: nn.Module) -> torch.Tensor:
        model.zero_grad()
        loss: torch.Tensor = model(torch.ones(1, 2)).sum()
        return loss

    bench = Bench(target(step=step, inputs=(), zeroes=True), one_step, lambda stage: None)
    found = bench.measured(Timing((), False, 1), 60.0)
    assert found["optimizer_bytes"] is found["dead_optimizer_bytes"] is found["dead_gradients"] is None
    assert len(found["on"]["seconds"]) == 1
    assert WARM_UP >= 2  # the reducer rebuilds its buckets in the second step
    assert bench.mode is nullcontext
