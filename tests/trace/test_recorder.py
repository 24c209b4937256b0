from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

from ddplint.rules import TargetSpec, matches
from tests.kinds import gradients, modules, scripted, writes
from tests.kinds.compare import (
    Device,
    analysed,
    covered,
    misplaced,
    never,
    plain,
    replay,
    traced,
    unreached_from_outputs,
)
from tests.kinds.kind import Kind, kinds_in
from tests.kinds.lines import line_of

KINDS = [*kinds_in(writes, gradients, modules)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
on_each_device = pytest.mark.parametrize("device", ["auto", "cpu"])


@each_kind
def test_a_real_run_leaves_without_gradient_what_the_kind_says(kind: type[Kind]) -> None:
    run = plain(kind)
    said = {name for name in run.trainable if any(e.is_about(name) for e in kind.explanations())}
    assert said == run.never


@on_each_device
@each_kind
def test_never_used_is_what_a_real_run_leaves_without_gradient(kind: type[Kind], device: Device) -> None:
    assert never(analysed(kind, device)) == plain(kind).never


@on_each_device
@each_kind
def test_graph_autograd_and_backward_agree(kind: type[Kind], device: Device) -> None:
    assert analysed(kind, device).trace.disagreements == ()


@on_each_device
@each_kind
def test_an_unused_parameter_is_explained_by_the_line_that_does_it(kind: type[Kind], device: Device) -> None:
    assert misplaced(kind, analysed(kind, device)) == []


@pytest.mark.parametrize("kind", [k for k in KINDS if k.step is None], ids=lambda kind: kind.__name__)
def test_what_ddp_finds_from_the_outputs(kind: type[Kind]) -> None:
    run = plain(kind)
    expected = run.never
    if kind.never_from_outputs is not None:
        expected = covered(run.trainable, kind.never_from_outputs)
    assert unreached_from_outputs(analysed(kind, "auto")) == expected


@pytest.mark.parametrize("kind", [k for k in KINDS if k.step is None and not k.replay], ids=lambda kind: kind.__name__)
def test_the_recorded_graph_runs_again_to_the_same_result(kind: type[Kind]) -> None:
    assert replay(kind.spec()).differing() == []


# ---------------------------------------------------------------------- TorchScript

_ANALYSE = """
import json, sys
from ddplint.analyse import analyse
from ddplint.request import Request
from ddplint.rules import TargetSpec
request = Request(TargetSpec.from_json(json.loads(sys.argv[1])), ranks=1, steps=1, rehearse=False)
print(json.dumps(analyse(request).to_json()))
"""


@pytest.mark.parametrize("kind", [*kinds_in(scripted)], ids=lambda kind: kind.__name__)
def test_torchscript_run_as_python_is_explained_from_inside(kind: type[Kind]) -> None:
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _ANALYSE, json.dumps(kind.spec().to_json())],
        env={**os.environ, "PYTORCH_JIT": "0", "PYTHONPATH": str(root)},
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout)
    assert found["trace"]["disagreements"] == []
    unused = {p["name"]: p for p in found["parameters"] if p["usage"] == "never"}
    assert set(unused) == plain(kind).never
    for parameter in unused.values():
        assert parameter["cause"] == "severed"
        assert parameter["location"]["text"] == "return a.detach() * 2"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [*kinds_in(scripted)], ids=lambda kind: kind.__name__)
def test_compiled_torchscript_is_read_off_autograds_graph(kind: type[Kind]) -> None:
    found = analysed(kind, "cpu")
    assert never(found) == plain(kind).never
    assert found.trace.disagreements == ()


# ---------------------------------------------------------------------- the fx graph's conventions


