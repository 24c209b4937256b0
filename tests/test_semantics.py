"""What DDP makes of used parameters, each place named by a marked line of the model that shows it."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, attr-defined, index, misc, operator, override, return-value"

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel.distributed import _find_tensors
from torch.utils.checkpoint import checkpoint

from ddplint.analysis import Location, Parameter
from tests.explored import analysed, plain_runs, weights
from tests.kinds.kind import Kind
from tests.kinds.lines import line_of

each_device = pytest.mark.parametrize("device", ["auto", "cpu"])


class Base(Kind):
    """``live`` as everyone uses a layer; ``aux`` as the subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)


def line(place: Location | None) -> int | None:
    """The line of a place in this file."""
    if place is None:
        return None
    assert place.file == __file__
    return place.line


def at(comment: str) -> int:
    return line_of(__file__, comment)


def of(kind: type[Kind], device: Any = "auto") -> Mapping[str, Parameter]:
    """The weights of ``kind`` by module, all of which a plain run gives a gradient."""
    found = analysed(kind, device=device)
    assert found.trace.disagreements == ()
    by_module = weights(found)
    assert {name for name, p in by_module.items() if p.usage == "always"} == frozenset.union(*plain_runs(kind))
    return by_module


def marks(parameter: Parameter) -> tuple[int | None, int | None, int | None]:
    return line(parameter.checkpoint), line(parameter.bypass), line(parameter.zeroed)


NOTHING = (None, None, None)


# ---------------------------------------------------------------------- re-entrant checkpoints


class Reentrant(Base):
    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(2, 4, requires_grad=True),), {}

    def forward(self, x: Tensor) -> Any:
        return self.live(checkpoint(self.aux, x, use_reentrant=True))  # checkpoints


class NonReentrant(Reentrant):
    def forward(self, x: Tensor) -> Any:
        return self.live(checkpoint(self.aux, x, use_reentrant=False))


class ReentrantAndOutside(Reentrant):
    """What forward uses elsewhere too is found by DDP's walk."""

    def forward(self, x: Tensor) -> Any:
        return self.live(checkpoint(self.aux, x, use_reentrant=True)) + self.aux(x)


class TwoCheckpoints(Reentrant):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Any:
        x = checkpoint(self.aux, x, use_reentrant=True)  # the first checkpoint
        return self.live(checkpoint(self.second, x, use_reentrant=True))  # the second checkpoint


class ByDefaultOff(Reentrant):
    """In eval mode, or with the switch off, nothing is checkpointed."""

    use = False

    def forward(self, x: Tensor) -> Any:
        return self.live(checkpoint(self.aux, x, use_reentrant=True) if self.use else self.aux(x))


class BackwardOfItsOwn(torch.autograd.Function):
    """What a re-entrant checkpoint is, in short: forward without a graph, a backward inside backward."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Tensor) -> Any:
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


class OwnCheckpoint(Reentrant):
    def forward(self, x: Tensor) -> Any:
        return self.live(BackwardOfItsOwn.apply(self.aux, x))  # a Function with a backward of its own


@each_device
@pytest.mark.parametrize(
    ("kind", "comment"),
    [(Reentrant, "checkpoints"), (OwnCheckpoint, "a Function with a backward of its own")],
    ids=["checkpoint", "Function"],
)
def test_a_reentrant_checkpoint_hides_what_is_in_it(kind: type[Kind], comment: str, device: Any) -> None:
    found = of(kind, device)
    assert marks(found["aux"]) == (at(comment), None, None)
    assert marks(found["live"]) == NOTHING
    assert (found["aux"].from_outputs, found["aux"].from_loss) == (False, False)
    assert found["live"].from_outputs


@pytest.mark.parametrize("kind", [NonReentrant, ReentrantAndOutside, ByDefaultOff], ids=lambda kind: kind.__name__)
def test_what_ddp_can_walk_to_is_not_hidden(kind: type[Kind]) -> None:
    found = of(kind)
    assert {name: marks(p) for name, p in found.items()} == {"live": NOTHING, "aux": NOTHING}
    assert all(p.from_outputs for p in found.values())


def test_each_parameter_has_its_own_checkpoint() -> None:
    found = of(TwoCheckpoints)
    assert marks(found["aux"])[0] == at("the first checkpoint")
    assert marks(found["second.0"])[0] == marks(found["second.2"])[0] == at("the second checkpoint")
    assert marks(found["live"]) == NOTHING


class UnusedInACheckpoint(Reentrant):
    """Not called at all: no checkpoint hides it."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        return self.live(checkpoint(self.aux, x, use_reentrant=True))


