"""Every path of small models: what is forced, what it costs, what decides, and what a plain run says to it."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, assignment, attr-defined, comparison-overlap, index, misc, operator"
# mypy: disable-error-code="override, return-value"

from __future__ import annotations

import itertools
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddplint.analysis import Parameter
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.rules import TargetSpec
from ddplint.target import Inputs, load
from ddplint.trace.choices import TOGETHER, covering
from ddplint.trace.environment import without_gpu
from ddplint.trace.run import build
from ddplint.trace.state import State
from ddplint.trace.values import RELEASE_AFTER, Answer, Fork
from tests.explored import analysed, explored, plain_runs, weights, with_usage
from tests.kinds.kind import Kind, Two
from tests.kinds.lines import line_of

BOTH = frozenset({"live", "aux"})
ONE = frozenset({"live"})


def filled(value: float, *shape: int) -> Callable[[], Inputs]:
    """Inputs that are one tensor of ``value``."""
    return lambda: ((torch.full(shape or (2, 4), float(value)),), {})


class Base(Kind):
    """A layer that is always used, and one that a fork decides on."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)


# ---------------------------------------------------------------------- a fork is a place


class Layers(Kind):
    """Layer drop over ``depth`` layers; how it draws is the subclass's."""

    depth: ClassVar[int] = 4

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(self.depth)])

    def dropped(self) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Any:
        x = self.live(x)
        for layer in self.layers:
            if not self.dropped():
                x = layer(x)
        return x


class DroppedByPython(Layers):
    def dropped(self) -> bool:
        return random.random() < 0.3


class DroppedByNumpy(Layers):
    def dropped(self) -> bool:
        return bool(np.random.random() < 0.3)


class DroppedByTorch(Layers):
    def dropped(self) -> bool:
        return bool(torch.rand(()) < 0.3)


class DroppedByItem(Layers):
    def dropped(self) -> bool:
        return torch.rand(1).item() < 0.3


DROPS = [DroppedByPython, DroppedByNumpy, DroppedByTorch, DroppedByItem]
each_drop = pytest.mark.parametrize("drop", DROPS, ids=lambda kind: kind.__name__)


def with_depth(monkeypatch: pytest.MonkeyPatch, drop: type[Layers], depth: int) -> frozenset[str]:
    monkeypatch.setattr(drop, "depth", depth)
    return frozenset(f"layers.{i}" for i in range(depth))


@each_drop
def test_layer_drop_costs_the_same_at_any_depth(drop: type[Layers], monkeypatch: pytest.MonkeyPatch) -> None:
    few = with_depth(monkeypatch, drop, 4)
    shallow = explored(drop)
    many = with_depth(monkeypatch, drop, 48)
    deep = explored(drop)
    assert shallow.runs == deep.runs
    assert deep.runs <= 1 + 2 + 3 + 3  # as it is, two answers at one place, three seeds, three answers that vary
    assert (shallow.sometimes, deep.sometimes) == (few, many)
    assert len(plain_runs(drop, seeds=range(2))) == 2


@each_drop
def test_many_layers_are_dropped_all_the_same(drop: type[Layers], monkeypatch: pytest.MonkeyPatch) -> None:
    layers = with_depth(monkeypatch, drop, 96)
    assert explored(drop).sometimes == layers


def wav2vec2() -> nn.Module:
    """48 layers of a small width, as transformers builds and drops them."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    config = Wav2Vec2Config(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=48,
        num_attention_heads=2,
        intermediate_size=8,
        conv_dim=(8, 8),
        conv_stride=(4, 2),
        conv_kernel=(8, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        layerdrop=0.1,
        apply_spec_augment=False,
    )
    return Wav2Vec2ForCTC(config).train()


def waves() -> Inputs:
    return (torch.randn(1, 160),), {}


def mean_of_logits(output: Any) -> Tensor:
    return output.logits.mean()


def test_wav2vec2_of_48_layers_with_layer_drop_in_12_traces() -> None:
    pytest.importorskip("transformers", reason="transformers not installed")
    here = __name__
    spec = TargetSpec(f"{here}:wav2vec2", inputs=f"{here}:waves", loss=f"{here}:mean_of_logits")
    found = analysed(spec, steps=3, device="cpu")  # the same on meta, whose kernels are slower at this size
    names = [p.name for p in found.parameters if ".encoder.layers." in p.name]
    assert [p.name for p in found.parameters if p.usage == "sometimes"] == names
    assert [p.name for p in found.parameters if p.usage == "never"] == ["wav2vec2.masked_spec_embed"]
    assert len({name.split(".layers.")[1].split(".")[0] for name in names}) == 48
    assert found.trace.complete
    assert found.trace.paths + found.trace.infeasible <= 12


class TwoPlaces(Base):
    """Two forks that say nothing about each other, one of them read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        for row in x:
            if row.sum() > 0:
                y = y + self.aux(x)
        if x.max() > 3:
            y = y + self.other(x)
        return y


