"""Devices mapped to the trace's own, and the values that small tensors keep on meta, against the same code on the CPU."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, attr-defined, comparison-overlap, index, misc, operator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ddplint.target import load
from ddplint.trace.devices import SMALL, DeviceMode, Twins, replaced, tensors_among
from ddplint.trace.environment import without_gpu
from ddplint.trace.run import build
from tests.explored import analysed, weights, with_usage
from tests.kinds.kind import Kind

Make = Callable[[], Tensor]


def on_meta(make: Make, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """What ``make`` gives on meta, and its twin."""
    twins = Twins()
    torch.manual_seed(seed)
    with DeviceMode("meta", twins), torch.no_grad():
        made = make()
    return made, twins.of(made)


def on_cpu(make: Make, seed: int = 0) -> Tensor:
    torch.manual_seed(seed)
    return make()


def assert_same(make: Make, seed: int = 0) -> None:
    """The meta tensor has the shape and type of the CPU's, its twin the values."""
    expected = on_cpu(make, seed)
    made, twin = on_meta(make, seed)
    assert made.is_meta
    assert twin is not None
    assert not twin.is_meta
    assert (made.shape, made.dtype) == (expected.shape, expected.dtype)
    assert torch.equal(twin, expected)


# ---------------------------------------------------------------------- what has values


MADE: dict[str, Make] = {
    "zeros": lambda: torch.zeros(2, 3),
    "full": lambda: torch.full((3,), 2.5),
    "arange": lambda: torch.arange(5),
    "linspace": lambda: torch.linspace(0, 1, 4),
    "eye": lambda: torch.eye(3),
    "tensor": lambda: torch.tensor([1, 0, 2]),
    "tril": lambda: torch.ones(3, 3).tril().bool(),
    "on a gpu": lambda: torch.ones(2, device="cuda" if DEVICES_MAPPED else "cpu"),
    "moved": lambda: torch.arange(3).to("cuda" if DEVICES_MAPPED else "cpu").float(),
    "like": lambda: torch.zeros_like(torch.arange(3)),
    "new": lambda: torch.arange(3).new_ones(2),
    "asarray": lambda: torch.as_tensor([[1.0, 2.0]]),
    "triu_indices": lambda: torch.triu_indices(3, 3),
    "one_hot": lambda: F.one_hot(torch.tensor([0, 2]), 3),
    "meshgrid": lambda: torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")),
}
DEVICES_MAPPED = False


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_factories_make_keeps_its_values(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = on_cpu(make)
    monkeypatch.setattr(f"{__name__}.DEVICES_MAPPED", True)
    made, twin = on_meta(make)
    assert made.is_meta
    assert twin is not None
    assert torch.equal(twin, expected)


COMPUTED: dict[str, Make] = {
    "arithmetic": lambda: (torch.arange(4) * 2 + 1).clamp(max=5),
    "comparison": lambda: torch.arange(4) > 1,
    "view": lambda: torch.arange(6).view(2, 3).T[1],
    "several results": lambda: torch.arange(6).view(2, 3).max(dim=1).indices,
    "split": lambda: torch.arange(6).split(2)[1] + torch.arange(6).chunk(3)[0],
    "sort": lambda: torch.tensor([3, 1, 2]).sort()[1],
    "unique": lambda: torch.tensor([3, 1, 3]).unique(),
    "nonzero": lambda: (torch.arange(5) % 2 == 1).nonzero(),
    "boolean index": lambda: torch.arange(5)[torch.arange(5) > 2],
    "repeat_interleave": lambda: torch.arange(3).repeat_interleave(torch.tensor([0, 2, 1])),
    "bincount": lambda: torch.bincount(torch.tensor([0, 2, 2])),
    "cumsum": lambda: torch.cat([torch.zeros(1, dtype=torch.long), torch.ones(3, dtype=torch.long).cumsum(0)]),
    "gather": lambda: torch.arange(6).view(2, 3).gather(1, torch.tensor([[0], [2]])),
    "pad": lambda: F.pad(torch.ones(2), (1, 2)),
    "where": lambda: torch.where(torch.arange(4) > 1, torch.tensor(1.0), torch.zeros(4)),
    "0-dim": lambda: torch.arange(4).sum() + torch.tensor(1),
    "out": lambda: torch.add(torch.ones(2), torch.ones(2), out=torch.zeros(2)),
}


@pytest.mark.parametrize("make", COMPUTED.values(), ids=COMPUTED)
def test_what_is_computed_from_known_values_is_known(make: Make) -> None:
    assert_same(make)


DRAWN: dict[str, Make] = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(2, 2),
    "randint": lambda: torch.randint(0, 9, (4,)),
    "randperm": lambda: torch.randperm(6),
    "bernoulli": lambda: torch.bernoulli(torch.full((5,), 0.5)),
    "uniform_": lambda: torch.empty(4).uniform_(),
    "normal_": lambda: torch.zeros(3).normal_(),
    "multinomial": lambda: torch.multinomial(torch.ones(5), 2),
    "dropout": lambda: F.dropout(torch.ones(8), 0.5),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)) + torch.zeros(3),
    "generator": lambda: torch.rand(3, generator=torch.Generator().manual_seed(5)),
    "two in a row": lambda: torch.rand(2) - torch.rand(2),
}


