"""Every pretraining part runs and trains by itself, with the objective it was made for."""

import numpy
import pytest
import torch

from ddplint.reference.finetune import build
from ddplint.reference.molecules import EMPTY, MOLECULES, WATER
from ddplint.reference.pretraining import mutual_information_loss, pretraining_loss

HEADS = ("av_task_atom", "av_task_bond", "bv_task_atom", "bv_task_bond", "fg_task_all")
PARTS = [
    *(("grover_base", name) for name in HEADS),
    *(("cmim", name) for name in ("latent_dist.readout", "latent_dist.fc_mean_logscale", "decoder")),
    *(("hybrid", f"vocab_module.{name}") for name in HEADS),
    *(("hybrid", name) for name in ("latent_dist.readout", "latent_dist.fc_mean_logscale", "decoder")),
]


def objective(model: torch.nn.Module) -> torch.Tensor:
    """The pretraining loss under one draw of the latent vectors."""
    torch.manual_seed(0)
    numpy.random.seed(0)
    return pretraining_loss(model, MOLECULES)


@pytest.mark.parametrize(("checkpoint", "part"), PARTS)
def test_each_part_trains_by_itself(checkpoint: str, part: str) -> None:
    model = build(checkpoint).eval()
    own = [p for p in model.get_submodule(part).parameters() if p.requires_grad]
    model.requires_grad_(False)
    for parameter in own:
        parameter.requires_grad_(True)
    optimizer = torch.optim.Adam(own, lr=1e-2)
    before = objective(model).item()
    for _ in range(5):
        optimizer.zero_grad()
        objective(model).backward()  # type: ignore[no-untyped-call]
        assert all(parameter.grad is not None for parameter in own)
        optimizer.step()
    assert objective(model).item() < before


@pytest.mark.parametrize("checkpoint", ["grover_base", "cmim", "hybrid"])
def test_pretraining_uses_the_bond_readouts_and_not_the_task_heads(checkpoint: str) -> None:
    model = build(checkpoint)
    objective(model).backward()  # type: ignore[no-untyped-call]
    unused = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
    finetuning = ("readout.", "mol_atom_from_atom_ffn.", "mol_atom_from_bond_ffn.")
    assert unused == {name for name, p in model.named_parameters() if p.requires_grad and name.startswith(finetuning)}


@pytest.mark.parametrize("checkpoint", ["grover_base", "cmim", "hybrid"])
def test_without_bond_outputs_the_atom_objectives_remain(checkpoint: str) -> None:
    model = build(checkpoint, outputs="atom")
    objective(model).backward()  # type: ignore[no-untyped-call]
    unused = {name for name, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert any(name.startswith("kermt.encoders.ffn_bond_from_atom.") for name in unused)
    assert not any("av_task" in name or name.startswith(("latent_dist.", "decoder.")) for name in unused)


def test_molecules_without_bonds_or_atoms_pass() -> None:
    assert pretraining_loss(build("hybrid"), (WATER, EMPTY)).isfinite()


def test_a_model_without_parts_is_refused() -> None:
    for model in (build(None), build("hybrid", strip=True), build("cmim", retain_pretraining_heads=False)):
        with pytest.raises(ValueError, match=r"^the model carries no pretraining part"):
            pretraining_loss(model, MOLECULES)


def test_the_mutual_information_loss_prefers_vectors_that_can_be_told_apart() -> None:
    log_scale = torch.zeros(4, 4)
    apart, alike = torch.eye(4), torch.full((4, 4), 0.5)
    assert mutual_information_loss(apart, log_scale, apart) < mutual_information_loss(alike, log_scale, alike)


def test_the_decoder_does_not_look_ahead() -> None:
    decoder = build("cmim").eval().get_submodule("decoder")
    latent = torch.randn(1, 12, generator=torch.Generator().manual_seed(0))
    first, second = torch.tensor([[1, 4, 5, 6]]), torch.tensor([[1, 4, 7, 8]])
    one, other = decoder(first, latent), decoder(second, latent)
    assert torch.allclose(one[:, :2], other[:, :2], atol=1e-5)
    assert not torch.allclose(one[:, 2:], other[:, 2:], atol=1e-3)
