from __future__ import annotations

from typing import Any

import networkx as nx
import torch
from torch import nn
from torch.fx import Node

from ddplint.analysis import ModuleEdge
from ddplint.graph import module_edges, op_of
from ddplint.rules import TargetSpec
from tests.kinds import gradients, writes
from tests.kinds.compare import Traced, traced


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.cut = nn.Linear(4, 4)
        self.lost = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.lost(x)
        return torch.relu(self.live(x)) + self.cut(x).detach()


def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 4),), {}


def loss(output: torch.Tensor) -> torch.Tensor:
    return output.mean()


SPEC = TargetSpec(f"{__name__}:Chain", inputs=f"{__name__}:inputs", loss=f"{__name__}:loss")


class TwoCuts(nn.Module):
    """The middle runs without gradients; the side's result is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.middle, self.top, self.side = (nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Any) -> Any:
        y = self.bottom(x)
        self.side(y)
        with torch.no_grad():
            y = self.middle(y)
        return self.top(y)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Linear(4, 4, bias=False)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.table.weight

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.table(x)))


def spec(model: type[nn.Module]) -> TargetSpec:
    return TargetSpec(f"{__name__}:{model.__name__}", inputs=f"{__name__}:inputs", loss=f"{__name__}:loss")


def named(one: Traced, name: str, module: str = "") -> Node:
    (node,) = (n for n, op in one.path.recording.ops.items() if op.name == name and op.module.startswith(module))
    return node


def test_it_is_a_networkx_graph_of_all_recorded_nodes() -> None:
    one = traced(SPEC)
    assert isinstance(one.graph.graph, nx.DiGraph)
    assert set(one.graph.graph) == set(one.path.recording.ops)
    assert nx.is_directed_acyclic_graph(one.graph.graph)


def test_edges_go_from_an_operation_to_what_it_consumed() -> None:
    one = traced(SPEC)
    relu, linear = named(one, "relu"), named(one, "linear", "live")
    assert list(one.graph.graph.successors(relu)) == [linear]
    assert {op_of(n).name for n in one.graph.graph.successors(linear)} == {"live.weight", "live.bias", "input"}


def test_an_edge_is_live_where_the_tensor_requires_grad_when_it_is_consumed() -> None:
    one = traced(SPEC)
    edges = {(op_of(user).name, op_of(producer).name): live for user, producer, live in one.graph.graph.edges(data="live")}
    assert edges["mean", "add"] is True
    assert edges["add", "relu"] is True
    assert edges["add", "detach"] is False
    assert edges["linear", "input"] is False
    assert edges["linear", "cut.weight"] is True


def test_the_root_is_what_backward_started_from() -> None:
    one = traced(SPEC)
    assert one.graph.roots == {named(one, "mean")}


def test_reached_is_what_gradient_reaches() -> None:
    one = traced(SPEC)
    reached = {op_of(n).name for n in one.graph.reached}
    assert reached == {"mean", "add", "relu", "linear", "live.weight", "live.bias"}


def test_towards_loss_is_all_that_the_loss_is_made_of() -> None:
    one = traced(SPEC)
    parts = {op_of(n).name for n in one.graph.towards_loss}
    assert {"detach", "cut.weight", "cut.bias", "input"} <= parts
    assert "lost.weight" not in parts


def test_consumers_come_in_the_order_of_execution() -> None:
    one = traced(SPEC)
    consumers = list(one.graph.consumers(named(one, "input")))
    assert [op_of(n).module for n, _ in consumers] == ["lost", "live", "cut"]
    assert [live for _, live in consumers] == [False, False, False]
    indices = [op_of(n).index for n, _ in consumers]
    assert indices == sorted(indices)


def test_gradient_goes_on_through_a_backward_inside_a_functions_backward() -> None:
    one = traced(gradients.CheckpointReentrant.spec())
    inner = [call for call in one.path.recording.backwards if call.inside is not None]
    (call,) = inner
    assert call.inside is not None
    assert op_of(call.inside).custom
    for root in call.roots:
        assert one.graph.graph.edges[call.inside, root]["live"] is True
        assert root in one.graph.reached
    assert one.graph.roots.isdisjoint(call.roots)


def test_every_backward_of_a_step_is_a_root() -> None:
    one = traced(gradients.StepAccumulates.spec())
    assert len(one.graph.roots) == 2


def test_a_function_that_returns_none_gives_a_dead_edge() -> None:
    one = traced(gradients.FunctionReturnsNone.spec())
    (function,) = (n for n, op in one.path.recording.ops.items() if op.custom)
    live = {
        op_of(producer).module: one.graph.graph.edges[function, producer]["live"] for producer in one.graph.graph[function]
    }
    assert live == {"live": True, "dead": False}


def test_a_write_into_a_view_is_part_of_its_base() -> None:
    one = traced(writes.ViewWritten.spec())
    copy = named(one, "copy_")
    assert copy in one.graph.reached
    assert {op_of(n).name for n, _ in one.graph.consumers(copy)} == {"square"}


def flows(one: Traced) -> dict[tuple[str | None, str | None], ModuleEdge]:
    edges = module_edges([(one.path.recording, one.graph)])
    return {(edge.consumer, edge.producer): edge for edge in edges}


def test_module_edges_say_what_flows_back_between_modules() -> None:
    found = flows(traced(SPEC))
    assert {pair: edge.flow for pair, edge in found.items()} == {
        (None, ""): "gradient",  # the loss takes what the root's forward returns
        ("", "live"): "gradient",
        ("", "cut"): "cut",
    }


def test_module_edges_come_from_the_loss_back() -> None:
    one = traced(SPEC)
    edges = module_edges([(one.path.recording, one.graph)])
    assert edges[0].consumer is None
    assert edges[0].producer == ""


def test_a_cut_between_two_modules_has_its_place() -> None:
    found = flows(traced(spec(TwoCuts)))
    assert {pair: edge.flow for pair, edge in found.items()} == {
        (None, "top"): "gradient",
        ("top", "middle"): "cut",
        ("middle", "bottom"): "cut",
        ("side", "bottom"): "dropped",
    }
    place = found["top", "middle"].location
    assert place is not None
    assert place.text == "with torch.no_grad():"
    assert found["middle", "bottom"].location is None


def test_of_several_paths_the_best_flow_counts() -> None:
    severed, whole = traced(SPEC), traced(spec(TwoCuts))
    first = module_edges([(severed.path.recording, severed.graph)])
    both = module_edges([(one.path.recording, one.graph) for one in (severed, whole)])
    assert both[: len(first)] == first
    again = module_edges([(one.path.recording, one.graph) for one in (severed, severed)])
    assert again == first


def test_a_tied_parameter_belongs_to_the_module_of_its_first_name() -> None:
    found = flows(traced(spec(Tied)))
    assert found["head", "table"].flow == "gradient"
