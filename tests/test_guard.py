"""What a training script calls, on small models, the reference model, and a real DDP of two processes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ddplint.errors import DdplintError
from ddplint.guard import ContractError, assert_contract, freeze_unused, log_unused_once, strip_unused
from ddplint.reference import finetune

HEAD = """\
[checkpoint]
name = "small"

[target]
factory = "net.py:build"
inputs = "net.py:inputs"
loss = "net.py:loss"
"""
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.side = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.heads[2](self.used(x))


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""
UNUSED = {"heads.0.weight", "heads.0.bias", "heads.1.weight", "heads.1.bias", "scale"}
SIDE = {"side.0.weight", "side.0.bias", "side.1.weight", "side.1.bias"}


def entry(*params: str, action: str = "freeze", more: str = "") -> str:
    listed = ", ".join(f'"{pattern}"' for pattern in params)
    return f'\n[[unused]]\nparams = [{listed}]\nreason = "not called"\naction = "{action}"\n{more}'


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A project in the working folder; called with the ``[[unused]]`` entries of its one rule file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "rules").mkdir()

    def with_rules(*entries: str) -> Path:
        (tmp_path / "rules" / "small.toml").write_text(HEAD + "".join(entries))
        return tmp_path

    return with_rules


def net() -> Any:
    space: dict[str, Any] = {"__name__": "net"}
    exec(NET, space)
    return space["build"]()


ALL = entry("heads.0", "heads.1", "scale"), entry("side.**", action="allow")


# ---------------------------------------------------------------------- freezing


def test_what_is_documented_is_frozen_whatever_the_action(project: Callable[..., Path]) -> None:
    project(*ALL)
    model = net()
    model.side[1].weight.requires_grad_(False)
    done = freeze_unused(model, ckpt="small")
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == UNUSED | SIDE
    assert set(done.names) == (UNUSED | SIDE) - {"side.1.weight"}
    assert done.already == ("side.1.weight",)
    assert done.numel == sum(p.numel() for name, p in model.named_parameters() if name in done.names)
    assert str(done) == "small: froze 8 parameters (68 weights), 1 were frozen already"
    assert freeze_unused(model, ckpt="small").names == ()


def test_what_is_used_sometimes_stays_trainable(project: Callable[..., Path]) -> None:
    project(entry("heads.**", more='when = "sometimes"\n'), entry("scale"))
    assert freeze_unused(net(), ckpt="small").names == ("scale",)


def test_a_shared_parameter_is_found_by_any_of_its_names(project: Callable[..., Path]) -> None:
    project(entry("again.weight"))
    model = net()
    model.again = model.heads[0]
    assert freeze_unused(model, ckpt="small").names == ("heads.0.weight",)


@pytest.mark.parametrize("more", ["optional = true\n", ""])
def test_a_pattern_that_names_nothing_is_refused_and_nothing_is_done(more: str, project: Callable[..., Path]) -> None:
    project(entry("scale"), entry("gone.**", more=more))
    model = net()
    if more:
        freeze_unused(model, ckpt="small")
        assert not model.scale.requires_grad
        return
    with pytest.raises(DdplintError, match=r"rules/small\.toml:\d+: `?.?gone") as caught:
        freeze_unused(model, ckpt="small")
    assert "names no parameter" in str(caught.value)
    assert model.scale.requires_grad


def test_an_unknown_type_is_refused_with_the_nearest(project: Callable[..., Path]) -> None:
    project(*ALL)
    with pytest.raises(DdplintError, match="did you mean"):
        freeze_unused(net(), ckpt="smal")


@pytest.mark.parametrize("call", [freeze_unused, strip_unused])
def test_after_the_wrap_it_is_too_late(call: Callable[..., Any], project: Callable[..., Path], group: None) -> None:
    project(*ALL)
    model = net()
    with pytest.raises(DdplintError, match="wrapped in DistributedDataParallel already"):
        call(DistributedDataParallel(model), ckpt="small")
    holder = nn.ModuleDict({"inner": DistributedDataParallel(model)})
    with pytest.raises(DdplintError, match="inner is wrapped"):
        call(holder, ckpt="small")
    assert model.scale.requires_grad


def test_rules_in_another_folder_and_rules_that_change(project: Callable[..., Path], tmp_path: Path) -> None:
    folder = project(entry("scale"))
    (folder / "rules").rename(tmp_path / "elsewhere")
    assert freeze_unused(net(), ckpt="small", rules="elsewhere").names == ("scale",)
    file = tmp_path / "elsewhere" / "small.toml"
    file.write_text(HEAD + entry("heads.0"))
    os.utime(file, ns=(1, 1))
    assert freeze_unused(net(), ckpt="small", rules="elsewhere").names == ("heads.0.weight", "heads.0.bias")


# ---------------------------------------------------------------------- stripping


def test_what_is_marked_is_taken_away_and_the_rest_keeps_its_names(project: Callable[..., Path]) -> None:
    project(entry("heads.0", "side", "scale", action="strip"), entry("heads.1"))
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(3, 4)
    expected = model(x)
    done = strip_unused(model, ckpt="small")
    assert set(done.names) == {"heads.0.weight", "heads.0.bias", "scale"} | SIDE
    assert done.modules == ("heads.0", "side")
    after = model.state_dict()
    assert set(after) == {name for name in before if not name.startswith(("heads.0.", "side.", "scale"))}
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert torch.equal(model(x), expected)
    assert len(model.heads) == 3
    assert model.scale is None
    assert strip_unused(model, ckpt="small").names == ()


def test_whoever_needs_what_is_gone_is_told(project: Callable[..., Path]) -> None:
    project(entry("heads.2", action="strip"))
    model = net()
    strip_unused(model, ckpt="small")
    with pytest.raises(DdplintError, match=r"heads\.2 was stripped from the model"):
        model(torch.ones(2, 4))
    with pytest.raises(AttributeError, match=r"heads\.2 was stripped"):
        _ = model.heads[2].weight


def test_of_a_shared_weight_only_the_name_goes(project: Callable[..., Path]) -> None:
    project(entry("side.0.weight", action="strip"))
    model = net()
    model.side[0].weight = model.used.weight
    done = strip_unused(model, ckpt="small")
    assert done.names == ("side.0.weight",)
    assert model.used.weight.requires_grad
    assert model.side[0].weight is None
    assert "used.weight" in model.state_dict()


def test_an_item_of_a_parameter_list_is_refused_but_not_the_whole_list(project: Callable[..., Path]) -> None:
    project(entry("weights.0", action="strip"))
    model = net()
    model.weights = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(2)])
    with pytest.raises(DdplintError, match="one of several in a ParameterList"):
        strip_unused(model, ckpt="small")
    assert len(list(model.weights)) == 2
    project(entry("weights", action="strip"))
    assert strip_unused(model, ckpt="small").modules == ("weights",)


def test_to_strip_everything_is_refused(project: Callable[..., Path]) -> None:
    project(entry("**", action="strip"))
    with pytest.raises(DdplintError, match="nothing trainable would be left"):
        strip_unused(net(), ckpt="small")


# ---------------------------------------------------------------------- the contract


def test_a_model_as_its_rules_say(project: Callable[..., Path]) -> None:
    project(*ALL)
    model = net()
    freeze_unused(model, ckpt="small")
    state, drawn = torch.get_rng_state(), {name: p.clone() for name, p in model.named_parameters()}
    result = assert_contract(model, ckpt="small")
    assert result is not None
    assert not result.fails
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, drawn[name]) and p.grad is None for name, p in model.named_parameters())
    assert not dist.is_initialized()


def test_a_model_that_is_not_frozen_as_its_rules_say(project: Callable[..., Path]) -> None:
    project(*ALL)
    with pytest.raises(ContractError, match="DDP104 not-frozen") as caught:
        assert_contract(net(), ckpt="small")
    assert "the model is not what its rules say" in str(caught.value).partition("\n")[0]
    assert "DDP104" in caught.value.report


def test_another_model_is_refused(project: Callable[..., Path]) -> None:
    project(*ALL)
    model = net()
    model.more = nn.Linear(2, 2)
    with pytest.raises(ContractError, match=r"more\.weight is in one of the two only"):
        assert_contract(model, ckpt="small")


def test_other_ranks_of_a_launcher_leave_it_to_the_first(
    project: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    project(*ALL)
    monkeypatch.setenv("RANK", "1")
    assert assert_contract(net(), ckpt="small") is None


# ---------------------------------------------------------------------- what DDP saw


@pytest.fixture
def group(tmp_path: Path) -> Any:
    """A process group of one."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(model: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize("flag", [True, False])