def test_what_is_never_used_has_no_mark() -> None:
    found = of(UnusedInACheckpoint)
    assert (found["unused"].usage, marks(found["unused"])) == ("never", NOTHING)


# ---------------------------------------------------------------------- past the wrapped forward


class StepPastForward(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x)

    @staticmethod
    def step(model: Any) -> Tensor:
        y = model(torch.randn(2, 4))
        return model.aux(y).square().mean()  # past forward


class LossWithAWeight(Base):
    """Weight decay by hand, of one layer that forward uses and one that it doesn't."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x)

    @staticmethod
    def step(model: Any) -> Tensor:
        y = model(torch.randn(2, 4))
        decay = sum(p.square().sum() for p in model.aux.parameters())  # decays
        return y.mean() + decay + model.live.weight.square().sum()


class TakenFromTheSide(Base):
    """The loss gets what forward kept on itself, not what it returned."""

    def forward(self, x: Tensor) -> Any:
        self.kept = self.aux(x).tanh()  # kept, not returned
        return self.live(x)

    @staticmethod
    def step(model: Any) -> Tensor:
        return model(torch.randn(2, 4)).mean() + model.kept.mean()


@each_device
@pytest.mark.parametrize(
    ("kind", "comment"), [(StepPastForward, "past forward"), (LossWithAWeight, "decays")], ids=lambda value: str(value)
)
def test_what_the_loss_uses_past_forward_is_named_there(kind: type[Kind], comment: str, device: Any) -> None:
    found = of(kind, device)
    assert marks(found["aux"]) == (None, at(comment), None)
    assert marks(found["live"]) == NOTHING
    assert (found["aux"].from_outputs, found["aux"].from_loss) == (False, True)


def test_what_forward_keeps_and_does_not_return_is_named_where_it_is_made() -> None:
    found = of(TakenFromTheSide)
    assert marks(found["aux"]) == (None, at("kept, not returned"), None)
    assert marks(found["live"]) == NOTHING


# ---------------------------------------------------------------------- kept alive by zero


class TimesZero(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + self.aux(x).sum() * 0.0  # times zero


class ZeroTimes(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + 0 * sum(p.sum() for p in self.aux.parameters())  # zero times


class MulZero(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + torch.mul(self.aux(x), 0).sum()  # torch.mul by zero


class MulKeyword(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + torch.mul(self.aux(x), other=0).sum()  # by keyword


class MulInPlace(Base):
    def forward(self, x: Tensor) -> Any:
        dead = self.aux(x)
        dead *= 0  # in place
        return self.live(x).sum() + dead.sum()


class ZeroInTheLoss(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x), self.aux(x)

    @staticmethod
    def loss(output: Any) -> Tensor:
        return output[0].mean() + 0.0 * output[1].mean()  # zero in the loss


ZEROED = {
    TimesZero: "times zero",
    ZeroTimes: "zero times",
    MulZero: "torch.mul by zero",
    MulKeyword: "by keyword",
    MulInPlace: "in place",
    ZeroInTheLoss: "zero in the loss",
}


@pytest.mark.parametrize(("kind", "comment"), ZEROED.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_what_only_a_zero_keeps_alive_is_used_and_named(kind: type[Kind], comment: str) -> None:
    found = of(kind)
    assert (found["aux"].usage, marks(found["aux"])) == ("always", (None, None, at(comment)))
    assert marks(found["live"]) == NOTHING


class ZeroAndMore(Base):
    """Used for good as well."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + 0 * self.aux(x).sum() + self.aux(x).mean()