def test_the_cost_is_one_run_and_two_for_each_place() -> None:
    found = explored(TwoPlaces)
    assert found.runs <= 1 + 2 * 2 + 1 + 2 * 3  # one that varies where reads are many, and both places together
    assert found.sometimes == {"aux", "other"}
    assert found.found.complete


# ---------------------------------------------------------------------- forced constants


class Positive(Base):
    def forward(self, x: Tensor) -> Any:
        if x.sum() > 0:  # decides by sum
            return self.live(x)
        return self.aux(x)


def test_each_answer_is_forced_and_leads_where_real_data_does() -> None:
    found = explored(Positive)
    by_answer = dict(zip(found.forced, found.used, strict=True))
    other = not found.found.outcomes[0].asked.popitem()[1].values[0]  # what it is of itself needs no run of its own
    assert by_answer.keys() == {(), (other,)}
    assert {by_answer[other,]} == plain_runs(Positive, filled(1.0 if other else -1.0))
    assert {by_answer[()]} == plain_runs(Positive, filled(-1.0 if other else 1.0))
    assert found.sometimes == BOTH


class Depth(Kind):
    """As many layers as the input says."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    @staticmethod
    def inputs() -> Inputs:
        return (torch.randn(2, 4), torch.tensor(2)), {}

    def forward(self, x: Tensor, depth: Tensor) -> Any:
        x = self.live(x)
        for layer in self.layers[: int(depth)]:
            x = layer(x)
        return x


def test_integers_go_on_until_two_bring_nothing_new() -> None:
    found = explored(Depth)
    assert found.forced == [(), (0,), (1,), (2,), (3,), (4,), (5,)]
    assert found.sometimes == {"layers.0", "layers.1", "layers.2"}
    plain = plain_runs(Depth, *((lambda n=n: ((torch.randn(2, 4), torch.tensor(n)), {})) for n in range(4)))
    assert set(found.used) == plain


class Expert(Kind):
    """One of three experts, by an index."""

    @staticmethod
    def inputs() -> Inputs:
        return (torch.eye(4)[:2],), {}

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Any:
        return self.experts[int(x.sum(0).argmax()) % 4](self.live(x))


def test_integers_end_at_a_path_that_raises() -> None:
    found = explored(Expert)
    assert found.forced == [(), (1,), (2,)]  # it is 0 of itself
    assert [plan.answers[0][1] for plan, _ in found.found.infeasible] == [3]
    assert found.sometimes == {"experts.0", "experts.1", "experts.2"}


# ---------------------------------------------------------------------- loops end


class Halving(Base):
    """A loop that one of the answers never ends by itself."""

    reads: ClassVar[list[int]] = []

    def forward(self, x: Tensor) -> Any:
        count = 0
        while x.norm() > 1:
            x, count = x / 2, count + 1
            if count == 3:
                x = x + 0 * self.aux(x)
            if count > 1000:
                raise RuntimeError("this loop does not end")
        self.reads.append(count)
        return self.live(x)


def test_a_forced_loop_is_released() -> None:
    Halving.reads.clear()
    found = explored(Halving)
    assert found.found.infeasible == []
    by_answer = dict(zip(found.forced, Halving.reads, strict=True))
    assert by_answer[(False,)] == 0
    assert by_answer[(True,)] == RELEASE_AFTER
    assert found.sometimes == {"aux"}


@pytest.mark.parametrize("wanted", [True, False])
def test_a_loop_ends_on_meta_too(wanted: bool) -> None:
    kind = Halving if wanted else Doubling
    found = analysed(kind, cpu_limit=0)
    assert found.trace.device == "meta"
    assert with_usage(found, "always") == {"live"}
    assert with_usage(found, "sometimes") == {"aux"}


class Doubling(Halving):
    """The same with a condition that ends the loop when it is true."""

    def forward(self, x: Tensor) -> Any:
        count = 0
        while not self.live(x).norm() > 100:
            x, count = x * 2, count + 1
            if count == 3:
                x = x + 0 * self.aux(x)
            if count > 1000:
                raise RuntimeError("this loop does not end")
        return self.live(x)


# ---------------------------------------------------------------------- forks under forks


class Nested(Base):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @staticmethod
    def inputs() -> Inputs:
        return (torch.full((2, 4), -1.0),), {}

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if x.sum() > 0:
            y = y + self.aux(x)
            if x.max() > 100:
                y = y + self.inner(x)
        return y


def test_a_fork_that_shows_under_a_forced_answer_is_explored_under_it() -> None:
    found = explored(Nested)
    assert found.sometimes == {"aux", "inner"}
    assert (True, True) in found.forced
    assert set(found.used) == plain_runs(Nested, filled(-1), filled(1), filled(1000))


# ---------------------------------------------------------------------- answers that cannot be


class Asserts(Base):
    def forward(self, x: Tensor) -> Any:
        if not x.isfinite().all():
            raise ValueError("the input has no finite values")
        return self.live(x) + self.aux(x)


def test_a_forced_path_that_raises_is_counted_and_set_aside() -> None:
    found = explored(Asserts)
    ((plan, why),) = found.found.infeasible
    assert [answer for _, answer in plan.answers] == [False]
    assert "the input has no finite values" in why
    assert (found.sometimes, found.never) == (frozenset(), frozenset())
    assert analysed(Asserts, device="cpu").trace.infeasible == 1


class Routed(Kind):
    """A row goes to the expert that scores it highest: none at all can't be, nor all of them with one row."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 3)
        self.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    @staticmethod
    def inputs() -> Inputs:
        return (torch.randn(1, 4),), {}

    def forward(self, x: Tensor) -> Any:
        scores = self.router(x).softmax(-1)
        chosen = scores.argmax(-1)
        parts = []
        for index, expert in enumerate(self.experts):
            if (chosen == index).any():
                parts.append(expert(x) * scores[:, index : index + 1])
        if len(parts) > 2:
            raise RuntimeError("more experts than rows")
        return torch.stack(parts).sum(0)