def test_what_gets_no_gradient_is_said_once(
    flag: bool, project: Callable[..., Path], group: None, caplog: pytest.LogCaptureFixture
) -> None:
    project(entry("heads.0", "heads.1"))
    model = DistributedDataParallel(net(), find_unused_parameters=flag)
    watch = log_unused_once(model, ckpt="small")
    with caplog.at_level(logging.INFO, "ddplint"):
        train(model, 1)
        assert (watch.unused, caplog.records) == (None, [])
        if flag:
            train(model, 3)
        else:
            with pytest.raises(RuntimeError, match="finished reduction"):
                train(model, 1)
    assert set(watch.unused or ()) == UNUSED | SIDE
    info, warning = caplog.records
    assert info.getMessage().startswith("9 parameters without a gradient in the first iteration: scale, heads.0.weight")
    assert (warning.levelname, warning.getMessage().count("heads")) == ("WARNING", 0)
    assert (
        "5 parameters without a gradient that rules/small.toml does not document: scale, side.0.weight"
        in warning.getMessage()
    )
    assert not model._forward_pre_hooks


def test_a_function_that_returns_none_is_ready_for_ddp(caplog: pytest.LogCaptureFixture) -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            return x + weight

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0], None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other, self.dead = (nn.Parameter(torch.ones(4)) for _ in range(3))

        def forward(self, x: Tensor) -> Any:
            return Half.apply(x * self.used, self.other)  # type: ignore[no-untyped-call]

    model = Net()
    watch = log_unused_once(model)
    with caplog.at_level(logging.INFO, "ddplint"):
        train(model, 2)
    assert watch.unused == ("dead",)
    assert len(caplog.records) == 1