class Block(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> Any:
        x, rest = self.linear(x).split(2, dim=-1)
        rest = rest.clone()
        rest.add_(1)  # marked
        return torch.cat([x, rest], -1) * self.scale


class Small(nn.Module):
    """Two blocks, a constant, and a keyword input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.constant = torch.ones(4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        if bool((x > 1000).any()):
            x = x / 2
        return {"x": x * mask + self.constant, "sum": x.sum()}


def small_inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(3, 4),), {"mask": torch.ones(4)}


def small_loss(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["x"].mean()


SMALL = TargetSpec(f"{__name__}:Small", inputs=f"{__name__}:small_inputs", loss=f"{__name__}:small_loss")


def test_parameters_and_buffers_are_attributes_by_qualified_name() -> None:
    recording = traced(SMALL).path.recording
    attributes = {node.target for node in recording.graph.nodes if node.op == "get_attr"}
    assert attributes == {
        *(f"blocks.{i}.{name}" for i in (0, 1) for name in ("linear.weight", "linear.bias", "scale")),
        *recording.constants,
    }
    assert set(recording.parameters) == {name for name in attributes if name.endswith(("weight", "bias"))}
    assert all(node.target == name for name, node in recording.parameters.items())


def test_inputs_are_placeholders_in_order_and_the_output_is_loss_and_outputs() -> None:
    recording = traced(SMALL).path.recording
    nodes = list(recording.graph.nodes)
    assert [node.name for node in nodes if node.op == "placeholder"] == ["arg_0", "mask"]
    loss, outputs = nodes[-1].args[0]
    assert recording.ops[loss].name == "mean"
    assert sorted(recording.ops[node].name for node in outputs) == ["add", "sum"]


def test_a_node_knows_its_module_and_its_line() -> None:
    recording = traced(SMALL).path.recording
    linears = [node for node, op in recording.ops.items() if op.name == "linear"]
    assert [recording.ops[node].module for node in linears] == ["blocks.0.linear", "blocks.1.linear"]
    assert list(linears[1].meta["nn_module_stack"]) == ["", "blocks.1", "blocks.1.linear"]
    assert linears[1].meta["nn_module_stack"]["blocks.1"] == ("blocks.1", Block)
    line = line_of(__file__, "marked")
    writes_ = [node for node, op in recording.ops.items() if op.name == "add_"]
    assert {node.meta["stack_trace"] for node in writes_} == {f'File "{__file__}", line {line}, in forward'}


def test_several_results_of_one_call_are_taken_by_getitem() -> None:
    recording = traced(SMALL).path.recording
    split = next(node for node, op in recording.ops.items() if op.name == "split")
    taken = [node.args for node in split.users if node.op == "call_function"]
    assert taken == [(split, 0), (split, 1)]


def test_modules_whose_call_ran() -> None:
    assert traced(SMALL).path.recording.called == {
        "", "blocks.0", "blocks.0.linear", "blocks.1", "blocks.1.linear"
    }  # fmt: skip


def test_the_backward_starts_at_the_loss() -> None:
    one = traced(SMALL)
    (call,) = one.path.recording.backwards
    assert [one.path.recording.ops[node].name for node in call.roots] == ["mean"]
    assert call.inside is None
    assert call.leaves is None


def test_a_graph_module_holds_the_models_own_tensors() -> None:
    one = traced(SMALL)
    module = one.path.recording.graph_module(one.model)
    assert isinstance(module, torch.fx.GraphModule)
    assert dict(module.named_parameters()).keys() == dict(one.model.named_parameters()).keys()
    assert module.get_parameter("blocks.0.linear.weight") is one.model.get_parameter("blocks.0.linear.weight")


def test_the_graph_of_a_whole_model_runs_again() -> None:
    assert replay(SMALL).differing() == []


@pytest.mark.parametrize("checkpoint", ["grover_base", "cmim", "hybrid"])
def test_the_graph_of_the_reference_model_runs_again(checkpoint: str) -> None:
    """Its dropout and its drawn depth included: both runs start from one seed."""
    model = "ddplint.reference.finetune"
    spec = TargetSpec(f"{model}:build", kwargs={"checkpoint": checkpoint}, inputs=f"{model}:inputs", loss=f"{model}:loss")
    assert replay(spec).differing() == []


def test_backwards_of_a_replayed_graph_reach_the_same_parameters() -> None:
    spec = writes.OutArgument.spec()
    one = traced(spec)
    module = one.path.recording.graph_module(one.model)
    loss, _ = module(torch.randn(2, 4))
    for parameter in module.parameters():
        parameter.grad = None
    loss.backward()
    without = {name for name, p in one.model.named_parameters() if p.grad is None}
    assert without == plain(writes.OutArgument).never


def test_recording_leaves_torch_as_it_was() -> None:
    watched = [
        (torch.autograd.Function, "apply"), (torch.autograd, "_engine_run_backward"), (nn.Module, "__call__"),
        (torch.Tensor, "register_hook"), (torch.nn.functional, "has_torch_function_unary"),
        (torch.autograd.graph.saved_tensors_hooks, "__enter__"), (torch, "compile"), (torch, "load"),
    ]  # fmt: skip
    before = [vars(owner).get(name) for owner, name in watched]
    traced(SMALL)
    assert [vars(owner).get(name) for owner, name in watched] == before
    assert torch.is_grad_enabled()


def test_every_kind_of_explanation_is_about_a_parameter_that_exists() -> None:
    for kind in KINDS:
        for explanation in kind.explanations():
            for glob in explanation.names:
                assert any(matches(glob, name) for name in plain(kind).trainable), (kind, glob)