def test_where_one_answer_for_all_reads_cannot_be_some_of_each_is_tried() -> None:
    found = explored(Routed)
    assert found.sometimes == {"experts.0", "experts.1", "experts.2"}
    assert {a for (a,) in found.forced[1:]} >= {"even", "odd"}
    assert {a for plan, _ in found.found.infeasible for _, a in plan.answers} == {True, False}
    seen = plain_runs(Routed, *(lambda: ((torch.randn(1, 4),), {}),), seeds=range(12))
    assert {expert for used in seen for expert in used} == {"router", "experts.0", "experts.1", "experts.2"}


# ---------------------------------------------------------------------- reads of one value


class Clean(Kind):
    """Uses all of ``live`` and ``aux`` on every path that data can take."""

    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)


class SumAndItsOpposite(Clean):
    def forward(self, x: Tensor) -> Any:
        y = x
        if x.sum() > 0:
            y = self.aux(self.live(y))
        if x.sum() <= 0:
            y = self.live(self.aux(y))
        return y


class AnyAndNotAny(Clean):
    def forward(self, x: Tensor) -> Any:
        m = x > 0
        y = self.live(x)
        if m.any():
            y = y + self.aux(x)
        if not m.any():
            y = y - self.aux(x)
        return y


class EqualAndUnequal(Clean):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        y = y + self.aux(x) if x.long().sum() == 0 else y
        return y - self.aux(x) if x.long().sum() != 0 else y


class FlagTwice(Clean):
    def forward(self, x: Tensor) -> Any:
        flag = x.mean() < 0
        y = self.live(x) if flag else self.aux(x)
        return self.aux(y) if flag else self.live(y)


class LogicalNot(Clean):
    def forward(self, x: Tensor) -> Any:
        flag = x.mean() < 0
        y = self.live(x)
        if flag:
            y = y + self.aux(x)
        if ~flag:
            y = y - self.aux(x)
        return y


class FunctionAndMethod(Clean):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if torch.any(x > 0):
            y = y + self.aux(x)
        if not (x > 0).any():
            y = y - self.aux(x)
        return y


class RowByRow(Clean):
    """Read in two loops, of which the second does what the first left out."""

    def forward(self, x: Tensor) -> Any:
        y = [self.live(row) + self.aux(row) for row in x if row.sum() > 0]
        z = [self.aux(row) - self.live(row) for row in x if not row.sum() > 0]
        return torch.stack(y + z)


class Item(Clean):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if x.sum().item() > 0:
            y = y + self.aux(x)
        if x.sum().item() <= 0:
            y = y - self.aux(x)
        return y


class Count(Clean):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if int((x > 0).sum()) > 0:
            y = y + self.aux(x)
        if int((x > 0).sum()) == 0:
            y = y - self.aux(x)
        return y


