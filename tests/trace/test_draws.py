"""Random draws of Python, numpy and scipy: forced to their ends, seen wherever a model draws, and nowhere else."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, attr-defined, index, misc, operator, import-untyped"

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddplint.rules import TargetSpec
from ddplint.trace.draws import FEW, draws_watched
from ddplint.trace.values import Answer, Answers, Fork, answering
from tests.explored import analysed, explored, plain_runs, weights
from tests.kinds.kind import Kind

BOTH = frozenset({"live", "aux"})
ONE = frozenset({"live"})
Draw = Callable[[], Any]


@pytest.fixture(autouse=True)
def generators_as_they_were() -> Iterator[None]:
    """What a test draws and seeds is no matter of the tests after it."""
    python, legacy = random.getstate(), np.random.get_state()
    yield
    random.setstate(python)
    np.random.set_state(legacy)


def called(draw: Draw) -> Any:
    """``draw``'s value: one place calls it, for a function's forks are told apart by who calls it."""
    return draw()


def asked(draw: Draw) -> list[Fork]:
    """The forks that ``draw`` asks at, without anything forced."""
    answers = Answers({})
    with draws_watched(), answering(answers):
        called(draw)
    return list(answers.asked)


def forced(draw: Draw, *given: Answer) -> list[Any]:
    """What ``draw`` gives for each forced answer at its one fork."""
    (fork,) = asked(draw)
    values = []
    for answer in given:
        with draws_watched(), answering(Answers({fork: answer})):
            values.append(called(draw))
    return values


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    random.seed(seed)
    np.random.seed(seed)
    yield


# ---------------------------------------------------------------------- Python


UNIT = {
    "random": lambda: random.random(),
    "instance": lambda: random.Random(3).random(),
    "numpy random": lambda: np.random.random(),
    "numpy rand": lambda: np.random.rand(),
    "numpy random_sample": lambda: np.random.random_sample(),
    "RandomState": lambda: np.random.RandomState(3).rand(),
    "Generator": lambda: np.random.default_rng(3).random(),
    "Generator class": lambda: np.random.Generator(np.random.PCG64(3)).random(),
}


@pytest.mark.parametrize("draw", UNIT.values(), ids=UNIT)
def test_a_draw_from_the_unit_interval_has_its_two_ends(draw: Draw) -> None:
    low, high = forced(draw, "low", "high")
    assert (low, type(low)) == (0.0, float)
    assert 0.999 < high < 1.0


RANGES = {
    "uniform": (lambda: random.uniform(2, 5), 2, 5),
    "numpy uniform": (lambda: np.random.uniform(2, 5), 2, 5),
    "numpy uniform by name": (lambda: np.random.uniform(high=5.0, low=2.0), 2, 5),
    "Generator uniform": (lambda: np.random.default_rng().uniform(2, 5), 2, 5),
    "RandomState uniform": (lambda: np.random.RandomState().uniform(low=2, high=5), 2, 5),
}


@pytest.mark.parametrize(("draw", "low", "high"), RANGES.values(), ids=RANGES)
def test_a_draw_from_a_range_stays_in_it(draw: Draw, low: float, high: float) -> None:
    least, most = forced(draw, "low", "high")
    assert least == low
    assert most == pytest.approx(high)
    assert most < high or draw is RANGES["uniform"][0]


def test_numpy_uniform_is_below_its_upper_end_and_its_default_range_is_the_unit() -> None:
    low, high = forced(lambda: np.random.uniform(), "low", "high")
    assert low == 0.0
    assert 0.999 < high < 1.0


CHOICES = {
    "choice": (lambda: random.choice("abc"), ["a", "b", "c"]),
    "randint": (lambda: random.randint(4, 6), [4, 5, 6]),
    "randrange": (lambda: random.randrange(0, 6, 2), [0, 2, 4]),
    "instance": (lambda: random.Random(1).choice([7, 8, 9]), [7, 8, 9]),
}


@pytest.mark.parametrize(("draw", "each"), CHOICES.values(), ids=CHOICES)
def test_a_choice_among_few_is_each_of_them(draw: Draw, each: list[Any]) -> None:
    (fork,) = asked(draw)
    assert (fork.domain, fork.choices) == ("choice", len(each))
    assert forced(draw, *range(len(each))) == each


def test_a_choice_among_many_is_its_first_and_its_last() -> None:
    many = list(range(FEW + 1))
    (fork,) = asked(lambda: random.choice(many))
    assert (fork.domain, fork.choices) == ("choice", 0)
    assert forced(lambda: random.choice(many), "low", "high") == [0, FEW]
    assert forced(lambda: random.randint(1, 100), "low", "high") == [1, 100]


def test_choices_with_weights_are_their_ends() -> None:
    assert forced(lambda: random.choices("abc", [1, 1, 2])[0], "low", "high") == ["a", "c"]


def test_shuffle_and_sample_stay_what_they_are() -> None:
    def shuffled() -> list[int]:
        values = [1, 2, 3]
        random.shuffle(values)
        return values

    forks = asked(shuffled)
    assert {fork.domain for fork in forks} == {"choice"}
    for fork in forks:
        for answer in range(fork.choices):
            with draws_watched(), answering(Answers({fork: answer})):
                assert sorted(shuffled()) == [1, 2, 3]
                assert sorted(random.sample(range(3), 3)) == [0, 1, 2]


# ---------------------------------------------------------------------- numpy


DISTRIBUTIONS = {
    "randint": lambda: np.random.randint(3, 9),
    "randint sized": lambda: np.random.randint(0, 5, size=(2, 3)),
    "integers": lambda: np.random.default_rng(1).integers(0, 5),
    "normal": lambda: np.random.normal(0, 1),
    "randn": lambda: np.random.randn(3),
    "standard_normal": lambda: np.random.default_rng(1).standard_normal((2, 2)),
    "beta": lambda: np.random.beta(0.5, 0.5),
    "binomial": lambda: np.random.binomial(1, 0.5),
    "poisson": lambda: np.random.RandomState(0).poisson(3),
    "exponential": lambda: np.random.default_rng(1).exponential(),
    "geometric": lambda: np.random.geometric(0.3),
    "choice": lambda: np.random.choice(5),
    "choice of numbers": lambda: np.random.choice([1.5, 2.5, 3.5]),
    "choice sized": lambda: np.random.default_rng(1).choice(40, size=3),
    "random sized": lambda: np.random.random((2, 3)),
    "rand sized": lambda: np.random.rand(2, 3),
    "Generator random sized": lambda: np.random.default_rng(0).random(4),
    "Generator random out": lambda: np.random.default_rng(0).random(4, dtype=np.float32),
}


@pytest.mark.parametrize("draw", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_any_distribution_has_a_low_and_a_high_end_of_the_drawn_kind(draw: Draw) -> None:
    with seeded(0):
        plain = [draw() for _ in range(20)]
        low, high = forced(draw, "low", "high")
    assert type(low) is type(high) is type(plain[0])
    assert np.shape(low) == np.shape(high) == np.shape(plain[0])
    assert np.asarray(low).dtype == np.asarray(high).dtype == np.asarray(plain[0]).dtype
    assert np.all(np.asarray(low) < np.asarray(high))
    assert np.mean(low) <= np.mean(plain) <= np.mean(high)


def test_the_ends_of_a_coin_are_its_sides() -> None:
    assert forced(lambda: np.random.binomial(1, 0.5), "low", "high") == [0, 1]
    assert forced(lambda: int(np.random.randint(2)), "low", "high") == [0, 1]
    assert forced(lambda: np.random.choice(["a", "b"], p=[1.0, 0.0]), "low", "high") == ["a", "a"]


def test_a_choice_of_names_is_one_of_them() -> None:
    with seeded(0):
        assert set(forced(lambda: str(np.random.choice(["a", "b"])), "low", "high")) <= {"a", "b"}


CHOICES = {
    "weights": (lambda: str(np.random.choice(["a", "b", "c"], p=[0.5, 0.0, 0.5])), ["a", "c"]),
    "sized": (lambda: np.random.choice(3, size=2).tolist(), [[0, 0], [1, 1], [2, 2]]),
    "each once": (lambda: np.random.default_rng(1).choice(3, 2, replace=False).tolist(), [[0, 1], [1, 2], [2, 0]]),
    "rows": (lambda: np.random.default_rng(1).choice(np.eye(2), axis=0).tolist(), [[1.0, 0.0], [0.0, 1.0]]),
    "permutation": (lambda: np.random.permutation(3).tolist(), [[0, 1, 2], [1, 2, 0], [2, 0, 1]]),
    "permutation of an array": (lambda: np.random.permutation(np.array([5, 7])).tolist(), [[5, 7], [7, 5]]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_numpys_choice_among_few_is_each_of_them(name: str) -> None:
    draw, expected = CHOICES[name]
    (fork,) = asked(draw)
    assert fork.choices == len(expected)
    assert forced(draw, *range(len(expected))) == expected


@pytest.mark.parametrize("values", [["a", "b", "c"], np.arange(3), np.eye(3)], ids=["list", "array", "rows"])
def test_a_shuffle_begins_with_each(values: Any) -> None:
    def shuffled() -> Any:
        copied = values.copy()
        np.random.shuffle(copied)
        return np.asarray(copied).tolist()

    rotated = [np.asarray([*values[n:], *values[:n]]).tolist() for n in range(3)]
    assert forced(shuffled, 0, 1, 2) == rotated


def test_a_permutation_stays_one() -> None:
    for value in forced(lambda: np.random.permutation(4), "low", "high"):
        assert sorted(value) == [0, 1, 2, 3]
    for value in forced(lambda: np.random.default_rng(0).permutation(4), "low", "high"):
        assert sorted(value) == [0, 1, 2, 3]

    def shuffled() -> Any:
        values = np.arange(4)
        np.random.shuffle(values)
        return sorted(values)

    assert forced(shuffled, "low", "high") == [[0, 1, 2, 3]] * 2


def test_a_seed_leaves_nothing_of_the_draws_before_it() -> None:
    """A normal draw is made in pairs, and the second is kept for the next call."""
    with draws_watched():
        firsts = []
        for seed in (0, 1, 0, 1):
            np.random.seed(seed)
            firsts.append((np.random.normal(), np.random.mtrand._rand.normal()))
    assert firsts[:2] == firsts[2:]
    assert firsts[0] != firsts[1]


def test_what_sets_or_tells_the_state_is_no_draw() -> None:
    assert asked(lambda: np.random.seed(3)) == []
    assert asked(lambda: np.random.set_state(np.random.get_state())) == []
    assert asked(lambda: np.random.default_rng(3).bit_generator.state) == []
    assert asked(lambda: random.seed(3)) == []
    assert asked(lambda: random.setstate(random.getstate())) == []


def test_generators_are_of_numpys_own_types() -> None:
    with draws_watched():
        generator, state = np.random.default_rng(0), np.random.RandomState(0)
        assert isinstance(generator, np.random.Generator)
        assert isinstance(state, np.random.RandomState)
        assert np.random.default_rng(generator) is generator
        assert isinstance(np.random.default_rng(np.random.SeedSequence(3)), np.random.Generator)


def test_a_generator_made_before_is_still_one() -> None:
    before = np.random.default_rng(0)
    with draws_watched():
        assert isinstance(before, np.random.Generator)
        assert np.random.default_rng(before) is before


SEEDS: dict[str, Draw] = {
    "int": lambda: np.random.default_rng(5).random(),
    "sequence": lambda: np.random.default_rng([1, 2]).random(),
    "SeedSequence": lambda: np.random.default_rng(np.random.SeedSequence(5)).random(),
    "bit generator": lambda: np.random.default_rng(np.random.PCG64(5)).random(),
    "Philox": lambda: np.random.default_rng(np.random.Philox(5)).random(),
    "RandomState": lambda: np.random.default_rng(np.random.RandomState(5)).random(),
}


@pytest.mark.parametrize("draw", SEEDS.values(), ids=SEEDS)
def test_a_generator_takes_every_seed_that_numpys_does(draw: Draw) -> None:
    plain = draw()
    with draws_watched():
        assert draw() == plain


# ---------------------------------------------------------------------- scipy


SCIPY = """
from ddplint.trace.draws import draws_watched
from ddplint.trace.values import Answers, answering
with draws_watched():
    import scipy.stats
    def drawn():
        return [int(scipy.stats.bernoulli(0.5).rvs()), float(scipy.stats.norm.rvs())]
    given = {}
    for answer in (None, "low", "high"):
        answers = Answers({fork: answer for fork in given})
        with answering(answers):
            values = drawn()
        given = answers.asked
        if answer is not None:
            print(*values)
