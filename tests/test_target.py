from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddplint.errors import DdplintError
from ddplint.rules import TargetSpec, TensorSpec
from ddplint.target import Target, load, said

GOOD = """
import torch
from torch import nn


def build(width=4):
    return nn.Linear(width, 2)


def inputs():
    return (torch.ones(3, 4),), {}


def loss(output):
    return output.sum()
"""


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What a test imports or puts on sys.path is gone after it."""
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def target(folder: Path, source: str = GOOD, factory: str = "model.py:build", **options: Any) -> Target:
    (folder / "model.py").write_text(source)
    return load(TargetSpec(factory, base=str(folder), **{"from_module": True, **options}))


def refused(folder: Path, source: str = GOOD, factory: str = "model.py:build", **options: Any) -> str:
    with pytest.raises(DdplintError) as caught:
        target(folder, source, factory, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fails(doing: Any) -> str:
    with pytest.raises(DdplintError) as caught:
        doing()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------- what there is


def test_a_file_gives_factory_inputs_and_loss(tmp_path: Path) -> None:
    found = target(tmp_path)
    model = found.build()
    (make,) = found.inputs
    args, kwargs = make()
    taken, how = found.loss(model(*args, **kwargs))
    assert isinstance(model, nn.Linear)
    assert taken.requires_grad
    assert how == ""
    assert found.step is None
    assert found.name == "model.py:build"


def test_each_build_is_a_new_model_and_each_input_a_new_tensor(tmp_path: Path) -> None:
    found = target(tmp_path)
    assert found.build() is not found.build()
    assert found.inputs[0]()[0][0] is not found.inputs[0]()[0][0]


def test_the_factory_is_build_unless_another_is_named(tmp_path: Path) -> None:
    assert target(tmp_path, factory="model.py").name == "model.py:build"


def test_a_module_is_named_with_dots(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "net.py").write_text(GOOD)
    found = load(TargetSpec("package.net:build", base=str(tmp_path), from_module=True))
    assert isinstance(found.build(), nn.Linear)


def test_a_factory_can_be_an_attribute_of_a_class(tmp_path: Path) -> None:
    source = f"{GOOD}\n\nclass Zoo:\n    small = staticmethod(build)\n"
    assert isinstance(target(tmp_path, source, "model.py:Zoo.small").build(), nn.Linear)


def test_keyword_arguments_go_to_the_factory(tmp_path: Path) -> None:
    model = target(tmp_path, kwargs={"width": 7}).build()
    assert isinstance(model, nn.Linear)
    assert model.in_features == 7


def test_arguments_that_a_factory_changes_are_as_before_for_the_next(tmp_path: Path) -> None:
    source = GOOD.replace("width=4", "widths").replace("width,", "widths.pop(),")
    found = target(tmp_path, source, kwargs={"widths": [4, 4]})
    assert found.build().in_features == found.build().in_features == 4


def test_a_wrapped_model_is_taken_out_of_its_wrap(tmp_path: Path) -> None:
    source = GOOD.replace(
        "return nn.Linear(width, 2)",
        "wrap = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)\n"
        "    nn.Module.__init__(wrap)\n    wrap.module = nn.Linear(width, 2)\n    return wrap",
    )
    assert isinstance(target(tmp_path, source).build(), nn.Linear)


def test_variants_are_further_inputs_each_once(tmp_path: Path) -> None:
    source = f"{GOOD}\n\ndef variants():\n    return [inputs, lambda: ((torch.ones(5, 4),), {{}})]\n"
    assert [make()[0][0].shape[0] for make in target(tmp_path, source).inputs] == [3, 5]


def test_a_step_stands_for_inputs_and_loss(tmp_path: Path) -> None:
    source = (
        "from torch import nn\n\n\ndef build():\n    return nn.Linear(4, 2)\n\n\n"
        "def step(model):\n    return model.weight.sum()\n"
    )
    found = target(tmp_path, source)
    assert found.step is not None
    assert found.step(found.build()).requires_grad
    assert found.inputs == ()


def test_only_what_is_named_is_used_where_a_rule_file_names_the_parts(tmp_path: Path) -> None:
    said_ = refused(tmp_path, from_module=False)
    assert said_ == (
        "inputs: model.py:build has no example inputs; add inputs() -> (args, kwargs) beside the factory, or a step(model)"
    )


def test_inputs_from_tensor_specs() -> None:
    spec = TargetSpec(
        f"{__name__}:small",
        inputs=(TensorSpec((2, 3)), TensorSpec((4,), "int64", 5, 6), TensorSpec((1,), "bool"), 7, "text", True),
    )
    args, kwargs = load(spec).inputs[0]()
    assert (args[0].shape, args[0].dtype) == ((2, 3), torch.float32)
    assert args[1].tolist() == [5, 5, 5, 5]
    assert args[2].dtype == torch.bool
    assert args[3:] == (7, "text", True)
    assert kwargs == {}


def test_keyword_inputs_from_tensor_specs() -> None:
    args, kwargs = load(TargetSpec(f"{__name__}:small", inputs={"x": TensorSpec((2,), "complex64")})).inputs[0]()
    assert args == ()
    assert (kwargs["x"].shape, kwargs["x"].dtype) == ((2,), torch.complex64)


def small() -> nn.Module:
    return nn.Linear(3, 1)


# ---------------------------------------------------------------------- the loss


def take(path: str | None, output: Any) -> tuple[torch.Tensor, str]:
    return load(TargetSpec(f"{__name__}:small", inputs=(), loss=path)).loss(output)


class Output:
    """An output with attributes."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