CLEAN = [SumAndItsOpposite, AnyAndNotAny, EqualAndUnequal, FlagTwice, LogicalNot, FunctionAndMethod, RowByRow, Item, Count]


@pytest.mark.parametrize("kind", CLEAN, ids=lambda kind: kind.__name__)
def test_reads_of_one_value_and_of_its_opposite_are_answered_together(kind: type[Clean]) -> None:
    assert plain_runs(kind, filled(1), filled(-1), filled(0)) == {BOTH}
    found = explored(kind)
    assert len(found.found.outcomes) > 1
    assert set(found.used) == {BOTH}


def fork(number: int) -> Fork:
    return Fork("bool", "model.py", number, "forward")


def choices(*counts: int) -> list[list[tuple[Fork, Answer]]]:
    return [[(fork(number), answer) for answer in range(count)] for number, count in enumerate(counts)]


def test_one_fork_meets_nobody() -> None:
    assert covering(choices(2)) == []


def test_few_forks_meet_in_every_way() -> None:
    options = choices(2, 3, 2)
    assert sorted(map(str, covering(options))) == sorted(map(str, itertools.product(*options)))


@pytest.mark.parametrize(("counts", "size"), [((2,) * 6, 3), ((2,) * 9, 3), ((2,) * 40, 2), ((4, 3, 2, 2, 2, 2), 2)])
def test_any_few_answers_meet(counts: tuple[int, ...], size: int) -> None:
    options = choices(*counts)
    selections = covering(options)
    assert len(selections) <= TOGETHER[0][1]
    for some in itertools.combinations(range(len(options)), size):
        wanted = set(itertools.product(*(options[number] for number in some)))
        assert wanted == {tuple(selection[number] for number in some) for selection in selections}


def test_fewer_selections_where_a_path_costs_more() -> None:
    assert len(covering(choices(*(2,) * 9), limit=6)) == 6


def test_the_same_options_give_the_same_selections() -> None:
    assert covering(choices(*(2,) * 15)) == covering(choices(*(2,) * 15))


unwatched = random.random  # bound before draws are watched


class DrawsUnwatched(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if unwatched() < 0.5 else y


def test_a_draw_by_a_name_that_was_bound_before_is_found_by_seeds() -> None:
    found = explored(DrawsUnwatched)
    assert found.sometimes == {"aux"}
    assert {outcome.plan.seed for outcome in found.found.outcomes} == {0, 1, 2, 3}
    assert found.found.outcomes[0].asked == {}


class BestOf(Kind):
    """The best of several, by a comparison, by a number and by a list."""

    def __init__(self) -> None:
        super().__init__()
        self.by_flag = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.by_number = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.by_list = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])

    def forward(self, x: Tensor) -> Any:
        best: Any = -1e9
        for layer in self.by_flag:
            out = layer(x)
            if out.mean() > best:
                best, first = out.mean(), out
        best = -1e9
        for layer in self.by_number:
            out = layer(x)
            if (score := out.mean().item()) > best:
                best, second = score, out
        scores = torch.stack([layer(x).mean() for layer in self.by_list]).tolist()
        return first + second + self.by_list[scores.index(max(scores))](x)


def test_each_of_several_can_be_the_best() -> None:
    assert explored(BestOf).sometimes == {f"{way}.{n}" for way in ("by_flag", "by_number", "by_list") for n in range(4)}


class Known(Base):
    """What is read is made of constants and of buffers that nothing writes."""

    on: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("on", torch.tensor(0))
        self.plain = torch.tensor([0.0, 1.0])

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if self.on or torch.ones(2).sum().item() > 3 or self.plain[self.plain > 5].numel():
            y = y + self.aux(x)
        for rate in torch.linspace(0, 0.3, 4):
            y = y + self.aux(x) if rate.item() > 0.5 else y
        return y


class Written(Known):
    def forward(self, x: Tensor) -> Any:
        self.on += 1
        y = self.live(x)
        return y + self.aux(x) if self.on > 100 else y


class Drifts(Known):
    """A counter that is put in anew."""

    def forward(self, x: Tensor) -> Any:
        self.plain = self.plain + 1
        y = self.live(x)
        return y + self.aux(x) if self.plain.sum() > 100 else y


def test_what_constants_alone_decide_is_no_fork() -> None:
    found = explored(Known)
    assert (found.never, found.runs) == ({"aux"}, 1)
    assert plain_runs(Known) == {ONE}


@pytest.mark.parametrize("kind", [Written, Drifts])
def test_what_a_step_writes_is_one(kind: type[Base]) -> None:
    assert explored(kind).sometimes == {"aux"}


