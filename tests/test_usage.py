from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddplint.analyse import analyse
from ddplint.analysis import Parameter, Step
from ddplint.request import Request
from ddplint.rules import TargetSpec
from ddplint.usage import answers, describe
from tests.kinds import gradients
from tests.kinds.compare import traced
from tests.kinds.lines import line_of


class Head(nn.Module):
    """A projection that runs, and a norm that nothing calls."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)  # makes the norm

    def forward(self, x: Any) -> Any:
        return self.project(x)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.probe = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x, self.probe(x)  # returns both


class Model(nn.Module):
    """One of each cause, with shared weights."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.head = Head()
        self.again = self.head
        self.vocabulary = nn.Sequential(  # makes the vocabulary
            nn.Linear(4, 4),
            nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
        )
        self.scale = nn.Parameter(torch.ones(4))  # makes the scale
        self.gates = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.side = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        y, probed = self.encoder(x)
        for gate in self.gates:
            y = y * gate(x).sigmoid().detach()  # cuts
        self.side(y).relu()  # drops
        return self.head(self.frozen(y)), probed


def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (torch.randn(2, 4),), {}


def loss(output: Any) -> torch.Tensor:
    return output[0].mean()  # type: ignore[no-any-return]


SPEC = TargetSpec(f"{__name__}:Model", inputs=f"{__name__}:inputs", loss=f"{__name__}:loss")
UNUSED = {
    "encoder.probe.0.weight": ("output-only", "encoder.probe", "returns both"),
    "encoder.probe.1.bias": ("output-only", "encoder.probe", "returns both"),
    "head.norm.weight": ("uncalled", "head.norm", "makes the norm"),
    "vocabulary.0.weight": ("uncalled", "vocabulary", "makes the vocabulary"),
    "vocabulary.1.0.bias": ("uncalled", "vocabulary", "makes the vocabulary"),
    "scale": ("uncalled", "scale", "makes the scale"),
    "gates.0.weight": ("severed", "gates", "cuts"),
    "gates.1.bias": ("severed", "gates", "cuts"),
    "side.weight": ("discarded", "side", "drops"),
}


@pytest.fixture(scope="module")
def parameters() -> dict[str, Parameter]:
    found = analyse(Request(SPEC, ranks=1, steps=1, rehearse=False))
    assert found.trace.disagreements == ()
    return {p.name: p for p in found.parameters}


def way_of(name: str, spec: TargetSpec = SPEC) -> tuple[Step, ...]:
    return analyse(Request(spec, ranks=1, steps=1, rehearse=False, explain=name)).way


@pytest.mark.parametrize("name", UNUSED)
def test_cause_subtree_and_line(parameters: dict[str, Parameter], name: str) -> None:
    found = parameters[name]
    cause, subtree, comment = UNUSED[name]
    assert found.location is not None
    assert (found.usage, found.cause, found.subtree) == ("never", cause, subtree)
    assert (found.location.file, found.location.line) == (__file__, line_of(__file__, comment))
    assert found.location.text.endswith(f"# {comment}")


def test_what_is_used_needs_no_explanation(parameters: dict[str, Parameter]) -> None:
    for name in ("encoder.layers.0.weight", "head.project.bias"):
        found = parameters[name]
        assert (found.usage, found.cause, found.location, found.why, found.place) == ("always", None, None, "", "")


def test_the_sentences(parameters: dict[str, Parameter]) -> None:
    why = {name: parameters[name].why for name in UNUSED}
    assert why["vocabulary.0.weight"] == "`vocabulary` is created here and never called"
    assert why["head.norm.weight"] == "`head.norm` is created here and never called"
    assert why["scale"] == "no operation reads it (the model runs without it)"
    assert why["gates.0.weight"] == "`detach` cuts the gradient: what it returns does not require grad"
    assert why["side.weight"] == "its value last goes into `relu`, and nothing made of it reaches the loss"
    assert why["encoder.probe.0.weight"] == (
        "it reaches forward's output through `linear` in `encoder.probe.1`, and the loss does not use that output"
    )


def test_parameters_that_one_place_explains_have_one_place(parameters: dict[str, Parameter]) -> None:
    groups: dict[str, set[str]] = {}
    for found in parameters.values():
        if found.usage == "never":
            groups.setdefault(found.place, set()).add(found.subtree)
    assert sorted(map(sorted, groups.values())) == [
        ["encoder.probe"], ["gates"], ["head.norm"], ["scale"], ["side"], ["vocabulary"]
    ]  # fmt: skip


def test_from_loss_and_from_outputs(parameters: dict[str, Parameter]) -> None:
    def seen(name: str) -> tuple[bool, bool]:
        return parameters[name].from_outputs, parameters[name].from_loss

    assert seen("head.project.weight") == (True, True)
    assert seen("encoder.probe.0.weight") == (True, False)
    assert seen("gates.0.weight") == (False, False)
    assert seen("vocabulary.0.weight") == (False, False)


def test_a_shared_parameter_is_known_by_its_first_name(parameters: dict[str, Parameter]) -> None:
    assert "again.project.weight" not in parameters
    assert parameters["head.project.weight"].aliases == ("again.project.weight",)


def test_a_parameter_is_described_as_it_is(parameters: dict[str, Parameter]) -> None:
    found = parameters["vocabulary.1.0.bias"]
    assert (found.module, found.module_type, found.shape) == ("vocabulary.1.0", "Linear", (4,))
    assert (found.dtype, found.numel, found.bytes, found.trainable) == ("float32", 4, 16, True)
    assert (parameters["scale"].module, parameters["scale"].module_type) == ("", "Model")


def test_a_frozen_parameter_has_no_usage(parameters: dict[str, Parameter]) -> None:
    found = parameters["frozen.weight"]
    assert (found.trainable, found.usage, found.cause) == (False, None, None)


