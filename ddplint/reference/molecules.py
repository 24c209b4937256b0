"""Example molecules as small graphs, and their way into a batch of eight tensors.

A molecule is a table: heavy atoms, bonds, functional groups. Hydrogens follow from the usual valences, so no
chemistry package is needed.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Atom features, bond features, a2b, b2a, b2revb, a2a, atom scope, bond scope: see `batch_of`."""

VALENCE = {"C": 4, "N": 3, "O": 2, "S": 2, "F": 1, "Cl": 1}
MASS = {"H": 1.008, "C": 12.011, "N": 14.007, "O": 15.999, "S": 32.06, "F": 18.998, "Cl": 35.45}
CHARGE = {"": 0, "+": 1, "-": -1}
BOND_ORDER = {"-": 1.0, "=": 2.0, "#": 3.0, ":": 1.5}
FUNCTIONAL_GROUPS = (
    "aromatic ring",
    "hydroxyl",
    "carboxyl",
    "ester",
    "amide",
    "amine",
    "nitrile",
    "nitro",
    "thiol",
    "halide",
)

MAX_DEGREE = 4
MAX_HYDROGENS = 4
ATOM_WIDTH = len(VALENCE) + (MAX_DEGREE + 1) + len(CHARGE) + (MAX_HYDROGENS + 1) + 3
BOND_WIDTH = ATOM_WIDTH + len(BOND_ORDER) + 2


@dataclass(frozen=True)
class Molecule:
    """One molecule without its hydrogens.

    `atom_table` lists the atoms with their charge ("C N+ O-"), `bond_table` the bonds between them by
    position ("0-1 1=2 2:3 3#4": single, double, aromatic, triple). `smiles` is the same molecule as text.
    """

    name: str
    smiles: str
    atom_table: str
    bond_table: str
    functional_groups: tuple[str, ...] = ()

    @cached_property
    def elements(self) -> tuple[str, ...]:
        """The element symbol of each atom."""
        return tuple(atom.rstrip("+-") for atom in self.atom_table.split())

    @cached_property
    def charges(self) -> tuple[int, ...]:
        """The formal charge of each atom, in units of the elementary charge."""
        return tuple(
            CHARGE[atom.removeprefix(element)] for atom, element in zip(self.atom_table.split(), self.elements, strict=True)
        )

    @cached_property
    def bonds(self) -> tuple[tuple[int, int, str], ...]:
        """(first atom, second atom, kind of bond) of each bond; the kinds are the keys of `BOND_ORDER`."""
        bonds = []
        for text in self.bond_table.split():
            kind = next(kind for kind in BOND_ORDER if kind in text)
            first, second = text.split(kind)
            bonds.append((int(first), int(second), kind))
        return tuple(bonds)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """The positions of the atoms bonded to each atom."""
        pairs = [(first, second) for first, second, _ in self.bonds]
        pairs += [(second, first) for first, second in pairs]
        return tuple(tuple(b for a, b in pairs if a == atom) for atom in range(len(self.elements)))

    @cached_property
    def hydrogens(self) -> tuple[int, ...]:
        """How many hydrogens each atom carries, from the valence that its bonds leave free."""
        free = [VALENCE[e] + charge for e, charge in zip(self.elements, self.charges, strict=True)]
        used = [0.0] * len(free)
        for first, second, kind in self.bonds:
            used[first] += BOND_ORDER[kind]
            used[second] += BOND_ORDER[kind]
        return tuple(max(0, int(valence - taken)) for valence, taken in zip(free, used, strict=True))

    @cached_property
    def formula(self) -> str:
        """The molecular formula in Hill order: carbon, hydrogen, then the alphabet."""
        count = Counter(self.elements)
        count["H"] += sum(self.hydrogens)
        order = ["C", "H", *sorted(set(count) - {"C", "H"})] if count["C"] else sorted(count)
        return "".join(f"{e}{count[e] if count[e] > 1 else ''}" for e in order if count[e])

    def in_ring(self, bond: int) -> bool:
        """True if the ends of the bond at this position stay connected without it."""
        start, end, _ = self.bonds[bond]
        reached, border = {start}, [start]
        while border:
            atom = border.pop()
            step = {b for b in self.neighbours[atom] if {atom, b} != {start, end}} - reached
            reached |= step
            border += step
        return end in reached


EMPTY = Molecule("empty", "", "", "")
"""A molecule without atoms: what is left of a line that could not be parsed."""

WATER = Molecule("water", "O", "O", "")