class DrawnBelow(Base):
    """A draw of torch's among three: what is beyond it can't be."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if int(torch.randint(0, 3, (1,))[0]) > 2 else y


class DrawnByName(DrawnBelow):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if torch.randint(high=3, size=()).item() > 2 else y


@pytest.mark.parametrize("kind", [DrawnBelow, DrawnByName])
def test_a_whole_number_that_torch_draws_is_none_beyond_its_range(kind: type[Base]) -> None:
    found = explored(kind)
    assert found.never == {"aux"}
    own = {value for asked in found.found.outcomes[0].asked.values() for value in asked.values}
    assert {answer for answers in found.forced for answer in answers} | own == {0, 1, 2}


class SameWordsOtherValue(Clean):
    """The same comparison of another tensor is no read of the same value."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if x[0].sum() > 0:
            y = y * 2
        if x[1].sum() > 0:
            y = y + self.aux(x)
        return y


def test_the_same_comparison_of_another_value_is_answered_by_itself() -> None:
    found = explored(SameWordsOtherValue)
    assert found.sometimes == {"aux"}
    assert len(found.found.outcomes[0].asked) == 2
    assert [len(plan) for plan in found.forced[1:3]] == [1, 1]


# ---------------------------------------------------------------------- seeds


class TwoDraws(Base):
    """Neither two low nor two high draws lead to ``aux``."""

    def forward(self, x: Tensor) -> Any:
        first, second = (random.random() for _ in range(2))
        y = self.live(x)
        return y + self.aux(x) if first < second else y


def test_seeds_show_what_no_constant_answer_does() -> None:
    found = explored(TwoDraws)
    assert found.sometimes == {"aux"}
    assert plain_runs(TwoDraws, seeds=range(4)) == {ONE, BOTH}
    assert {o.plan.seed for o in found.found.outcomes if not o.plan.answers} == {0, 1, 2, 3}


def test_without_a_draw_no_further_seed_is_run() -> None:
    assert {o.plan.seed for o in explored(Positive).found.outcomes} == {0}


# ---------------------------------------------------------------------- further inputs


class Task(Base):
    @staticmethod
    def inputs() -> Inputs:
        return (torch.randn(2, 4),), {"task": "main"}

    def forward(self, x: Tensor, task: str) -> Any:
        y = self.live(x)
        return y + self.aux(x) if task == "auxiliary" else y


def auxiliary() -> Inputs:
    return (torch.randn(2, 4),), {"task": "auxiliary"}


def too_wide() -> Inputs:
    return (torch.randn(2, 5),), {"task": "main"}


def no_inputs() -> Inputs:
    raise KeyError("task")


def further_inputs() -> list[Callable[[], Inputs]]:
    return [auxiliary]


def inputs_that_do_not_fit() -> list[Callable[[], Inputs]]:
    return [auxiliary, too_wide]


def inputs_that_raise() -> list[Callable[[], Inputs]]:
    return [no_inputs]


def with_variants(kind: type[Kind], variants: Callable[..., Any]) -> TargetSpec:
    return replace(kind.spec(), variants=f"{__name__}:{variants.__name__}")


def test_further_inputs_are_paths() -> None:
    assert explored(Task).never == {"aux"}
    found = explored(with_variants(Task, further_inputs))
    assert [o.plan.inputs for o in found.found.outcomes] == [0, 1]
    assert found.sometimes == {"aux"}
    assert set(found.used) == plain_runs(Task, Task.inputs, auxiliary)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_further_inputs_that_raise_are_an_error_that_names_them(device: Any) -> None:
    with pytest.raises(DdplintError) as caught:
        analysed(with_variants(Task, inputs_that_do_not_fit), device=device)
    said = str(caught.value)
    assert "example inputs 3" in said
    assert "\n" not in said
    assert "RuntimeError" in said
    with pytest.raises(DdplintError, match=r"example inputs 2: .*KeyError"):
        analysed(with_variants(Task, inputs_that_raise), device=device)


# ---------------------------------------------------------------------- steps


