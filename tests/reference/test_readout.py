"""Readouts of rows by a scope tensor."""

import pytest
import torch

from ddplint.reference.readout import Readout

EMBEDDINGS = torch.arange(12.0).reshape(6, 2)


def test_the_mean_of_each_molecule() -> None:
    out = Readout("mean", 2)(EMBEDDINGS, torch.tensor([[1, 2], [3, 1], [4, 2]]))
    assert out.tolist() == [[3.0, 4.0], [6.0, 7.0], [9.0, 10.0]]


def test_self_attention_weighs_the_rows_of_its_molecule_alone() -> None:
    torch.manual_seed(0)
    readout = Readout("self_attention", 2)
    scope = torch.tensor([[1, 2], [3, 1], [4, 2]])
    out = readout(EMBEDDINGS, scope)
    assert out.shape == (3, readout.out_size) == (3, 8)
    assert torch.allclose(out[1].reshape(4, 2), EMBEDDINGS[3].expand(4, 2))
    for vector, low, high in ((out[0], EMBEDDINGS[1], EMBEDDINGS[2]), (out[2], EMBEDDINGS[4], EMBEDDINGS[5])):
        weighted = vector.reshape(4, 2)
        assert ((weighted >= low) & (weighted <= high)).all()


@pytest.mark.parametrize("kind", ["mean", "self_attention"])
def test_an_empty_molecule_takes_the_constant_vector(kind: str) -> None:
    readout = Readout(kind, 2)
    out = readout(EMBEDDINGS, torch.tensor([[1, 2], [3, 0]]))
    assert not readout.cached_zero_vector.requires_grad
    assert torch.equal(out[1], torch.zeros(readout.out_size))
    assert out[0].abs().sum() > 0


def test_a_batch_of_empty_molecules_is_refused_where_rows_are_needed() -> None:
    scope = torch.tensor([[1, 0], [1, 0]])
    with pytest.raises(ValueError, match=r"^every molecule of the batch is empty: give at least one with an atom$"):
        Readout("mean", 2, needs_rows=True)(EMBEDDINGS, scope)
    assert torch.equal(Readout("mean", 2)(EMBEDDINGS, scope), torch.zeros(2, 2))
