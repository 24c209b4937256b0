"""The reference model against the table measured on the system it stands for, by real backward runs."""

import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ddplint.reference import finetune, readout
from ddplint.reference.finetune import build, inputs, loss, unused_modules, variants
from ddplint.reference.molecules import ATOM_WIDTH

Usage = Callable[..., tuple[set[str], set[str]]]

BOND_READOUTS = {
    f"kermt.encoders.{name}"
    for view in ("atom", "bond")
    for name in (
        f"ffn_bond_from_{view}.W_1.weight",
        f"ffn_bond_from_{view}.W_1.bias",
        f"ffn_bond_from_{view}.act_func.weight",
        f"ffn_bond_from_{view}.W_2.weight",
        f"ffn_bond_from_{view}.W_2.bias",
        f"bond_from_{view}_sublayer.norm.weight",
        f"bond_from_{view}_sublayer.norm.bias",
    )
}
SECOND_BLOCK_INPUT = {
    f"kermt.encoders.{blocks}.1.{name}"
    for blocks in ("edge_blocks", "node_blocks")
    for name in ("W_i.weight", "layernorm.weight", "layernorm.bias", "act_func.weight")
}
MESSAGE_PASSING = {
    f"kermt.encoders.{blocks}.0.heads.{head}.mpn_{part}.{name}.weight"
    for blocks in ("edge_blocks", "node_blocks")
    for head in range(4)
    for part in "qkv"
    for name in ("W_h", "act_func")
}
HEADS = ("av_task_atom.", "av_task_bond.", "bv_task_atom.", "bv_task_bond.", "fg_task_all.")
PRETRAINING = {
    "grover_base": HEADS,
    "cmim": ("latent_dist.readout.", "latent_dist.fc_mean_logscale.", "decoder."),
    "hybrid": (
        *(f"vocab_module.{head}" for head in HEADS),
        "latent_dist.readout.",
        "latent_dist.fc_mean_logscale.",
        "decoder.",
    ),
}