class CountsInABuffer(Base):
    """``aux`` from the third step on, by a counter that is written in place."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Any:
        self.seen += 1
        y = self.live(x)
        return y + self.aux(x) if self.seen > 2 else y


class CountsInANewBuffer(CountsInABuffer):
    def forward(self, x: Tensor) -> Any:
        self.seen = self.seen + 1
        y = self.live(x)
        return y + self.aux(x) if self.seen > 2 else y


class CountsInAnAttribute(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = 0

    def count(self) -> int:
        self.seen += 1
        return self.seen

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if self.count() > 2 else y


class CountsInADict(CountsInAnAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.seen = {"steps": 0}

    def count(self) -> int:
        self.seen["steps"] += 1
        return self.seen["steps"]


class CountsInAListOfLists(CountsInAnAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.seen = [[]]

    def count(self) -> int:
        self.seen[0].append(1)
        return len(self.seen[0])


class CountsInAnObject(CountsInAnAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.seen = SimpleNamespace(steps=0)

    def count(self) -> int:
        self.seen.steps += 1
        return self.seen.steps


class CountsInAChild(CountsInAnAttribute):
    def count(self) -> int:
        self.live.steps = getattr(self.live, "steps", 0) + 1
        return self.live.steps


class CountsInAnArray(CountsInAnAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.seen = np.zeros(1, dtype=int)

    def count(self) -> int:
        self.seen += 1
        return int(self.seen[0])


class CountsInATensor(CountsInAnAttribute):
    """A tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = torch.zeros(1)

    def count(self) -> int:
        self.seen.add_(1)
        return int(self.seen)


class CountsInAnIterator(CountsInAnAttribute):
    def __init__(self) -> None:
        super().__init__()
        self.seen = iter(range(100))

    def count(self) -> int:
        return next(self.seen) + 1


COUNTERS = [
    CountsInABuffer,
    CountsInANewBuffer,
    CountsInAnAttribute,
    CountsInADict,
    CountsInAListOfLists,
    CountsInAnObject,
    CountsInAChild,
    CountsInAnArray,
    CountsInATensor,
    CountsInAnIterator,
]
each_counter = pytest.mark.parametrize("kind", COUNTERS, ids=lambda kind: kind.__name__)
each_device = pytest.mark.parametrize("device", ["auto", "cpu"])


@each_device
@each_counter
def test_what_a_schedule_changes_at_the_third_step_shows(kind: type[Base], device: Any) -> None:
    assert plain_runs(kind, steps=3) == {ONE, BOTH}
    found = weights(analysed(kind, steps=3, device=device))
    assert {name: p.usage for name, p in found.items()} == {"live": "always", "aux": "sometimes"}
    assert found["aux"].evidence == "observed"


@pytest.mark.parametrize("kind", [CountsInAnAttribute, CountsInADict], ids=lambda kind: kind.__name__)
def test_without_the_third_step_the_schedule_does_not_show(kind: type[Base]) -> None:
    assert explored(kind, steps=2).never == {"aux"}
    assert [o.step for o in explored(kind, steps=2).found.outcomes] == [0, 1]


def test_a_model_without_state_takes_one_step() -> None:
    assert [o.step for o in explored(Task, steps=3).found.outcomes] == [0]