@pytest.mark.parametrize("make", DRAWN.values(), ids=DRAWN)
def test_a_small_draw_is_the_one_that_the_cpu_would_make(make: Make) -> None:
    assert_same(make, seed=3)
    assert_same(make, seed=4)


# ---------------------------------------------------------------------- writes


def _first() -> Tensor:
    t = torch.zeros(4)
    t[1] = 3
    t += 1
    return t


def _through_a_view() -> Tensor:
    t = torch.zeros(2, 2)
    t.view(-1)[2:].fill_(7)
    t[0].add_(torch.arange(2))
    return t


def _masked() -> Tensor:
    t = torch.zeros(4)
    t[torch.arange(4) > 2] = 5
    t.masked_fill_(torch.arange(4) < 1, 2)
    return t.index_fill_(0, torch.tensor([1]), 9)


def _copied() -> Tensor:
    t = torch.zeros(2)
    t.copy_(torch.arange(2))
    return t


def _scattered() -> Tensor:
    return torch.zeros(2, 3).scatter_(1, torch.tensor([[0], [2]]), 1)


def _through_data() -> Tensor:
    t = torch.zeros(2)
    t.data.fill_(3)
    t.detach()[0] = 1
    return t


def _data_replaced() -> Tensor:
    t = torch.zeros(2)
    t.data = torch.ones(2)
    return t + 0


def _foreach() -> Tensor:
    t = torch.zeros(2)
    torch._foreach_add_([t], [torch.ones(2)])
    return t


WRITTEN = [_first, _through_a_view, _masked, _copied, _scattered, _through_data, _data_replaced, _foreach]


@pytest.mark.parametrize("make", WRITTEN, ids=lambda make: make.__name__)
def test_writes_of_known_values_are_followed(make: Make) -> None:
    assert_same(make)


def unknown(*shape: int) -> Tensor:
    """A meta tensor of which nothing is known."""
    with torch._C.DisableTorchFunction():  # unseen by the mode
        return torch.empty(shape, device="meta")


LOSING: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda t: t.add_(unknown(4)),
    "__iadd__": lambda t: t.__iadd__(unknown(4)),
    "copy_": lambda t: t.copy_(unknown(4)),
    "an element": lambda t: t.__setitem__(0, unknown()),
    "by an unknown mask": lambda t: t.masked_fill_(unknown(4) > 0, 1),
    "through a view": lambda t: t[1:3].mul_(unknown(2)),
    "through detach": lambda t: t.detach().add_(unknown(4)),
    "through data": lambda t: t.data.add_(unknown(4)),
    "data replaced": lambda t: setattr(t, "data", unknown(4)),
    "out": lambda t: torch.add(unknown(4), 1, out=t),
    "foreach": lambda t: torch._foreach_add_([t], [unknown(4)]),
}


@pytest.mark.parametrize("write", LOSING.values(), ids=LOSING)
def test_a_write_of_unknown_values_loses_them(write: Callable[[Tensor], Any]) -> None:
    twins = Twins()
    with DeviceMode("meta", twins):
        t = torch.arange(4.0)
        other = torch.arange(4.0)
        view = t[2:]
        write(t)
        after = t * 2
    assert twins.of(t) is None
    assert twins.of(view) is None
    assert twins.of(after) is None
    known = twins.of(other)
    assert known is not None
    assert torch.equal(known, torch.arange(4.0))


def test_what_has_no_value_is_told_apart() -> None:
    twins = Twins()
    with DeviceMode("meta", twins):
        weight = nn.Parameter(unknown(3, 4))
        x = torch.ones(2, 4)
        y = F.linear(x, weight)
        chosen = y.argmax(-1)
    assert twins.of(y) is None
    assert twins.of(chosen) is None
    assert twins.of(x) is not None


def test_a_large_tensor_has_no_twin() -> None:
    _, twin = on_meta(lambda: torch.zeros(SMALL))
    assert twin is not None
    _, twin = on_meta(lambda: torch.zeros(SMALL + 1))
    assert twin is None
    _, twin = on_meta(lambda: torch.zeros(SMALL + 1)[:2])
    assert twin is None


def test_a_tensor_that_is_not_on_meta_is_its_own_twin() -> None:
    t = torch.ones(2)
    assert Twins().of(t) is t