class TimesOne(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + self.aux(x).sum() * 1.0


class AddsZero(Base):
    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + (0 + self.aux(x)).sum()


class TimesFalse(Base):
    """A flag that is off is a zero as well, but no constant: the next run may have it on."""

    def forward(self, x: Tensor) -> Any:
        return self.live(x).sum() + self.aux(x).sum() * (x > 1e9).any()


@pytest.mark.parametrize("kind", [ZeroAndMore, TimesOne, AddsZero, TimesFalse], ids=lambda kind: kind.__name__)
def test_what_has_another_way_to_the_loss_is_not_zeroed(kind: type[Kind]) -> None:
    assert {name: marks(p) for name, p in of(kind).items()} == {"live": NOTHING, "aux": NOTHING}


# ---------------------------------------------------------------------- an output that DDP can't look into


class Box:
    """An object like any other, to DDP no container."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass
class Fields:
    first: Tensor
    second: Tensor


class Returning(Base):
    """What forward returns is the subclass's; the loss uses all of it."""

    def wrap(self, first: Tensor, second: Tensor) -> Any:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.live(x), self.aux(x))

    @staticmethod
    def loss(output: Any) -> Tensor:
        return sum(t.mean() for t in _tensors(output))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, dict):
        return [t for item in value.values() for t in _tensors(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return [t for item in vars(value).values() for t in _tensors(item)]


class ReturnsABox(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return Box(first + second)


class ReturnsABoxInADict(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return {"seen": first, "hidden": [Box(second)]}


class ReturnsABoxInADataclass(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return Fields(first, Box(second))


class ReturnsATuple(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return first, (second,)


class ReturnsADict(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return {"first": first, "more": [second]}


class ReturnsANamedTuple(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return Pair(first, second)


class ReturnsADataclass(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return Fields(first, second)


class ReturnsABoxWithoutGradient(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return first, second, Box(first.detach())


class ReturnsTheBoxedTensorToo(Returning):
    def wrap(self, first: Tensor, second: Tensor) -> Any:
        return first, second, Box(second)


OPAQUE = [ReturnsABox, ReturnsABoxInADict, ReturnsABoxInADataclass]
VISIBLE = [
    ReturnsATuple, ReturnsADict, ReturnsANamedTuple, ReturnsADataclass, ReturnsABoxWithoutGradient,
    ReturnsTheBoxedTensorToo,
]  # fmt: skip


def hidden_from_ddp(kind: type[Kind]) -> bool:
    """Whether DDP's own search misses a tensor of a plain run that the loss uses."""
    output = kind()(torch.randn(2, 4))
    seen = {id(t) for t in _find_tensors(output)}
    return any(id(t) not in seen for t in _tensors(output))


@each_device
@pytest.mark.parametrize("kind", OPAQUE, ids=lambda kind: kind.__name__)
def test_an_output_type_that_ddp_cannot_look_into_is_named(kind: type[Kind], device: Any) -> None:
    assert hidden_from_ddp(kind)
    found = analysed(kind, device=device)
    assert found.opaque_output == "Box"
    aux = weights(found)["aux"]
    assert (aux.from_outputs, aux.from_loss) == (False, True)
    assert aux.bypass is not None


@pytest.mark.parametrize("kind", VISIBLE, ids=lambda kind: kind.__name__)
def test_an_output_type_that_ddp_looks_into_is_not_opaque(kind: type[Kind]) -> None:
    assert not hidden_from_ddp(kind)
    found = analysed(kind)
    assert found.opaque_output == ""
    assert {name: marks(p) for name, p in weights(found).items()} == {"live": NOTHING, "aux": NOTHING}


# ---------------------------------------------------------------------- trained, but not the model's


CENTERS = nn.Parameter(torch.ones(3, 4))
FROZEN = nn.Parameter(torch.ones(4), requires_grad=False)
CRITERION = nn.Linear(4, 2)


class LossOfItsOwn(Base):
    def forward(self, x: Tensor) -> Any:
        return self.aux(self.live(x))

    @staticmethod
    def loss(output: Any) -> Tensor:
        return (output @ CENTERS.T).square().mean() + (output * FROZEN).mean()  # centers


class CriterionModule(Base):
    def forward(self, x: Tensor) -> Any:
        return self.aux(self.live(x))

    @staticmethod
    def loss(output: Any) -> Tensor:
        return CRITERION(output).mean()  # criterion


class ValueOfAnother(Base):
    """Only its value, no gradient."""

    def forward(self, x: Tensor) -> Any:
        return self.aux(self.live(x)) * CENTERS.detach().mean()


class MadeInForward(Base):
    """A parameter that forward makes anew each time."""

    def forward(self, x: Tensor) -> Any:
        scale = nn.Parameter(torch.ones(4))
        return self.aux(self.live(x)) * scale  # made anew


def test_a_parameter_that_the_loss_trains_and_the_model_lacks() -> None:
    (found,) = analysed(LossOfItsOwn).outside
    assert (found.shape, found.numel, line(found.location)) == ((3, 4), 12, at("centers"))


def test_each_parameter_of_a_module_outside() -> None:
    found = analysed(CriterionModule).outside
    assert sorted((entry.shape, entry.numel) for entry in found) == [((2,), 2), ((2, 4), 8)]
    assert {line(entry.location) for entry in found} == {at("criterion")}


def test_what_forward_makes_anew_is_outside_too() -> None:
    (found,) = analysed(MadeInForward, device="cpu").outside
    assert (found.shape, line(found.location)) == ((4,), at("made anew"))


@pytest.mark.parametrize("kind", [ValueOfAnother, Reentrant, TimesZero], ids=lambda kind: kind.__name__)
def test_what_gets_no_gradient_is_not_outside(kind: type[Kind]) -> None:
    assert analysed(kind).outside == ()
