"""The encoder's message passing, its drawn depth, and what its views see of a molecule."""

from collections import Counter
from dataclasses import replace

import numpy
import pytest
import torch

from ddplint.reference.encoder import EncoderConfig, MessagePassing, MoleculeEmbedding, draw_depth
from ddplint.reference.molecules import EMPTY, MOLECULES, Molecule, batch_of

CONFIG = EncoderConfig(hidden_size=8, depth=6, num_mt_block=2, outputs="both", dropout=0.0)


@pytest.mark.parametrize("depth", [2, 6])
def test_the_drawn_depth_lies_three_around_the_configured_one(depth: int) -> None:
    numpy.random.seed(0)
    drawn = [draw_depth(depth) for _ in range(20_000)]
    assert {depth - 1, depth, depth + 1} < set(drawn)
    assert min(drawn) >= depth - 3
    assert max(drawn) <= depth + 2


def test_the_drawn_depth_is_a_normal_cut_to_an_integer() -> None:
    numpy.random.seed(0)
    count = Counter(draw_depth(6) for _ in range(20_000))
    # A standard normal between 0 and 1, 1 and 2, 2 and 3, as shares of what lies within 3.
    for drawn, share in ((6, 0.3423), (5, 0.3423), (7, 0.1363), (4, 0.1363), (8, 0.0215), (3, 0.0215)):
        assert count[drawn] / 20_000 == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize(("extreme", "drawn"), [("low", 3), ("high", 9)])
def test_the_draw_goes_through_numpys_global_function(monkeypatch: pytest.MonkeyPatch, extreme: str, drawn: int) -> None:
    monkeypatch.setattr(numpy.random, "uniform", lambda low, high: {"low": low, "high": high}[extreme])
    assert draw_depth(6) == pytest.approx(drawn, abs=1)


def test_the_loop_runs_one_time_less_than_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = MessagePassing(CONFIG, "atom")
    calls: list[int] = []
    passing.W_h.register_forward_hook(lambda *_: calls.append(1))
    _, _, a2b, b2a, b2revb, a2a, _, _ = batch_of(MOLECULES[:1])
    items = torch.randn(len(a2b), 8)
    for depth in (-1, 0, 1, 2, 5):
        monkeypatch.setattr("ddplint.reference.encoder.draw_depth", lambda _, depth=depth: depth)
        calls.clear()
        out = passing(items, a2b, b2a, b2revb, a2a)
        assert len(calls) == max(0, depth - 1)
        assert torch.equal(out, items) == (depth < 2)
    calls.clear()
    passing.eval()(items, a2b, b2a, b2revb, a2a)
    assert len(calls) == 5


def test_bond_messages_do_not_return_where_they_came_from() -> None:
    passing = MessagePassing(replace(CONFIG, depth=2), "bond").eval()
    _, _, a2b, b2a, b2revb, a2a, _, _ = batch_of([Molecule("propane", "CCC", "C C C", "0-1 1-2")])
    items = torch.zeros(5, 8)
    items[1] = 1.0
    changed = (passing(items, a2b, b2a, b2revb, a2a) != items).any(dim=1)
    # Bond 1 leads from atom 0 to atom 1; from there bond 3 to atom 2 carries on, bond 2 would lead back.
    assert changed.tolist() == [False, False, False, True, False]


def test_shapes_of_the_four_readouts() -> None:
    batch = batch_of(MOLECULES)
    embeddings = MoleculeEmbedding(CONFIG)(batch)
    atoms, bonds = len(batch[0]), len(batch[1])
    assert embeddings.atom_from_atom.shape == embeddings.atom_from_bond.shape == (atoms, 8)
    assert embeddings.bond_from_atom.shape == embeddings.bond_from_bond.shape == (bonds, 8)


def test_molecules_do_not_see_each_other() -> None:
    torch.manual_seed(0)
    model = MoleculeEmbedding(CONFIG).eval()
    alone = model(batch_of(MOLECULES[3:4])).atom_from_bond[1:]
    *_, scope, _ = batch = batch_of((*MOLECULES[:2], EMPTY, *MOLECULES[3:]))
    start, length = scope[3].tolist()
    together = model(batch).atom_from_bond[start : start + length]
    assert torch.allclose(alone, together, atol=1e-5)