def trainable(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def numel(model: torch.nn.Module, names: set[str]) -> int:
    return sum(parameter.numel() for name, parameter in model.named_parameters() if name in names)


@pytest.mark.parametrize("outputs", ["both", "atom"])
def test_one_block_leaves_14_of_120_unused(usage: Usage, outputs: str) -> None:
    model = build(None, outputs=outputs)
    assert len(trainable(model)) == 120
    assert usage(model, seeds=range(8)) == (BOND_READOUTS, set())
    assert len(BOND_READOUTS) == 14


def test_the_14_are_29_percent_of_the_weights() -> None:
    model = build(None)
    assert numel(model, BOND_READOUTS) / numel(model, trainable(model)) == pytest.approx(0.29, abs=0.005)


def test_two_blocks_leave_22_of_196_unused(usage: Usage) -> None:
    model = build(None, num_mt_block=2)
    assert len(trainable(model)) == 196
    assert usage(model, seeds=range(6)) == (BOND_READOUTS | SECOND_BLOCK_INPUT, set())
    assert len(BOND_READOUTS | SECOND_BLOCK_INPUT) == 22


def test_depth_2_leaves_48_of_120_sometimes_unused(usage: Usage) -> None:
    model = build(None, depth=2)
    assert len(trainable(model)) == 120
    assert usage(model, seeds=range(16)) == (BOND_READOUTS, MESSAGE_PASSING)
    assert len(MESSAGE_PASSING) == 48


def test_in_evaluation_the_depth_is_fixed(usage: Usage) -> None:
    assert usage(build(None, depth=2).eval()) == (BOND_READOUTS, set())
    assert usage(build(None, depth=1).eval()) == (BOND_READOUTS | MESSAGE_PASSING, set())


def test_an_input_as_wide_as_the_hidden_size_skips_the_input_layer(usage: Usage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddplint.reference.encoder.ATOM_WIDTH", 24)
    batch = inputs()[0][0]
    wide = torch.nn.functional.pad(batch[0], (0, 24 - ATOM_WIDTH))
    skipped = {name.replace(".1.", ".0.") for name in SECOND_BLOCK_INPUT if "node_blocks" in name}
    model = build(None, hidden_size=24)
    assert usage(model, (((wide, *batch[1:]),), {}), seeds=[0]) == (BOND_READOUTS | skipped, set())
    assert not skipped & trainable(build(None, hidden_size=24, strip=True))


@pytest.mark.parametrize(
    ("checkpoint", "total", "count"), [("grover_base", 140, 34), ("cmim", 164, 58), ("hybrid", 184, 78)]
)
def test_a_checkpoint_adds_its_pretraining_parts_to_the_unused(
    usage: Usage, checkpoint: str, total: int, count: int
) -> None:
    model = build(checkpoint)
    parts = {name for name in trainable(model) if name.startswith(PRETRAINING[checkpoint])}
    assert usage(model) == (BOND_READOUTS | parts, set())
    assert (len(trainable(model)), len(BOND_READOUTS | parts)) == (total, count)
    for prefix in PRETRAINING[checkpoint]:
        assert any(name.startswith(prefix) for name in parts)


@pytest.mark.parametrize("checkpoint", ["grover_base", "cmim", "hybrid"])
def test_without_retained_heads_only_the_14_are_unused(usage: Usage, checkpoint: str) -> None:
    model = build(checkpoint, retain_pretraining_heads=False)
    assert trainable(model) == trainable(build(None))
    assert usage(model, seeds=[0]) == (BOND_READOUTS, set())


@pytest.mark.parametrize("variant", range(len(variants())))
@pytest.mark.parametrize("kind", ["self_attention", "mean"])
def test_every_variant_leaves_the_same_unused(usage: Usage, kind: str, variant: int) -> None:
    model = build("hybrid", readout=kind)
    expected = usage(model, seeds=[0])
    assert expected[0] > BOND_READOUTS
    assert usage(model, variants()[variant](), seeds=range(3)) == expected


def test_the_mean_readout_has_no_parameters(usage: Usage) -> None:
    model = build(None, readout="mean")
    assert trainable(build(None)) - trainable(model) == {"readout.attn.w1", "readout.attn.w2"}
    assert usage(model) == (BOND_READOUTS, set())


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("checkpoint", finetune.CHECKPOINTS)
def test_freeze_freezes_what_is_never_used(usage: Usage, checkpoint: str | None, blocks: int) -> None:
    model = build(checkpoint, num_mt_block=blocks)
    never, _ = usage(model, seeds=[0])
    named = {f"{module}.{name}" for module, m in unused_modules(model).items() for name in trainable(m)}
    assert named == never
    frozen = build(checkpoint, num_mt_block=blocks, freeze=True)
    assert [name for name, _ in frozen.named_parameters()] == [name for name, _ in model.named_parameters()]
    assert trainable(frozen) == trainable(model) - never
    assert usage(frozen) == (set(), set())


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("checkpoint", finetune.CHECKPOINTS)
def test_strip_leaves_out_what_is_never_used(usage: Usage, checkpoint: str | None, blocks: int) -> None:
    model = build(checkpoint, num_mt_block=blocks)
    never, _ = usage(model, seeds=[0])
    stripped = build(checkpoint, num_mt_block=blocks, strip=True)
    assert trainable(stripped) == trainable(model) - never
    assert unused_modules(stripped) == {}
    assert usage(stripped) == (set(), set())


@pytest.mark.parametrize("checkpoint", ["cmim", "hybrid"])
def test_the_latent_distribution_shares_the_encoder(checkpoint: str) -> None:
    model = build(checkpoint)
    names = [name for name, _ in model.named_parameters()]
    assert model.get_submodule("latent_dist.kermt") is model.kermt
    assert names[0].startswith("kermt.encoders.")
    assert not [name for name in names if name.startswith("latent_dist.kermt.")]
    keys = set(model.state_dict())
    encoder = {name for name in keys if name.startswith("kermt.")}
    assert {f"latent_dist.{name}" for name in encoder} < keys


def test_training_returns_a_pair_and_evaluation_its_mean() -> None:
    (batch,), _ = inputs()
    model = build(None, dropout=0.0)
    numpy.random.seed(0)
    pair = model(batch)
    assert isinstance(pair, tuple)
    assert [tuple(prediction.shape) for prediction in pair] == [(8, 1), (8, 1)]
    mean = model.eval()(batch)
    assert mean.shape == (8, 1)
    assert torch.equal(mean, model(batch))


def test_the_loss_holds_the_distance_between_the_predictions() -> None:
    atom, bond = torch.tensor([[0.0], [1.0]]), torch.tensor([[-1.0], [3.0]])
    errors = (1.0 + 0.0) / 2 + (0.0 + 4.0) / 2
    assert loss((atom, bond)).item() == pytest.approx(errors + 0.1 * (1.0 + 4.0) / 2)
    assert loss(atom).item() == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kwargs", "share"),
    [({}, 0.75), ({"strip": True}, 0.75), ({"readout": "mean"}, 0.9), ({"num_mt_block": 2}, 0.9)],
)
def test_it_trains(kwargs: dict[str, Any], share: float) -> None:
    torch.manual_seed(0)
    numpy.random.seed(0)
    model = build("hybrid", **kwargs)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    (batch,), _ = inputs()
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        step_loss = loss(model(batch))
        step_loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(step_loss.item())
    assert sum(losses[-5:]) < share * sum(losses[:5])


def test_build_depends_on_its_seed_alone() -> None:
    state = torch.get_rng_state()
    first = build("hybrid", seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    again = build("hybrid", seed=3).state_dict()
    other = build("hybrid", seed=4).state_dict()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_a_run_depends_on_the_seeds_alone() -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        numpy.random.seed(5)
        (batch,), _ = inputs()
        results.append(loss(build("hybrid")(batch)))
    assert torch.equal(*results)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        (
            {"checkpoint": "grover"},
            "checkpoint must be 'grover_base', 'cmim', 'hybrid' or None, not 'grover'",
        ),
        ({"outputs": "bond"}, "outputs must be 'both' or 'atom', not 'bond'"),
        ({"readout": None}, "readout must be 'self_attention' or 'mean', not None"),
        ({"freeze": 1}, "freeze must be True or False, not 1"),
        ({"strip": "yes"}, "strip must be True or False, not 'yes'"),
        ({"cuda": None}, "cuda must be True or False, not None"),
        ({"depth": 0}, "depth must be a whole number of at least 1, not 0"),
        ({"depth": 2.5}, "depth must be a whole number of at least 1, not 2.5"),
        ({"num_mt_block": True}, "num_mt_block must be a whole number of at least 1, not True"),
        ({"hidden_size": 0}, "hidden_size must be a whole number of at least 4, not 0"),
        ({"hidden_size": 10}, "hidden_size must be a multiple of 4, not 10"),
        ({"dropout": 1.0}, "dropout must be a number of at least 0 and below 1, not 1.0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        (
            {"freeze": True, "strip": True},
            "freeze and strip must not both be True: a stripped model has nothing left to freeze",
        ),
    ],
)
def test_wrong_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        build(**kwargs)