ONE = torch.ones((), requires_grad=True)
TWO = torch.ones(2, requires_grad=True)


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("loss", {"loss": ONE}),
        ("losses.main", {"losses": Output(main=ONE)}),
        ("0", (ONE, TWO)),
        ("-1.loss", [TWO, {"loss": ONE}]),
    ],
)
def test_a_path_into_the_output(path: str, output: Any) -> None:
    assert take(path, output) == (ONE, "")


@pytest.mark.parametrize(
    ("path", "output", "expected"),
    [
        ("los", {"loss": ONE}, "the output has no 'los': 'los' is not in keys ['loss']"),
        ("2", (ONE, TWO), "the output has no '2': '2' is not in a tuple"),
        ("a.b", {"a": ONE}, "the output has no 'a.b': 'b' is not in a Tensor"),
        ("loss", {"loss": TWO}, "the loss (output.loss) has shape (2,)"),
        ("loss", {"loss": 3.0}, "the loss (output.loss) is a float"),
    ],
)
def test_a_path_that_leads_nowhere(path: str, output: Any, expected: str) -> None:
    assert fails(lambda: take(path, output)).startswith(f"loss: {expected}; ")


@pytest.mark.parametrize(
    ("output", "how"),
    [
        (Output(loss=ONE), "the output's own .loss stands in"),
        ({"loss": ONE, "x": TWO}, "the output's own .loss stands in"),
        (ONE, "the scalar output stands in"),
    ],
)
def test_without_a_loss_the_outputs_own_stands_in(output: Any, how: str) -> None:
    taken, notice = take(None, output)
    assert taken is ONE
    assert notice == f"no loss given: {how}"


def test_without_any_all_floating_outputs_do() -> None:
    taken, notice = take(None, {"a": TWO, "b": [TWO, TWO * 2, torch.ones(1, dtype=torch.long)]})
    assert taken.item() == 6.0
    assert "the sum of all 2 floating outputs stands in" in notice


def test_nothing_to_take_a_loss_from() -> None:
    assert fails(lambda: take(None, torch.ones(2))).startswith("loss: no output requires grad")


def test_a_loss_function_that_is_no_scalar(tmp_path: Path) -> None:
    found = target(tmp_path, GOOD.replace(".sum()", ""))
    assert fails(lambda: found.loss(torch.ones(3, 2))) == (
        "loss: the loss (of loss()) has shape (3, 2); it has to be a scalar: reduce it, for instance by .mean()"
    )