class TakesTurns(Kind):
    """A step that trains generator and critic in turn, with an update of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)
        self.turn = 0

    @staticmethod
    def step(model: Any) -> Tensor:
        model.turn += 1
        fake = model.generator(torch.randn(2, 4))
        if model.turn % 2:
            return model.critic(fake.detach()).mean()
        for p in model.critic.parameters():
            p.requires_grad_(False)
        loss = model.critic(fake).mean()
        for p in model.critic.parameters():
            p.requires_grad_(True)
        return loss


def test_a_step_that_takes_turns_uses_each_part_sometimes() -> None:
    assert plain_runs(TakesTurns, steps=2) == {frozenset({"critic"}), frozenset({"generator"})}
    found = explored(TakesTurns, steps=3)
    assert found.sometimes == {"generator", "critic"}


# ---------------------------------------------------------------------- each path starts from the same state


class Remembers(Base):
    """Writes down the state in which each forward finds it, then changes all of it."""

    found: ClassVar[list[tuple[Any, ...]]] = []
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.names = ["a"]
        self.table = {"a": 1}
        self.recent: deque[int] = deque(maxlen=2)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Any:
        with torch._C.DisableTorchFunction():  # looked at unseen: a read of these would be a fork
            tensors = (self.mean.sum().item(), self.live.weight.sum().item())
        self.found.append((self.count, *self.names, *self.table.items(), *self.recent, *tensors, hasattr(self, "late")))
        self.count += 1
        self.names.append("b")
        self.table["b"] = 2
        self.recent.append(1)
        self.mean += x.mean(0).abs() + 1
        self.late = True
        with torch.no_grad():
            self.live.weight.mul_(2)
        y = self.live(x)
        return y + self.aux(x) if x.sum() > 0 else y


def test_every_path_starts_from_the_state_of_the_first() -> None:
    Remembers.found.clear()
    found = explored(Remembers, steps=3)
    states = iter(Remembers.found)
    begun, later = [], []
    for outcome in found.found.outcomes:
        before = outcome.plan.after if outcome.step == 0 else 0  # steps that run before it, and are no paths
        run = [next(states) for _ in range(before + 1)]
        if outcome.step == 0:
            begun.append(run[0])
        if outcome.observed:
            later.append(run[-1][0])
    assert next(states, None) is None
    assert len(begun) >= 3
    assert set(begun) == {Remembers.found[0]}
    assert later[:3] == [0, 1, 2]


def test_a_state_knows_whether_it_changed_and_puts_it_back() -> None:
    with without_gpu():
        built = build(load(Remembers.spec()), "cpu", ())
    state = State(built)
    before = {name: t.detach().clone() for name, t in built.model.state_dict().items()}
    assert not state.changed()
    built.model(torch.ones(2, 4))
    assert state.changed()
    state.restore()
    assert not state.changed()
    after = built.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (built.model.count, built.model.names, built.model.table) == (0, ["a"], {"a": 1})
    assert (list(built.model.recent), hasattr(built.model, "late")) == ([], False)


def test_no_gradient_is_left_for_the_next_path() -> None:
    with without_gpu():
        built = build(load(Positive.spec()), "cpu", ())
    state = State(built)
    built.model(torch.ones(2, 4)).sum().backward()
    state.restore()
    assert all(p.grad is None for p in built.model.parameters())


# ---------------------------------------------------------------------- the budget


def test_a_budget_that_bites_leaves_the_answer_incomplete() -> None:
    needed = explored(Nested)
    assert needed.found.complete
    assert explored(Nested, limit=needed.runs).found.complete
    short = explored(Nested, limit=needed.runs - 1)
    assert short.runs == needed.runs - 1
    assert not short.found.complete


def test_the_analysis_says_so() -> None:
    assert not analysed(Nested, device="cpu", paths=2).trace.complete
    assert analysed(Nested, device="cpu").trace.complete


# ---------------------------------------------------------------------- evidence, and what decides


class ByChoice(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if random.choice("ab") == "a" else y  # decides by choice


class ByTorchDraw(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if torch.rand(()) < 0.5 else y  # decides by torch


class ByRank(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if dist.get_rank() == 0 else y  # decides by rank


class ByEnvironment(Base):
    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if os.environ["RANK"] == "0" else y


class ByRankWhenBuilt(Base):
    def __init__(self) -> None:
        super().__init__()
        self.first = dist.is_initialized() and dist.get_rank() == 0  # decides when built

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return y + self.aux(x) if self.first else y


def decided(found: Parameter) -> tuple[str | None, str, str, int]:
    place = found.location
    assert place is not None
    assert place.file == __file__
    return found.usage, found.evidence, found.decided_by, place.line


def the_aux(spec: type[Kind] | TargetSpec, **options: Any) -> Parameter:
    found = weights(analysed(spec, **options))
    assert found["live"].usage == "always"
    return found["aux"]


def test_a_value_decides() -> None:
    found = weights(analysed(Positive, device="cpu"))
    line = line_of(__file__, "decides by sum")
    assert decided(found["live"]) == ("sometimes", "possible", "value", line)
    assert decided(found["aux"]) == ("sometimes", "possible", "value", line)
    assert (found["live"].why, found["aux"].why) == ("unused when false", "unused when true")
    assert found["aux"].cause == "conditional"
    assert found["aux"].location is not None
    assert found["aux"].location.text == "if x.sum() > 0:  # decides by sum"


def positive_and_negative() -> list[Callable[[], Inputs]]:
    return [filled(1), filled(-1)]


def test_a_value_that_example_inputs_show_both_ways_is_observed() -> None:
    found = weights(analysed(with_variants(Positive, positive_and_negative)))
    assert decided(found["aux"]) == ("sometimes", "observed", "value", line_of(__file__, "decides by sum"))


def test_a_draw_decides() -> None:
    found = the_aux(ByChoice)
    assert decided(found) == ("sometimes", "observed", "draw", line_of(__file__, "decides by choice"))
    assert found.why.startswith("unused when the draw is number 1")


def test_a_draw_of_torch_is_read_as_a_value() -> None:
    found = the_aux(ByTorchDraw)
    assert found.decided_by in ("draw", "value")
    assert (found.evidence, decided(found)[3]) == ("observed", line_of(__file__, "decides by torch"))


def test_inputs_decide() -> None:
    found = the_aux(with_variants(Task, further_inputs))
    assert decided(found)[:3] == ("sometimes", "observed", "inputs")
    assert found.why == "unused with example inputs 1, used with others"


def test_a_step_decides() -> None:
    found = the_aux(CountsInAnAttribute, steps=3)
    assert decided(found)[:3] == ("sometimes", "observed", "step")
    assert found.why.startswith("unused at step 1")


def test_a_seed_decides() -> None:
    found = the_aux(TwoDraws)
    assert decided(found)[:3] == ("sometimes", "observed", "seed")
    assert found.why.startswith("unused with seed 0")


@pytest.mark.parametrize(
    ("kind", "comment"), [(ByRank, "decides by rank"), (ByRankWhenBuilt, "decides when built")], ids=["forward", "factory"]
)
def test_a_rank_decides_and_the_line_that_asks_is_named(kind: type[Kind], comment: str) -> None:
    found = the_aux(kind, ranks=2)
    assert decided(found) == ("sometimes", "observed", "rank", line_of(__file__, comment))
    assert "unused on rank 1, used on rank 0" in found.why


def test_a_rank_read_from_the_environment_decides() -> None:
    found = the_aux(ByEnvironment, ranks=2)
    assert decided(found)[:3] == ("sometimes", "observed", "rank")


def test_one_rank_alone_shows_nothing_of_it() -> None:
    assert the_aux(ByRank, ranks=1).usage == "always"


class TwoDecide(Base):
    """``aux`` under two forks: the one that is about it alone is named, not the one that all hangs on."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)

    @staticmethod
    def inputs() -> Inputs:
        return (torch.ones(2, 4),), {}

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if x.sum() > 0:  # decides over two
            y = y + self.other(x)
            if x.max() > 0:  # decides over one
                y = y + self.aux(x)
        return y


