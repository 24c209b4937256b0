"""Value reads: each call that turns a tensor into Python is a fork, and what is forced there is what the model gets."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, attr-defined, call-overload, comparison-overlap, index, misc, operator"
# mypy: disable-error-code="override, return-value"

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddplint.target import Inputs
from ddplint.trace.choices import answers_at
from ddplint.trace.sites import Site
from ddplint.trace.values import RELEASE_AFTER, Answers, Asked, Fork, NoValue, in_turn
from tests.explored import analysed, explored, plain_runs, weights, with_usage
from tests.kinds.kind import Kind
from tests.kinds.lines import line_of

BOTH = frozenset({"live", "aux"})
ONE = frozenset({"live"})
NONE: frozenset[str] = frozenset()


class Base(Kind):
    """``aux`` is used where ``decide`` says so; the input is positive by default."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)

    @staticmethod
    def inputs() -> Inputs:
        return (torch.ones(2, 4),), {}

    def decide(self, x: Tensor) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if self.decide(x) else y


# ---------------------------------------------------------------------- every call that reads


class Bool(Base):
    def decide(self, x: Tensor) -> bool:
        return bool(x.sum() > 0)


class Implicit(Base):
    def decide(self, x: Tensor) -> bool:
        return True if (x > 0).all() else False  # noqa: SIM210  # the branch itself reads


class Chained(Base):
    def decide(self, x: Tensor) -> bool:
        return bool(-100 < x.sum() and x.max() > 0)  # noqa: SIM300  # read from the right


class Int(Base):
    def decide(self, x: Tensor) -> bool:
        return int((x > 0).sum()) > 0


class Float(Base):
    def decide(self, x: Tensor) -> bool:
        return float(x.sum()) > 0


class Complex(Base):
    def decide(self, x: Tensor) -> bool:
        return complex(x.sum()).real > 0


class Index(Base):
    def decide(self, x: Tensor) -> bool:
        return [False, True][(x.sum() > 0).long()]


class InRange(Base):
    def decide(self, x: Tensor) -> bool:
        return any(True for _ in range((x > 0).sum()))


class Item(Base):
    def decide(self, x: Tensor) -> bool:
        return x.sum().item() > 0


class BoolItem(Base):
    def decide(self, x: Tensor) -> bool:
        return (x.sum() > 0).item()


class Tolist(Base):
    def decide(self, x: Tensor) -> bool:
        return x.sum(0).tolist()[0] > 0.5


class NestedTolist(Base):
    def decide(self, x: Tensor) -> bool:
        return x.tolist()[0][0] > 0.5


class Numpy(Base):
    def decide(self, x: Tensor) -> bool:
        return bool(x.sum(1).numpy()[0] > 0.5)


class DetachCpuNumpy(Base):
    def decide(self, x: Tensor) -> bool:
        return bool((x.detach().cpu().numpy() > 0.5)[0].any())


class AsArray(Base):
    def decide(self, x: Tensor) -> bool:
        return bool(np.asarray(x.sum(1))[0] > 0.5)


class ByNumpyFunction(Base):
    def decide(self, x: Tensor) -> bool:
        return bool(np.max(np.array(x)[0]) > 0.5)