"""


def test_scipy_imported_by_the_target_draws_through_numpy(tmp_path: Path) -> None:
    """In a process of its own: distributions take numpy's global generator when ``scipy.stats`` is imported."""
    pytest.importorskip("scipy", reason="scipy not installed")
    script = tmp_path / "draws.py"
    script.write_text(SCIPY)
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    (low, least), (high, most) = (line.split() for line in ran.stdout.splitlines())
    assert (low, high) == ("0", "1")
    assert float(least) < -1 < 1 < float(most)


def test_scipy_imported_before_draws_through_numpy_too() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy not installed")
    assert forced(lambda: int(stats.bernoulli(0.5).rvs()), "low", "high") == [0, 1]


def test_scipy_with_a_generator_or_a_seed_of_its_own() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy not installed")
    assert forced(lambda: int(stats.bernoulli(0.5).rvs(random_state=3)), "low", "high") == [0, 1]
    assert forced(lambda: int(stats.bernoulli(0.5).rvs(random_state=np.random.default_rng(3))), "low", "high") == [0, 1]


# ---------------------------------------------------------------------- where nothing is drawn for a model


def test_without_a_run_everything_draws_as_always() -> None:
    def drawn() -> list[Any]:
        with seeded(7):
            return [
                random.random(), random.choice(range(100)), random.gauss(0, 1), random.sample(range(9), 3),
                np.random.rand(), np.random.randint(0, 100), np.random.normal(size=2).tolist(),
                np.random.default_rng(3).integers(0, 100), np.random.RandomState(3).rand(),
            ]  # fmt: skip

    plain = drawn()
    with draws_watched():
        assert drawn() == plain
    assert drawn() == plain