def test_of_several_forks_the_narrowest_is_named() -> None:
    found = weights(analysed(TwoDecide, device="cpu"))
    assert decided(found["aux"])[3] == line_of(__file__, "decides over one")
    assert decided(found["other"])[3] == line_of(__file__, "decides over two")


def test_an_analysis_of_many_paths_is_the_same_each_time() -> None:
    for kind in (TwoPlaces, DroppedByTorch, Routed, TwoDraws):
        assert analysed(kind).parameters == analysed(kind).parameters


# ---------------------------------------------------------------------- models too large for the CPU


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=32,
    )  # fmt: skip
    return BertModel(config).train()


def tokens() -> Inputs:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, 5:] = 0
    return (), {"input_ids": torch.randint(0, 64, (2, 8)), "attention_mask": mask}


def mean_of_hidden(output: Any) -> Tensor:
    return output.last_hidden_state.mean()


def test_bert_with_an_attention_mask_stays_on_meta() -> None:
    pytest.importorskip("transformers", reason="transformers not installed")
    here = __name__
    spec = TargetSpec(f"{here}:bert", inputs=f"{here}:tokens", loss=f"{here}:mean_of_hidden")
    found = analysed(spec, cpu_limit=0)
    assert (found.trace.device, found.trace.complete) == ("meta", True)
    assert [p.name for p in found.unused()] == ["pooler.dense.weight", "pooler.dense.bias"]
    assert {p.usage for p in found.unused()} == {"never"}


class LargeReads(Base):
    """A fork on a weight's value, which meta does not have."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        if y.sum() > 0:
            y = y + self.aux(x)
        return y * float(y.mean())


def test_reads_of_a_model_too_large_for_the_cpu_are_forced_each_way() -> None:
    found = analysed(LargeReads, cpu_limit=0)
    assert found.trace.device == "meta"
    assert found.trace.complete
    assert (with_usage(found, "always"), with_usage(found, "sometimes")) == ({"live"}, {"aux"})
    assert weights(found)["aux"].evidence == "possible"
    assert analysed(LargeReads).trace.device == "cpu"


def test_what_is_small_enough_is_the_default_limit() -> None:
    assert Request(LargeReads.spec()).cpu_limit == 2 * 1024**3


def test_a_clean_model_stays_clean_with_default_answers() -> None:
    for kind in (SumAndItsOpposite, FlagTwice, AnyAndNotAny):
        assert analysed(kind, cpu_limit=0, device="meta").unused() == (), kind


class Never(Two):
    def forward(self, x: Tensor) -> Any:
        return self.live(x) if x.sum() > 0 else self.live(-x)


def test_what_no_path_uses_is_never_used() -> None:
    found = explored(Never)
    assert (found.never, found.sometimes) == ({"dead"}, frozenset())
    assert plain_runs(Never, filled(1), filled(-1)) == {ONE}