class Equal(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.equal(x, torch.ones_like(x))


class EqualMethod(Base):
    def decide(self, x: Tensor) -> bool:
        return x.equal(torch.ones(2, 4))


class Allclose(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.allclose(x, torch.ones(2, 4))


class Nonzero(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.is_nonzero(x.sum() > 0)


class Formatted(Base):
    def decide(self, x: Tensor) -> bool:
        return f"{(x.sum() > 0).item()}" == "True"


class SliceBound(Base):
    """A tensor as a bound of a slice is read by C++."""

    def decide(self, x: Tensor) -> bool:
        return x[: (x[:, 0] > 0).sum()].numel() > 0


class Narrow(Base):
    def decide(self, x: Tensor) -> bool:
        return x.narrow(0, 0, (x[:, 0] > 0).sum()).numel() > 0


class Zeros(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.zeros((x[:, 0] > 0).sum()).numel() > 0


class ZerosWithOptions(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.zeros((x[:, 0] > 0).sum(), 4, dtype=x.dtype, device=x.device).numel() > 0


class Arange(Base):
    def decide(self, x: Tensor) -> bool:
        return torch.arange((x[:, 0] > 0).sum(), device=x.device).numel() > 0


class Iterated(Base):
    def decide(self, x: Tensor) -> bool:
        return any(bool(row.sum() > 0) for row in x)


READING = {
    Bool: "bool", Implicit: "bool", Chained: "bool", Int: "int", Float: "float", Complex: "float", Index: "int",
    InRange: "int", Item: "float", BoolItem: "bool", Tolist: "float", NestedTolist: "float", Numpy: "float",
    DetachCpuNumpy: "float", AsArray: "float", ByNumpyFunction: "float", Equal: "bool", EqualMethod: "bool",
    Allclose: "bool", Nonzero: "bool", Formatted: "bool", SliceBound: "int", Narrow: "int", Zeros: "int",
    ZerosWithOptions: "int", Arange: "int", Iterated: "bool",
}  # fmt: skip
each_read = pytest.mark.parametrize("kind", READING, ids=lambda kind: kind.__name__)


def minus() -> Inputs:
    return (-torch.ones(2, 4),), {}


@each_read
def test_a_read_is_a_fork_that_leads_where_real_data_does(kind: type[Base]) -> None:
    found = explored(kind)
    assert found.domains() == {READING[kind]}
    assert found.sometimes == {"aux"}
    assert set(found.used) == plain_runs(kind, Base.inputs, minus) == {ONE, BOTH}
    assert found.found.complete


@each_read
def test_a_read_of_a_small_input_has_its_value_on_meta_too(kind: type[Base]) -> None:
    found = explored(kind, "meta")
    assert (found.used[0], found.sometimes) == (BOTH, {"aux"})


@each_read
def test_a_read_of_unknown_values_is_forced_each_way(kind: type[Base]) -> None:
    found = explored(_of_a_weight(kind), "meta", default={"bool": False, "int": 1, "float": 0.5, "mask": True})
    assert found.sometimes == {"aux"}


def _of_a_weight(kind: type[Base]) -> Any:
    """``kind`` whose decision is about what a weight computes, of which meta tensors know nothing."""
    return OF_WEIGHTS[kind].spec()


def _weighted(kind: type[Base]) -> type[Base]:
    def forward(self: Any, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if self.decide(y.detach()) else y

    made: type[Base] = type(f"Weighted{kind.__name__}", (kind,), {"forward": forward, "__module__": __name__})
    setattr(sys.modules[__name__], made.__name__, made)
    return made


OF_WEIGHTS = {kind: _weighted(kind) for kind in READING}


# ---------------------------------------------------------------------- many elements at once


class ComputedList(Base):
    """Scores depend on each other: they sum to one, so all zero can't be."""

    def forward(self, x: Tensor) -> Any:
        first, second = self.live(x).softmax(-1)[0, :2].round().tolist()
        y = self.live(x)
        return y + self.aux(x) if first != second else y


def test_of_computed_elements_some_are_zero_and_never_all() -> None:
    found = explored(ComputedList)
    assert [answer for (answer,) in found.forced[1:]][:2] == ["even", "odd"]
    assert found.used[1:3] == [BOTH, BOTH]


class HighestOfComputed(Base):
    """Sums of either sign: all of them can be below the bound."""

    def decide(self, x: Tensor) -> bool:
        return max(x.sum(1).tolist()) > 0


def test_a_bound_on_all_computed_elements_is_passed_both_ways() -> None:
    assert set(explored(HighestOfComputed).used) == plain_runs(HighestOfComputed, Base.inputs, minus)


class Sizes(Base):
    """Numbers that come with the batch can be any."""

    @staticmethod
    def inputs() -> Inputs:
        return (torch.ones(2, 4), torch.tensor([1, 1])), {}

    def forward(self, x: Tensor, sizes: Tensor) -> Any:
        y = self.live(x)
        for row, size in zip(x, sizes.tolist(), strict=True):
            if size:
                y = y + self.aux(row)
        return y


def test_elements_of_the_example_inputs_can_all_be_zero() -> None:
    found = explored(Sizes)
    assert (0,) in found.forced
    assert found.sometimes == {"aux"}
    assert set(found.used) == plain_runs(
        Sizes, *(lambda n=n: ((torch.ones(2, 4), torch.tensor([n, 0])), {}) for n in range(2))
    )


class ArrayBack(Base):
    """Through numpy and back: the gradient ends there, the fork does not."""

    def forward(self, x: Tensor) -> Any:
        counts = torch.from_numpy(np.cumsum((x > 0).sum(1).numpy()))
        y = self.live(x)
        return y + self.aux(x) if counts[-1] > 4 else y


def test_values_that_go_through_numpy_are_read_on() -> None:
    found = explored(ArrayBack)
    assert found.sometimes == {"aux"}
    assert set(found.used) == plain_runs(ArrayBack, Base.inputs, minus)


# ---------------------------------------------------------------------- shapes made from values


class BooleanIndex(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        chosen = x[x[:, 0] > 0]
        return y.sum() + self.aux(chosen).sum() if len(chosen) else y.sum()


class MaskedSelect(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        chosen = x.masked_select(x > 0)
        return y.sum() + self.aux(chosen.new_ones(1, 4)).sum() if chosen.numel() > 0 else y.sum()


class MaskedSelectFunction(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        chosen = torch.masked_select(x, x > 0)
        return y.sum() + self.aux(x).sum() if chosen.shape[0] else y.sum()


class NonzeroShape(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        rows = (x[:, 0] > 0).nonzero().squeeze(-1)
        return y.sum() + self.aux(x[rows]).sum() if rows.numel() else y.sum()


class NonzeroTuple(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        (rows,) = torch.nonzero(x[:, 0] > 0, as_tuple=True)
        return y.sum() + self.aux(x[rows]).sum() if len(rows) > 0 else y.sum()


class Argwhere(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if torch.argwhere(x > 0).shape[0] else y


class WhereOfOne(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        rows, _ = torch.where(x > 0)
        return y + self.aux(x) if rows.shape[0] > 0 else y


class WhereMethodOfOne(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if len(list(torch.where(x[:, 0] > 0)[0])) else y


class LoopOverPositions(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x).sum()
        for row in torch.nonzero(x[:, 0] > 0):
            y = y + self.aux(x[row]).sum()
        return y


class MaskInATuple(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x).sum()
        chosen = x[x[:, 0] > 0, :]
        return y + self.aux(chosen).sum() if chosen.shape[0] else y


MASKS = [
    BooleanIndex,
    MaskedSelect,
    MaskedSelectFunction,
    NonzeroShape,
    NonzeroTuple,
    Argwhere,
    WhereOfOne,
    WhereMethodOfOne,
    LoopOverPositions,
    MaskInATuple,
]
each_mask = pytest.mark.parametrize("kind", MASKS, ids=lambda kind: kind.__name__)


@each_mask
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_mask_is_a_fork_all_true_and_all_false(kind: type[Base], device: Any) -> None:
    found = explored(kind, device)
    assert "mask" in found.domains()
    assert set(found.used) == plain_runs(kind, Base.inputs, minus) == {ONE, BOTH}


class MaskedRows(Base):
    """A mask of what weights compute."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        rows = y[y[:, 0] > 0]
        return y.sum() + self.aux(rows).sum() if len(rows) else y.sum()


def test_a_mask_of_unknown_values_is_forced_on_meta() -> None:
    found = analysed(MaskedRows, cpu_limit=0)
    assert found.trace.device == "meta"
    assert (with_usage(found, "always"), with_usage(found, "sometimes")) == ({"live"}, {"aux"})


class MaskedWrite(Base):
    """Nothing masked is still a use of what would be written."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x).clone()
        y[x > 0] = self.aux(x)[0, 0]
        return y


class MaskedFill(Base):
    def forward(self, x: Tensor) -> Any:
        return torch.where(x > 0, self.live(x), self.aux(x).masked_fill(x > 0, 0.0))


@pytest.mark.parametrize("kind", [MaskedWrite, MaskedFill], ids=lambda kind: kind.__name__)
def test_a_mask_that_decides_no_shape_decides_no_use(kind: type[Base]) -> None:
    assert plain_runs(kind, Base.inputs, minus) == {BOTH}
    assert set(explored(kind).used) == {BOTH}


# ---------------------------------------------------------------------- what a fork is told and remembers


def here() -> Site:
    frame = sys._getframe(1)
    return Site(frame.f_code, frame.f_lineno)


def fork_at(site: Site, domain: Any, choices: int = 0) -> Fork:
    return Fork(domain, site.code.co_filename, site.line, site.code.co_qualname, choices=choices)


def test_without_a_force_a_fork_gives_no_answer_and_is_counted() -> None:
    site, answers = here(), Answers({})
    for _ in range(3):
        fork, answer = answers.at("bool", site)
        assert (fork, answer) == (fork_at(site, "bool"), None)
    assert answers.asked[fork_at(site, "bool")].count == 3


def test_a_forced_answer_holds_at_its_place_and_domain_only() -> None:
    site = here()
    answers = Answers({fork_at(site, "bool"): True})
    assert answers.at("bool", site)[1] is True
    assert answers.at("int", site)[1] is None
    assert answers.at("bool", here())[1] is None


def test_even_and_odd_are_false_at_every_second_read() -> None:
    site = here()
    for word, expected in (("even", [False, True, False, True]), ("odd", [True, False, True, False])):
        answers = Answers({fork_at(site, "bool"): word})
        assert [answers.at("bool", site)[1] for _ in range(4)] == expected


def test_a_forced_answer_is_released_after_so_many_reads() -> None:
    site = here()
    answers = Answers({fork_at(site, "bool"): True})
    given = [answers.at("bool", site)[1] for _ in range(RELEASE_AFTER + 2)]
    assert given == [True] * RELEASE_AFTER + [None, None]


def test_where_no_value_can_be_had_the_release_is_the_other_answer() -> None:
    site = here()
    answers = Answers({fork_at(site, "bool"): True}, default={"bool": True})
    given = [answers.at("bool", site)[1] for _ in range(RELEASE_AFTER + 1)]
    assert given[-2:] == [True, None]
    assert answers.unknown("bool", fork_at(site, "bool")) is False


def test_a_read_without_a_place_is_no_fork() -> None:
    assert Answers({}).at("bool", None) == (None, None)


def test_the_innermost_place_outside_pytorch_is_the_fork() -> None:
    def library() -> CodeType:
        return sys._getframe().f_code

    code = library()
    outer = here()
    fork, _ = Answers({}).at("float", Site(outer.code, outer.line, (code, 7)))
    assert fork is not None
    assert (fork.line, fork.function) == (7, code.co_qualname)


def test_the_first_values_are_kept() -> None:
    site, answers = here(), Answers({})
    fork, _ = answers.at("float", site)
    for value in (1.0, 2, True, "no number", None, -4.0, 5.0):
        answers.note(fork, value)
    assert fork is not None
    assert answers.asked[fork].values == [1.0, 2, True, -4.0]


@pytest.mark.parametrize(
    ("domain", "choices", "values", "expected"),
    [
        ("bool", 0, [], (True, False)),
        ("mask", 0, [], (True, False)),
        ("draw", 0, [], ("low", "high")),
        ("choice", 3, [], (0, 1, 2)),
        ("choice", 0, [], ("low", "high")),
        ("float", 0, [0.5], (0.0, 16.0)),
        ("float", 0, [0.5, -0.1], (-16.0, 16.0)),
        ("int", 0, [7], (0,)),
    ],
)
def test_the_answers_that_are_tried(domain: Any, choices: int, values: list[Any], expected: tuple[Any, ...]) -> None:
    site = here()
    assert tuple(answers_at(fork_at(site, domain, choices), Asked(site, 1, values))) == expected


# ---------------------------------------------------------------------- no value


class Catches(Base):
    """Code that takes any error for an answer must not take ours."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        try:
            positive = float(y.sum()) > -1e9  # reads here
        except Exception:
            positive = False
        return y + self.aux(x) if positive else y


def test_a_model_that_catches_everything_does_not_catch_no_value() -> None:
    with pytest.raises(NoValue) as caught:
        explored(Catches, "meta")
    assert caught.value.site is not None
    assert caught.value.site.line == line_of(__file__, "reads here")
    found = analysed(Catches)
    assert found.trace.device == "cpu"
    assert weights(found)["aux"].usage == "always"  # every sum that is tried is above that bound


@pytest.mark.parametrize("most", [8, 32])
def test_whole_numbers_that_vary_are_loops_of_few_turns(most: int) -> None:
    for answer in ("rising", "falling"):
        values = [in_turn(answer, number, most) for number in range(100)]
        assert 0 <= min(values) < max(values) == most
        assert values == sorted(values, reverse=answer == "falling")