def test_parameters_come_in_the_models_order(parameters: dict[str, Parameter]) -> None:
    assert list(parameters) == [name for name, _ in Model().named_parameters()]


def test_description_before_anything_is_known() -> None:
    described = describe(traced(SPEC).path.built)
    assert {p.usage for p in described} == {None}
    assert [p.name for p in described if not p.trainable] == ["frozen.weight", "frozen.bias"]


# ---------------------------------------------------------------------- the three answers


def test_a_function_that_returns_none_is_no_disagreement() -> None:
    one = traced(gradients.FunctionReturnsNone.spec())
    used, differing, _ = answers(one.path, one.graph)
    assert differing == ()
    assert used == {"live.weight": True, "live.bias": True, "dead.weight": False, "dead.bias": False}
    assert "dead.weight" in one.path.walked


def test_a_reentrant_checkpoint_is_no_disagreement() -> None:
    one = traced(gradients.CheckpointReentrant.spec())
    used, differing, _ = answers(one.path, one.graph)
    assert differing == ()
    assert all(used.values())
    assert "inner.0.weight" not in one.path.walked


def test_a_difference_without_a_reason_is_a_disagreement() -> None:
    one = traced(SPEC)
    without = replace(one.graph, reached=frozenset())
    used, differing, _ = answers(one.path, without)
    names = {name for name, is_used in used.items() if is_used}
    assert {d.name for d in differing} == names
    assert {(d.graph, d.autograd, d.backward) for d in differing} == {(False, True, True)}


# ---------------------------------------------------------------------- the way of a value


def test_the_way_of_a_used_parameter_carries_to_the_loss() -> None:
    steps = way_of("encoder.layers.0.weight")
    assert [step.operation for step in steps][:2] == ["linear", "linear"]
    assert steps[-1].operation == "mean"
    assert all(step.carries for step in steps)
    assert [step.module for step in steps][:2] == ["encoder.layers.0", "encoder.layers.1"]


def test_the_way_of_a_severed_parameter_shows_where_it_ends() -> None:
    steps = way_of("gates.1.weight")
    assert [(step.operation, step.carries) for step in steps] == [
        ("linear", True), ("sigmoid", True), ("detach", False),
        ("mul", False), ("linear", False), ("linear", False), ("mean", False),
    ]  # fmt: skip
    cut = steps[2].location
    assert cut is not None
    assert cut.line == line_of(__file__, "cuts")


def test_the_way_of_a_discarded_parameter_ends_where_its_value_does() -> None:
    assert [(step.operation, step.carries) for step in way_of("side.weight")] == [("linear", True), ("relu", True)]


def test_an_uncalled_parameter_has_no_way() -> None:
    assert way_of("vocabulary.0.weight") == ()
    assert way_of("no.such.parameter") == ()


# ---------------------------------------------------------------------- code that is all installed


def test_a_layer_that_a_library_made_is_explained_by_the_users_line(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "installed"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from torch import nn\n\n\nclass Backbone(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.used = nn.Linear(4, 4)\n        self.spare = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return self.used(x)\n"
    )
    target = tmp_path / "target.py"
    target.write_text(
        "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site-packages'))\n"
        "import torch\nimport installed\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.backbone = installed.Backbone()\n\n"
        "    def forward(self, x):\n        return self.backbone(x)\n\n\n"
        "build = Net\n\n\ndef inputs():\n    return (torch.randn(2, 4),), {}\n"
    )
    spec = TargetSpec("target.py:build", base=str(tmp_path), from_module=True)
    found = {p.name: p for p in analyse(Request(spec, ranks=1, steps=1, rehearse=False)).parameters}
    spare = found["backbone.spare.weight"]
    assert spare.location is not None
    assert (spare.location.file, spare.location.text) == (str(target), "self.backbone = installed.Backbone()")
    assert spare.why == "`backbone.spare` is created here and never called (installed/__init__.py:8)"


LATER = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.router = nn.Linear(4, 4), nn.Linear(4, 4)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, f, g):
        y = self.stem(x)
        if x.sum() > 1e6:
            y = y + self.router(x).argmax()  # argmax
            y = y + 0 * self.two(x)  # zero
        if f.item() > 0 and g.item() == 0:  # both
            y = y + self.one(x)
        return y


def build():
    return Model()


def inputs():
    return (torch.ones(2, 4), torch.tensor(0), torch.tensor(1)), {}


def loss(output):
    return output.sum()
"""


@pytest.fixture(scope="module")
def later(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parameter]:
    folder = tmp_path_factory.mktemp("later")
    (folder / "later_model.py").write_text(LATER)
    request = Request(TargetSpec("later_model.py:build", base=str(folder), from_module=True), rehearse=False)
    return {p.name: p for p in analyse(request).parameters}


def line_in_later(comment: str) -> int:
    return 1 + next(number for number, line in enumerate(LATER.splitlines()) if line.endswith(f"# {comment}"))


def test_what_another_path_than_the_first_takes_is_explained_there(later: dict[str, Parameter]) -> None:
    router = later["router.weight"]
    assert (router.usage, router.cause) == ("never", "severed")
    assert router.location is not None
    assert router.location.line == line_in_later("argmax")


def test_what_another_path_than_the_first_keeps_alive_is_seen_there(later: dict[str, Parameter]) -> None:
    two = later["two.weight"]
    assert two.usage == "sometimes"
    assert two.zeroed is not None
    assert two.zeroed.line == line_in_later("zero")


def test_where_several_answers_must_meet_they_are_named(later: dict[str, Parameter]) -> None:
    one = later["one.weight"]
    assert (one.usage, one.decided_by) == ("sometimes", "value")
    assert one.location is not None
    assert one.location.line == line_in_later("both")