MOLECULES = (
    Molecule("ethanol", "CCO", "C C O", "0-1 1-2", ("hydroxyl",)),
    Molecule(
        "aspirin",
        "CC(=O)Oc1ccccc1C(=O)O",
        "C C O O C C C C C C C O O",
        "0-1 1=2 1-3 3-4 4:5 5:6 6:7 7:8 8:9 4:9 9-10 10=11 10-12",
        ("aromatic ring", "ester", "carboxyl"),
    ),
    Molecule(
        "paracetamol",
        "CC(=O)Nc1ccc(O)cc1",
        "C C O N C C C C O C C",
        "0-1 1=2 1-3 3-4 4:5 5:6 6:7 7-8 7:9 9:10 4:10",
        ("aromatic ring", "amide", "hydroxyl"),
    ),
    Molecule("cysteine", "NC(CS)C(=O)O", "N C C S C O O", "0-1 1-2 2-3 1-4 4=5 4-6", ("amine", "thiol", "carboxyl")),
    Molecule(
        "chlorobenzene",
        "Clc1ccccc1",
        "Cl C C C C C C",
        "0-1 1:2 2:3 3:4 4:5 5:6 1:6",
        ("aromatic ring", "halide"),
    ),
    Molecule("acetonitrile", "CC#N", "C C N", "0-1 1#2", ("nitrile",)),
    Molecule("nitromethane", "C[N+](=O)[O-]", "C N+ O O-", "0-1 1=2 1-3", ("nitro",)),
    Molecule("pyridine", "c1ccncc1", "C C C N C C", "0:1 1:2 2:3 3:4 4:5 0:5", ("aromatic ring",)),
)
"""The default batch."""


def _one_hot(value: object, choices: Iterable[object]) -> list[float]:
    return [float(value == choice) for choice in choices]


def atom_features(molecule: Molecule) -> list[list[float]]:
    """One row of `ATOM_WIDTH` numbers for each atom.

    They are its element, degree, charge, hydrogens, whether it is aromatic and in a ring, and its mass.
    """
    aromatic = {atom for first, second, kind in molecule.bonds if kind == ":" for atom in (first, second)}
    ring = {
        atom for bond, (first, second, _) in enumerate(molecule.bonds) if molecule.in_ring(bond) for atom in (first, second)
    }
    return [
        _one_hot(element, VALENCE)
        + _one_hot(len(molecule.neighbours[atom]), range(MAX_DEGREE + 1))
        + _one_hot(molecule.charges[atom], CHARGE.values())
        + _one_hot(molecule.hydrogens[atom], range(MAX_HYDROGENS + 1))
        + [float(atom in aromatic), float(atom in ring), MASS[element] / 100]
        for atom, element in enumerate(molecule.elements)
    ]


def bond_features(molecule: Molecule) -> list[list[float]]:
    """Two rows of `BOND_WIDTH` numbers for each bond, one a direction: the atom it leaves, then its own.

    Its own numbers are its kind, whether a multiple bond touches it, and whether it is in a ring.
    """
    atoms = atom_features(molecule)
    multiple = {atom for first, second, kind in molecule.bonds if kind != "-" for atom in (first, second)}
    rows = []
    for bond, (first, second, kind) in enumerate(molecule.bonds):
        touched = bool({first, second} & multiple)
        own = [*_one_hot(kind, BOND_ORDER), float(touched), float(molecule.in_ring(bond))]
        rows += [atoms[first] + own, atoms[second] + own]
    return rows


def batch_of(molecules: Sequence[Molecule]) -> Batch:
    """Featurise molecules into one batch; row 0 of atoms and bonds is padding, all zeros.

    Bonds are directed and come in pairs: the one at 2 k + 1 and its reverse at 2 k + 2. With A atoms, B
    directed bonds, M molecules and D the highest degree (at least 1), the eight tensors are

    - atom features `(1 + A, ATOM_WIDTH)` and bond features `(1 + B, BOND_WIDTH)`, float;
    - a2b `(1 + A, D)`: the bonds that arrive at an atom, filled up with 0; b2a `(1 + B,)`: the atom that a
      bond leaves; b2revb `(1 + B,)`: a bond's reverse; a2a `(1 + A, D)`: an atom's neighbours, filled up
      with 0;
    - atom scope and bond scope `(M, 2)`: where a molecule's rows start, and how many they are.

    Raises ValueError if there is no molecule.
    """
    if not molecules:
        raise ValueError("a batch needs at least one molecule")
    atoms: list[list[float]] = [[0.0] * ATOM_WIDTH]
    bonds: list[list[float]] = [[0.0] * BOND_WIDTH]
    arriving: list[list[int]] = [[]]
    b2a, b2revb = [0], [0]
    atom_scope, bond_scope = [], []
    for molecule in molecules:
        first_atom, first_bond = len(atoms), len(bonds)
        atoms += atom_features(molecule)
        bonds += bond_features(molecule)
        arriving += [[] for _ in molecule.elements]
        for source, target, _ in molecule.bonds:
            there = len(b2a)
            back = there + 1
            arriving[first_atom + target].append(there)
            arriving[first_atom + source].append(back)
            b2a += [first_atom + source, first_atom + target]
            b2revb += [back, there]
        atom_scope.append([first_atom, len(atoms) - first_atom])
        bond_scope.append([first_bond, len(bonds) - first_bond])
    degree = max(1, *(len(row) for row in arriving))
    a2b = [row + [0] * (degree - len(row)) for row in arriving]
    a2a = [[b2a[bond] for bond in row] for row in a2b]
    return (
        torch.tensor(atoms),
        torch.tensor(bonds),
        torch.tensor(a2b),
        torch.tensor(b2a),
        torch.tensor(b2revb),
        torch.tensor(a2a),
        torch.tensor(atom_scope),
        torch.tensor(bond_scope),
    )