def test_a_loss_function_that_gives_no_tensor(tmp_path: Path) -> None:
    found = target(tmp_path, GOOD.replace("output.sum()", "3"))
    assert fails(lambda: found.loss(torch.ones(3, 2))).startswith("loss: the loss (of loss()) is a int")


# ---------------------------------------------------------------------- what can be wrong


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("missing.py:build", "factory: no such file: missing.py; paths start from {base}"),
        ("nosuchpackage.net:build", "factory: no module named 'nosuchpackage'; "),
        ("model.py:biuld", "factory: model.py has no 'biuld'; did you mean 'build'?"),
        ("model.py:qqq", "factory: model.py has no 'qqq'; name a function or class that it defines"),
        ("model.py:__name__", "factory: model.py:__name__ is a str, not callable; "),
        (":build", "factory: ':build' is no reference; "),
    ],
)
def test_a_factory_that_is_not_there(tmp_path: Path, factory: str, expected: str) -> None:
    assert refused(tmp_path, factory=factory).startswith(expected.format(base=tmp_path))


def test_a_submodule_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    assert "no module named 'package.nte'" in refused(tmp_path, factory="package.nte:build")


def test_a_syntax_error_is_named_with_its_line(tmp_path: Path) -> None:
    said_ = refused(tmp_path, "def build(:\n    pass\n")
    assert said_.startswith(f"{tmp_path / 'model.py'}:1: importing model.py failed: SyntaxError: ")


def test_an_import_that_raises_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(tmp_path, f"{GOOD}\nvalue = {{}}['key']\n").startswith(
        "model.py:17: importing model.py raised KeyError: 'key'"
    )


def test_a_package_that_the_target_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert refused(tmp_path, "import nosuchpackage\n").startswith(
        "model.py:1: importing model.py raised ModuleNotFoundError: No module named 'nosuchpackage'"
    )


def test_an_import_that_failed_is_not_kept(tmp_path: Path) -> None:
    refused(tmp_path, "raise ValueError\n")
    assert target(tmp_path).build() is not None


def test_a_factory_that_returns_no_module(tmp_path: Path) -> None:
    found = target(tmp_path, GOOD.replace("return nn.Linear(width, 2)", "return [width]"))
    assert fails(found.build) == "model.py:build: the factory returned a list; it has to return a torch.nn.Module"


@pytest.mark.parametrize(
    "made", ["torch.ones(3, 4)", "[torch.ones(3, 4)]", "((torch.ones(3, 4),), [])", "None", "(1, 2, 3)"]
)
def test_inputs_that_are_no_args_and_kwargs(tmp_path: Path, made: str) -> None:
    found = target(tmp_path, GOOD.replace("(torch.ones(3, 4),), {}", made))
    said_ = fails(found.inputs[0])
    assert said_.startswith("inputs: inputs() returned a ")
    assert said_.endswith("it has to return (args, kwargs): a tuple and a dict")


def test_inputs_that_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = target(tmp_path, GOOD.replace("return (torch.ones(3, 4),), {}", "raise OSError('no data')"))
    assert fails(found.inputs[0]).startswith("model.py:11: inputs() raised OSError: no data")


def test_variants_that_raise(tmp_path: Path) -> None:
    assert "variants() raised ValueError" in refused(tmp_path, f"{GOOD}\n\ndef variants():\n    raise ValueError\n")


@pytest.mark.parametrize("part", ["inputs", "loss", "variants", "step"])
def test_a_part_that_is_not_callable(tmp_path: Path, part: str) -> None:
    said_ = refused(tmp_path, f"{GOOD}\n\n{part} = 3\n")
    assert said_ == f"{part}: model.py has a {part} that is a int, not callable; name a function or a class"


def test_an_exception_in_one_line() -> None:
    assert said(ValueError("first\nsecond")) == "ValueError: first"
    assert said(KeyError()) == "KeyError"