def test_with_a_run_an_unforced_draw_is_the_same_too_and_noted() -> None:
    def drawn() -> list[float]:
        with seeded(7):
            return [random.random(), float(np.random.rand()), float(np.random.default_rng(1).random())]

    plain = drawn()
    answers = Answers({})
    with draws_watched(), answering(answers):
        assert drawn() == plain
    noted = [value for one in answers.asked.values() for value in one.values]
    assert noted == plain


def test_a_forced_draw_moves_the_generator_on_as_a_real_one_does() -> None:
    (fork,) = asked(lambda: random.random())
    with seeded(5):
        random.random()
        following = random.gauss(0, 1)
    answers = Answers({fork: "low"})

    def two() -> float:
        random.random()
        return random.gauss(0, 1)

    (place,) = (f for f in asked(two) if f.line == fork.line or f.domain == "draw")
    assert place.domain == "draw"
    with seeded(5), draws_watched(), answering(answers):
        assert two() == following


def test_the_standard_library_draws_for_itself() -> None:
    def on_its_own_behalf() -> None:
        with tempfile.NamedTemporaryFile():
            pass
        uuid.uuid4()

    assert asked(on_its_own_behalf) == []


def test_an_import_draws_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "draws_on_import.py").write_text("import random\nVALUE = random.random()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def imports() -> None:
        import draws_on_import  # type: ignore[import-not-found]

        assert 0 <= draws_on_import.VALUE < 1

    try:
        assert asked(imports) == []
    finally:
        sys.modules.pop("draws_on_import", None)


def test_everything_is_put_back() -> None:
    watched = [
        (random, "random"), (random.Random, "random"), (random.Random, "_randbelow"), (np.random, "rand"),
        (np.random, "RandomState"), (np.random, "Generator"), (np.random, "default_rng"), (np.random.mtrand, "_rand"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name in watched]
    with draws_watched():
        assert all(getattr(owner, name) is not was for (owner, name), was in zip(watched, before, strict=True))
    assert [getattr(owner, name) for owner, name in watched] == before


# ---------------------------------------------------------------------- models that draw


class Base(Kind):
    """``aux`` is used where ``draw`` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)

    def draw(self) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if self.draw() else y


class Rarely(Base):
    """Seen in one of a thousand runs: no seed shows it, a forced answer does."""

    def draw(self) -> bool:
        return random.random() < 0.001


class Coin(Base):
    def draw(self) -> bool:
        return bool(np.random.randint(2))


class OwnGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.default_rng(0)

    def draw(self) -> bool:
        return bool(self.rng.random() < 0.001)


class OwnPythonGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.rng = random.Random(0)

    def draw(self) -> bool:
        return self.rng.random() < 0.001


class OwnState(Base):
    def __init__(self) -> None:
        super().__init__()
        self.rng = np.random.RandomState(0)

    def draw(self) -> bool:
        return bool(self.rng.uniform(0, 1) < 0.001)


class Gauss(Base):
    def draw(self) -> bool:
        return random.gauss(0, 1) > 1.5


class Normal(Base):
    def draw(self) -> bool:
        return bool(np.random.normal() > 1.5)


DRAWING = [
    Rarely, Coin, OwnGenerator, OwnPythonGenerator, OwnState, Gauss, Normal,
]  # fmt: skip


@pytest.mark.parametrize("kind", DRAWING, ids=lambda kind: kind.__name__)
def test_a_draw_that_decides_is_found(kind: type[Base]) -> None:
    assert plain_runs(kind, seeds=range(2)) <= {ONE, BOTH}
    found = weights(analysed(kind))
    assert (found["live"].usage, found["aux"].usage) == ("always", "sometimes")
    assert found["aux"].decided_by == "draw"


def test_a_name_that_the_target_imports_is_watched(tmp_path: Path) -> None:
    target = tmp_path / "imports_names.py"
    target.write_text(
        "from random import random, choice\n"
        "from numpy.random import rand\n"
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.live, self.a, self.b, self.c = (nn.Linear(4, 4) for _ in range(4))\n"
        "    def forward(self, x):\n"
        "        y = self.live(x)\n"
        "        if random() < 0.001:\n"
        "            y = y + self.a(x)\n"
        "        if rand() < 0.001:\n"
        "            y = y + self.b(x)\n"
        "        if choice('xyz') == 'z':\n"
        "            y = y + self.c(x)\n"
        "        return y\n"
        "build = Net\n"
        "def inputs():\n"
        "    return (torch.ones(2, 4),), {}\n"
        "def loss(y):\n"
        "    return y.sum()\n"
    )
    spec = TargetSpec("imports_names.py:build", base=str(tmp_path), from_module=True)
    try:
        found = weights(analysed(spec, ranks=2))
    finally:
        sys.modules.pop("imports_names", None)
        sys.path.remove(str(tmp_path))
    assert {name: p.usage for name, p in found.items()} == {
        "live": "always", "a": "sometimes", "b": "sometimes", "c": "sometimes"
    }  # fmt: skip
    assert {p.location.line for n, p in found.items() if n != "live" and p.location is not None} == {11, 13, 15}


GENERATOR_OF_THE_MODULE = """
import numpy as np, torch
from torch import nn
RNG = np.random.default_rng(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.live, self.aux = nn.Linear(4, 4), nn.Linear(4, 4)
    def forward(self, x):
        if not isinstance(RNG, np.random.Generator):
            return self.aux(x)
        return self.live(x) + self.aux(x)
build = Net
def inputs():
    return (torch.ones(2, 4),), {}
def loss(y):
    return y.sum()
"""


def test_a_generator_made_on_one_rank_is_one_on_the_next(tmp_path: Path) -> None:
    (tmp_path / "one_generator.py").write_text(GENERATOR_OF_THE_MODULE)
    spec = TargetSpec("one_generator.py:build", base=str(tmp_path), from_module=True)
    try:
        found = analysed(spec, ranks=2)
    finally:
        sys.modules.pop("one_generator", None)
        sys.path.remove(str(tmp_path))
    assert found.unused() == ()


class Shuffles(Base):
    """An order of eight is one place."""

    def forward(self, x: Tensor) -> Any:
        order = list(range(8))
        random.shuffle(order)
        y = self.live(x)
        return y + self.aux(x) if order[0] == 0 else y


def test_a_shuffle_costs_what_a_place_does() -> None:
    found = explored(Shuffles)
    assert found.sometimes == {"aux"}
    assert found.runs <= 1 + 3 + FEW


class DrawsInInputs(Base):
    """What the inputs draw is no fork of the model's."""

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.full((2, 4), 1 + random.random()),), {}

    def draw(self) -> bool:
        return True


def test_a_draw_of_the_example_inputs_is_no_fork() -> None:
    found = explored(DrawsInInputs)
    assert found.domains() == set()
    assert found.used == [BOTH]


class SeedsItself(Base):
    """A model that seeds its own draw takes one path, and may be forced off it."""

    def draw(self) -> bool:
        random.seed(1)
        return random.random() < 0.9


def test_what_was_seen_is_told_from_what_was_forced() -> None:
    assert plain_runs(SeedsItself, seeds=range(4)) == {BOTH}
    found = weights(analysed(SeedsItself))["aux"]
    assert (found.usage, found.evidence) == ("sometimes", "possible")
    assert weights(analysed(Coin))["aux"].evidence == "observed"