def test_twins_from_before_are_looked_up_and_not_changed() -> None:
    before = Twins()
    with DeviceMode("meta", before):
        t = torch.zeros(2)
    during = Twins(before)
    assert during.of(t) is before.of(t)
    with DeviceMode("meta", during):
        u = t + 1
    assert during.of(u) is not None
    assert before.of(u) is None


def test_a_mistake_of_the_targets_is_raised_as_on_the_cpu() -> None:
    with DeviceMode("meta"), pytest.raises(IndexError, match="out of range"):
        F.embedding(torch.tensor([9]), torch.zeros(3, 2))


# ---------------------------------------------------------------------- a large tensor by a small mask


INDEXED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mask": lambda big, mask: big[mask],
    "mask and all": lambda big, mask: big[mask, :],
    "all and mask": lambda big, mask: big.T[:, mask],
    "mask and number": lambda big, mask: big[mask, 3],
    "ellipsis and mask": lambda big, mask: big.T[..., mask],
    "unsqueezed": lambda big, mask: big[None, mask],
    "mask of two dimensions": lambda big, mask: big.view(3, 4, -1)[mask[:, None].expand(3, 4)],
    "uint8 mask": lambda big, mask: big[mask.to(torch.uint8)],
    "positions": lambda big, mask: big[mask.nonzero().squeeze(1)],
    "masked_select": lambda big, mask: torch.masked_select(big[:, :5], mask[:, None]),
    "masked_select method": lambda big, mask: big[:, :5].masked_select(mask[:, None].expand(3, 5)),
    "index_select": lambda big, mask: big.index_select(0, mask.nonzero().flatten()),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("index", INDEXED.values(), ids=INDEXED)
def test_a_large_tensor_is_indexed_by_a_small_mask(index: Callable[[Tensor, Tensor], Tensor]) -> None:
    mask = torch.tensor([True, False, True])
    expected = index(torch.zeros(3, SMALL), mask)
    with DeviceMode("meta"):
        big = torch.zeros(3, SMALL, requires_grad=True)
        found = index(big, torch.tensor([True, False, True]))
    assert found.is_meta
    assert found.shape == expected.shape
    found.sum().backward()
    assert big.grad is not None
    assert big.grad.shape == big.shape


def test_an_unknown_mask_gives_no_shape() -> None:
    with DeviceMode("meta"), pytest.raises((RuntimeError, NotImplementedError)):
        unknown(3, 2)[unknown(3) > 0]


# ---------------------------------------------------------------------- models on meta


class Base(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.live = nn.Linear(4, 4)
        self.aux = nn.Linear(4, 4)


class Buffers(Base):
    mask: Tensor
    order: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(2, 2)).bool())
        self.register_buffer("order", torch.tensor([1, 0]), persistent=False)
        self.register_buffer("large", torch.zeros(SMALL + 1))

    def forward(self, x: Tensor) -> Any:
        y = self.live(x[self.order.tolist()])
        rows = x[self.mask[0]]
        return y + self.aux(rows) if self.mask[1, 1] else y


class ReadsWhenBuilt(Buffers):
    """Built on the CPU and moved, for its factory reads a value."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = [float(rate) for rate in self.live.weight.detach().flatten()[:2]]


@pytest.mark.parametrize("kind", [Buffers, ReadsWhenBuilt], ids=lambda kind: kind.__name__)
def test_buffers_of_a_model_on_meta_keep_their_values(kind: type[Kind]) -> None:
    with without_gpu():
        built = build(load(kind.spec()), "meta", ())
    buffers = dict(built.model.named_buffers())
    assert all(t.is_meta for t in buffers.values())
    assert {name: built.twins.of(t) is not None for name, t in buffers.items()} == {
        "mask": True, "order": True, "large": False
    }  # fmt: skip
    order = built.twins.of(buffers["order"])
    assert order is not None
    assert order.tolist() == [1, 0]
    assert all(built.twins.of(p) is None for p in built.model.parameters())
    found = analysed(kind)
    assert found.trace.device == "meta"
    assert with_usage(found, "always") >= {"live"}


class MaskedTokens(Base):
    """What a loss does with labels: only the positions that the batch marks."""

    @staticmethod
    def inputs() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(2, 3, 4), torch.tensor([[0, -100, 1], [-100, -100, 2]])), {}

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        kept = labels != -100
        hidden = self.live(x)[kept]
        return F.cross_entropy(self.aux(hidden), labels[kept]) if len(hidden) else self.aux(self.live(x)).sum()


def test_labels_choose_rows_on_meta() -> None:
    found = analysed(MaskedTokens)
    assert (found.trace.device, with_usage(found, "always")) == ("meta", {"live", "aux"})


class DrawnWidth(Base):
    """A small draw on meta has a value to read."""

    def forward(self, x: Tensor) -> Any:
        keep = torch.rand(4).topk(2).indices.tolist()
        y = self.live(x)[:, sorted(keep)]
        return y + self.aux(x)[:, :2] if torch.randint(0, 2, ()).item() else y


def test_small_draws_are_read_on_meta() -> None:
    found = analysed(DrawnWidth)
    assert found.trace.device == "meta"
    assert {name: p.usage for name, p in weights(found).items()} == {"live": "always", "aux": "sometimes"}


class OnesLike(Base):
    """Of what weights compute only shape and type are used: what is made is known, and the same on every path."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        mask = torch.ones_like(y[:, 0], dtype=torch.bool)
        empty = y.new_zeros(y.shape[0], dtype=torch.long)
        return y[mask] if mask.all() and not empty.any() else y + self.aux(x)