def test_the_batch_moves_to_the_gpu_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Tensor] = []

    def cuda(self: Tensor) -> Tensor:
        moved.append(self)
        return self

    monkeypatch.setattr(Tensor, "cuda", cuda)
    (batch,), _ = inputs()
    build(None)(batch)
    assert moved == []
    build(None, cuda=True)(batch)
    assert [id(tensor) for tensor in moved] == [id(tensor) for tensor in batch[:6]]


def test_ranges_are_marked_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr("torch.cuda.nvtx.range_push", events.append)
    monkeypatch.setattr("torch.cuda.nvtx.range_pop", lambda: events.append("pop"))
    (batch,), _ = inputs()
    build(None)(batch)
    assert events == []
    build(None, nvtx=True)(batch)
    assert events == [
        "node_blocks",
        "pop",
        "edge_blocks",
        "pop",
        "atom readouts",
        "pop",
        "bond readouts",
        "pop",
    ]


@pytest.fixture
def meta() -> Iterator[None]:
    with torch.device("meta"):
        yield


@pytest.mark.usefixtures("meta")
def test_on_meta_it_runs_up_to_the_first_value_read() -> None:
    model = build("hybrid")
    (batch,), _ = inputs()
    assert {tensor.device.type for tensor in (*model.state_dict().values(), *batch)} == {"meta"}
    with pytest.raises((RuntimeError, NotImplementedError)) as raised:
        model(batch)
    own = [frame for frame in traceback.extract_tb(raised.tb) if Path(frame.filename).parent.name == "reference"]
    assert own[-1].filename == inspect.getfile(readout)
    assert own[-1].line == "if length == 0:"


class Answered(TorchFunctionMode):
    """Answers each value read of a meta tensor: no molecule is empty, every slice bound is 1."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__bool__:
            return False
        if func is Tensor.__getitem__ and isinstance(args[1], slice):
            return args[0][1:1]
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("meta")
@pytest.mark.parametrize("kind", ["self_attention", "mean"])
def test_on_meta_with_answered_reads_the_same_14_are_unused(kind: str) -> None:
    numpy.random.seed(0)
    model = build(None, readout=kind)
    (batch,), _ = inputs()
    with Answered():
        loss(model(batch)).backward()  # type: ignore[no-untyped-call]
    assert {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None} == BOND_READOUTS
