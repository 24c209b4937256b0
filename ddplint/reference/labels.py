"""What pretraining predicts: words for atoms and bonds, functional groups, the molecule's own SMILES text."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ddplint.reference.molecules import FUNCTIONAL_GROUPS, MOLECULES, WATER, Molecule

IGNORED = 0
"""The label of padding rows and of words outside the vocabulary; it counts in no loss."""

PAD, START, END = 0, 1, 2
MAX_TOKENS = 64
"""The longest SMILES text that the decoder can write, with its `START` and `END`."""


def atom_words(molecule: Molecule) -> list[str]:
    """A word for each atom: its element and what surrounds it, such as "C(C,O,O)"."""
    return [
        f"{element}({','.join(sorted(molecule.elements[other] for other in molecule.neighbours[atom]))})"
        for atom, element in enumerate(molecule.elements)
    ]


def bond_words(molecule: Molecule) -> list[str]:
    """A word for each bond, the same in both directions: its kind between its elements, such as "C=O"."""
    return [
        kind.join(sorted((molecule.elements[first], molecule.elements[second]))) for first, second, kind in molecule.bonds
    ]


_KNOWN = (*MOLECULES, WATER)
ATOM_VOCABULARY = ("", *sorted({word for molecule in _KNOWN for word in atom_words(molecule)}))
BOND_VOCABULARY = ("", *sorted({word for molecule in _KNOWN for word in bond_words(molecule)}))
SMILES_VOCABULARY = (
    "<pad>",
    "<start>",
    "<end>",
    *sorted({char for molecule in _KNOWN for char in molecule.smiles}),
)


def _indices(words: list[str], vocabulary: tuple[str, ...]) -> list[int]:
    return [vocabulary.index(word) if word in vocabulary else IGNORED for word in words]


def atom_labels(molecules: Sequence[Molecule]) -> Tensor:
    """Positions in `ATOM_VOCABULARY`, `(1 + atoms,)`, the batch's padding row first."""
    words = [word for molecule in molecules for word in atom_words(molecule)]
    return torch.tensor([IGNORED, *_indices(words, ATOM_VOCABULARY)])


def bond_labels(molecules: Sequence[Molecule]) -> Tensor:
    """Positions in `BOND_VOCABULARY`, `(pairs,)`: one for a bond and its reverse."""
    words = [word for molecule in molecules for word in bond_words(molecule)]
    return torch.tensor(_indices(words, BOND_VOCABULARY), dtype=torch.long)


def functional_group_labels(molecules: Sequence[Molecule]) -> Tensor:
    """1 for each functional group that a molecule has, else 0: `(molecules, groups)`, float."""
    return torch.tensor([[float(g in molecule.functional_groups) for g in FUNCTIONAL_GROUPS] for molecule in molecules])


def smiles_tokens(molecules: Sequence[Molecule]) -> Tensor:
    """The SMILES texts as positions in `SMILES_VOCABULARY`, between `START` and `END`, filled up with `PAD`.

    Shape `(molecules, longest + 2)`. Raises ValueError for a character that the vocabulary lacks, and for a
    text that does not fit into `MAX_TOKENS`.
    """
    longest = max(len(molecule.smiles) for molecule in molecules)
    rows = []
    for molecule in molecules:
        if len(molecule.smiles) > MAX_TOKENS - 2:
            raise ValueError(f"{molecule.name}: SMILES of more than {MAX_TOKENS - 2} characters")
        unknown = sorted(set(molecule.smiles) - set(SMILES_VOCABULARY))
        if unknown:
            raise ValueError(f"{molecule.name}: no SMILES token for {', '.join(unknown)}")
        text = [SMILES_VOCABULARY.index(char) for char in molecule.smiles]
        rows.append([START, *text, END] + [PAD] * (longest - len(text)))
    return torch.tensor(rows)
