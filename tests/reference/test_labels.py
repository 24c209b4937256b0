"""What pretraining predicts."""

import pytest
import torch

from ddplint.reference import labels
from ddplint.reference.molecules import EMPTY, FUNCTIONAL_GROUPS, MOLECULES, WATER, Molecule, batch_of


def test_atom_words_name_the_neighbours() -> None:
    assert labels.atom_words(MOLECULES[0]) == ["C(C)", "C(C,O)", "O(C)"]
    assert labels.atom_words(WATER) == ["O()"]


def test_bond_words_are_the_same_in_both_directions() -> None:
    assert labels.bond_words(MOLECULES[5]) == ["C-C", "C#N"]
    assert labels.bond_words(Molecule("reversed", "N#CC", "N C C", "0#1 1-2")) == ["C#N", "C-C"]


def test_labels_fit_the_batch() -> None:
    molecules = (*MOLECULES, EMPTY, WATER)
    atoms, bonds, *_ = batch_of(molecules)
    assert labels.atom_labels(molecules).shape == (len(atoms),)
    assert 2 * len(labels.bond_labels(molecules)) + 1 == len(bonds)
    assert labels.functional_group_labels(molecules).shape == (10, len(FUNCTIONAL_GROUPS))
    assert (labels.atom_labels(molecules)[1:] > 0).all()
    assert (labels.bond_labels(molecules) > 0).all()


def test_unknown_words_are_ignored() -> None:
    carbon = Molecule("carbon dioxide", "O=C=O", "O C O", "0=1 1=2")
    assert labels.atom_labels([carbon])[2] == labels.IGNORED


def test_smiles_tokens_spell_the_smiles() -> None:
    tokens = labels.smiles_tokens(MOLECULES)
    for row, molecule in zip(tokens.tolist(), MOLECULES, strict=True):
        text = "".join(labels.SMILES_VOCABULARY[token] for token in row if token != labels.PAD)
        assert text == f"<start>{molecule.smiles}<end>"
    assert torch.equal(labels.smiles_tokens([EMPTY]), torch.tensor([[labels.START, labels.END]]))


def test_what_the_decoder_cannot_write_is_named() -> None:
    with pytest.raises(ValueError, match=r"^bromomethane: no SMILES token for B, r$"):
        labels.smiles_tokens([Molecule("bromomethane", "CBr", "C", "")])
    with pytest.raises(ValueError, match=r"^long chain: SMILES of more than 62 characters$"):
        labels.smiles_tokens([Molecule("long chain", "C" * 63, "C", "")])