def test_a_forward_without_backward_is_no_iteration_and_a_watch_can_be_ended() -> None:
    model = net()
    watch = log_unused_once(model)
    with torch.no_grad():
        model(torch.ones(2, 4))
        model(torch.ones(2, 4))
    assert watch.unused is None
    watch.remove()
    train(model, 3)
    assert watch.unused is None
    assert not model._forward_pre_hooks


# ---------------------------------------------------------------------- neither click nor rich


def test_it_needs_neither_click_nor_rich(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('click', 'rich'):\n    sys.modules[name] = None\n"
        "from ddplint.guard import freeze_unused\n"
        "from ddplint.reference import finetune\n"
        "done = freeze_unused(finetune.build('hybrid'), ckpt='hybrid')\n"
        "print(len(done.names))\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "78"


# ---------------------------------------------------------------------- the reference model, in real DDP

TRAINING = '''\
"""Ten steps of the reference model on two ranks: with the flag on, or frozen and with the flag off."""
import random
import sys

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ddplint.guard import freeze_unused
from ddplint.reference import finetune


def seed(number):
    torch.manual_seed(number)
    random.seed(number)
    numpy.random.seed(number)


def main(rank, store, ckpt, frozen, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    seed(0)
    model = finetune.build(ckpt).train()
    if frozen:
        freeze_unused(model, ckpt=ckpt)
    ddp = DistributedDataParallel(model, find_unused_parameters=not frozen)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for step in range(10):
        seed(1000 * rank + step)
        args, kwargs = finetune.inputs()
        loss = finetune.loss(ddp(*args, **kwargs))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save({"losses": losses, "state": model.state_dict()}, f"{out}.{rank}")
    dist.destroy_process_group()


main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4] == "frozen", sys.argv[5])
'''


@pytest.mark.parametrize("ckpt", ["grover_base", "cmim", "hybrid"])
def test_frozen_and_without_the_flag_it_trains_to_the_same_losses(ckpt: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    root = Path(__file__).parents[1]
    runs = []
    for how in ("flag", "frozen"):
        store, out = tmp_path / f"store-{how}", tmp_path / how
        ranks = [
            subprocess.Popen(
                [sys.executable, str(script), str(rank), str(store), ckpt, how, str(out)],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for process in ranks:
            _, err = process.communicate(timeout=240)
            assert process.returncode == 0, err
        runs.append([torch.load(f"{out}.{rank}", weights_only=True) for rank in range(2)])
    for with_flag, frozen in zip(*runs, strict=True):
        assert with_flag["losses"] == frozen["losses"]
        assert len(set(frozen["losses"])) == 10
        assert all(torch.equal(with_flag["state"][name], value) for name, value in frozen["state"].items())


@pytest.mark.parametrize("ckpt", ["grover_base", "cmim", "hybrid"])
def test_the_check_fails_until_the_model_is_built_frozen(ckpt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddplint.checking import Options, Subject, checked
    from ddplint.config import embedded_rules
    from ddplint.rules import load_rule_file

    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules").mkdir()
    text = (embedded_rules() / f"{ckpt}.toml").read_text().replace('action = "allow"', 'action = "freeze"')
    (tmp_path / "frozen.py").write_text(
        "from ddplint.guard import freeze_unused\nfrom ddplint.reference import finetune\n\n\n"
        "def build(checkpoint):\n    model = finetune.build(checkpoint)\n"
        "    freeze_unused(model, ckpt=checkpoint)\n    return model\n"
    )
    codes = []
    for factory in ("ddplint.reference.finetune:build", "frozen.py:build"):
        file = tmp_path / "rules" / f"{ckpt}.toml"
        file.write_text(
            text.replace('"ddplint.reference.finetune:build"', f'"{factory}"').replace(
                "find_unused_parameters = true", "find_unused_parameters = false"
            )
        )
        rules = load_rule_file(file, tmp_path)
        result = checked(Subject(rules.target, rules), Options(quiet=True))
        codes.append(sorted({finding.code for finding in result.findings if finding.severity != "info"}))
        if factory == "frozen.py:build":
            assert result.flag == "not-needed"
    assert codes == [["DDP104", "DDP302"], []]
    assert finetune.build(ckpt) is not None