def test_what_is_made_like_an_unknown_tensor_is_known() -> None:
    found = analysed(OnesLike)
    assert (found.trace.device, weights(found)["aux"].usage) == ("meta", "never")


# ---------------------------------------------------------------------- devices


DEVICE_NAMES = ["cuda", "cuda:1", "xpu", "mps", torch.device("cuda", 0), 0]


@pytest.mark.parametrize("name", DEVICE_NAMES, ids=str)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_every_accelerator_is_the_traces_device(device: Any, name: Any) -> None:
    with DeviceMode(device):
        made = torch.zeros(2, device=name)
        moved = torch.zeros(2).to(name)
        assert {made.device.type, moved.device.type, torch.zeros(2).cuda().device.type} == {device}
        assert nn.Linear(2, 2, device=name).weight.device.type == device
        if not isinstance(name, int):
            assert torch.zeros(2).to(device=name, dtype=torch.long).device.type == device


def test_the_cpu_is_meta_on_meta_and_itself_on_the_cpu() -> None:
    for device in ("cpu", "meta"):
        with DeviceMode(device):
            assert torch.zeros(2, device="cpu").device.type == device
            assert torch.zeros(2).cpu().device.type == device
            assert torch.zeros(2).to("cpu").device.type == device
            assert torch.zeros(2).to(torch.ones(1)).device.type == device
    with DeviceMode("cpu"):
        assert torch.zeros(2, device="meta").is_meta


def test_pinned_memory_and_types_of_a_gpu() -> None:
    with DeviceMode("meta"):
        t = torch.zeros(2, pin_memory=True)
        assert t.pin_memory() is t
        assert t.type("torch.cuda.LongTensor").dtype == torch.long


def test_outside_of_the_mode_torch_is_as_it_was() -> None:
    with DeviceMode("meta"):
        pass
    assert torch.zeros(2).device.type == "cpu"


def test_tensors_among_nested_values_and_their_replacement() -> None:
    a, b = torch.zeros(1), torch.ones(1)
    values = ([a, (1, slice(b, None))], {"k": a})
    assert [t is other for t, other in zip(tensors_among(values), (a, b, a), strict=True)] == [True] * 3
    changed: Any = replaced(values, lambda value: 5 if isinstance(value, Tensor) else value)
    assert changed == ([5, (1, slice(5, None, None))], {"k": 5})


class ReadsAGradient(Base):
    """A small tensor that is known on meta gets a gradient within forward, and is asked for it."""

    def forward(self, x: Tensor) -> Any:
        inner = torch.ones(4, requires_grad=True)
        with torch.enable_grad():
            torch.autograd.backward((inner * x.detach()).sum())
        assert inner.grad is not None
        return self.live(x) + inner.grad


def test_a_known_tensors_gradient_is_not_its_twins() -> None:
    found = analysed(ReadsAGradient, rehearse=True)
    assert found.trace.device == "meta"
    assert {name: p.usage for name, p in weights(found).items()} == {"live": "always", "aux": "never"}
    assert found.rehearsal is not None


class MixedTypes(Base):
    """A product that no real kernel takes, on one path."""

    def forward(self, x: Tensor) -> Any:
        y = self.live(x)
        return self.aux(y.to(torch.bfloat16)) if x.sum() > 1e6 else y


class CastFirst(Base):
    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.aux(self.live(x))


def test_operands_of_two_types_are_refused_on_meta_too() -> None:
    found = analysed(MixedTypes)
    assert (found.trace.device, found.trace.infeasible) == ("meta", 1)
    assert {name: p.usage for name, p in weights(found).items()} == {"live": "always", "aux": "never"}


def test_under_autocast_they_are_cast() -> None:
    found = analysed(CastFirst)
    assert found.trace.device == "meta"
    assert {p.usage for p in weights(found).values()} == {"always"}
