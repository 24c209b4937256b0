"""The example molecules, and the batch that they become."""

import pytest
import torch

from ddplint.reference.molecules import (
    ATOM_WIDTH,
    BOND_WIDTH,
    EMPTY,
    FUNCTIONAL_GROUPS,
    MOLECULES,
    WATER,
    atom_features,
    batch_of,
    bond_features,
)

FORMULAS = {
    "ethanol": "C2H6O",
    "aspirin": "C9H8O4",
    "paracetamol": "C8H9NO2",
    "cysteine": "C3H7NO2S",
    "chlorobenzene": "C6H5Cl",
    "acetonitrile": "C2H3N",
    "nitromethane": "CH3NO2",
    "pyridine": "C5H5N",
    "water": "H2O",
}


def test_the_tables_are_the_molecules_they_name() -> None:
    assert {molecule.name: molecule.formula for molecule in (*MOLECULES, WATER)} == FORMULAS


def test_the_smiles_has_the_same_heavy_atoms_as_the_table() -> None:
    for molecule in MOLECULES:
        letters = [c.upper() for c in molecule.smiles.replace("Cl", "X") if c.isalpha()]
        assert letters == [element.replace("Cl", "X") for element in molecule.elements]


def test_functional_groups_are_known() -> None:
    assert {group for molecule in MOLECULES for group in molecule.functional_groups} == set(FUNCTIONAL_GROUPS)


def test_rings() -> None:
    aspirin = MOLECULES[1]
    assert [bond for bond in range(len(aspirin.bonds)) if aspirin.in_ring(bond)] == [4, 5, 6, 7, 8, 9]
    assert sum(row[-2] for row in atom_features(aspirin)) == 6


@pytest.mark.parametrize("molecule", [*MOLECULES, WATER, EMPTY], ids=lambda molecule: molecule.name)
def test_features_have_their_widths(molecule: object) -> None:
    assert isinstance(molecule, type(WATER))
    atoms, bonds = atom_features(molecule), bond_features(molecule)
    assert [len(row) for row in atoms] == [ATOM_WIDTH] * len(molecule.elements)
    assert [len(row) for row in bonds] == [BOND_WIDTH] * 2 * len(molecule.bonds)
    assert all(row[:ATOM_WIDTH] in atoms for row in bonds)


def test_the_index_tensors_agree() -> None:
    atoms, bonds, a2b, b2a, b2revb, a2a, atom_scope, bond_scope = batch_of((*MOLECULES, EMPTY, WATER))
    assert torch.equal(a2a, b2a[a2b])
    assert torch.equal(b2revb[b2revb], torch.arange(len(bonds)))
    targets = b2a[b2revb]
    for atom in range(1, len(atoms)):
        assert sorted(b for b in a2b[atom].tolist() if b) == [b for b in range(1, len(bonds)) if targets[b] == atom]
    assert not atoms[0].any()
    assert not bonds[0].any()
    for scope, rows in ((atom_scope, atoms), (bond_scope, bonds)):
        starts = [1, *(scope.sum(dim=1)).tolist()]
        assert scope[:, 0].tolist() == starts[:-1]
        assert starts[-1] == len(rows)
    assert atom_scope[-2:, 1].tolist() == [0, 1]
    assert bond_scope[-2:, 1].tolist() == [0, 0]


def test_one_atom_alone_has_a_column_for_neighbours() -> None:
    batch = batch_of([WATER])
    assert [tuple(tensor.shape) for tensor in batch] == [
        (2, ATOM_WIDTH),
        (1, BOND_WIDTH),
        (2, 1),
        (1,),
        (1,),
        (2, 1),
        (1, 2),
        (1, 2),
    ]


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a batch needs at least one molecule$"):
        batch_of([])
