"""What DDP does in rehearsal against what two real processes did (``truth.json``), and what the rehearsal leaves behind."""

from __future__ import annotations

import gc
import json
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from ddplint.analysis import Analysis, Rehearsal, TraceRecord
from ddplint.errors import DdplintError
from ddplint.rehearse import SETTINGS, rehearse
from ddplint.rules import TargetSpec
from ddplint.target import Inputs, Target, load
from ddplint.trace.devices import TraceDevice
from ddplint.trace.environment import without_gpu
from ddplint.trace.shapes import Shapes
from ddplint.trace.values import Plan
from tests.kinds.lines import fork_of

CASES = Path(__file__).parent / "cases"
TRUTH = json.loads((CASES / "truth.json").read_text())
OFF, ON, STATIC = SETTINGS
both_devices = pytest.mark.parametrize("device", ["cpu", "meta"])


# ---------------------------------------------------------------------- targets


def batch() -> Inputs:
    return (torch.ones(2, 4),), {}


def target(
    factory: Callable[[], nn.Module],
    *inputs: Callable[[], Inputs],
    loss: Callable[[Any], Tensor] = torch.sum,
    step: Callable[[nn.Module], Any] | None = None,
) -> Target:
    """A target of this module's own; its parameters' first values do not matter."""
    return Target("tests:factory", factory, inputs or (batch,), lambda output: (loss(output), ""), step)


class Layers(nn.Module):
    """Two layers of one size for the modules below."""

    a: Callable[..., Tensor]
    b: Callable[..., Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)


class TwoHeads(nn.Module):
    """A trunk and two heads; ``forward(x, which)`` runs the heads whose letters are in ``which``."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor, which: str = "ab") -> list[Tensor]:
        hidden = self.trunk(x) if which else x
        return [getattr(self, letter)(hidden) for letter in which]


def heads(which: str) -> Callable[[], Inputs]:
    return lambda: ((torch.ones(2, 4), which), {})


def total(outputs: list[Tensor]) -> Tensor:
    return sum((t.sum() for t in outputs), torch.zeros((), requires_grad=True))


def two_heads(*which: str) -> Target:
    return target(TwoHeads, *(heads(w) for w in which), loss=total)


def plans(number: int) -> list[Plan]:
    return [Plan(inputs=i) for i in range(number)]


def outcomes(of: Rehearsal) -> tuple[str, str, str]:
    return of.outcomes[OFF], of.outcomes[ON], of.outcomes[STATIC]


# ---------------------------------------------------------------------- against real processes

# static_graph=True as tests/real_ddp.py showed it; truth.json has the other two.
KNOWN = {
    "argmax_policy": "ok",
    "block_skip_python_random": "reduction_error",
    "crf_outside_forward": "ok",
    "custom_function_none_grad": "ok",
    "dataclass_output": "ok",
    "detector_no_positive": "reduction_error",
    "everything_unused_batch": "hang",
    "multitask_head_switch": "reduction_error",
    "reentrant_checkpoint": "ok",
    "second_output_unused": "reduction_error",
    "tied_lm_head_clean": "ok",
}


def of_case(name: str, device: TraceDevice) -> Rehearsal:
    with without_gpu():
        loaded = load(TargetSpec(factory=f"{CASES / name}.py:build", from_module=True, base=str(CASES)))
    paths = plans(len(loaded.inputs))
    if TRUTH[name]["sometimes"] and len(paths) == 1:
        paths = [Plan(seed=seed) for seed in range(8)]
    return rehearse(loaded, paths, device, ranks_differ=False)


@pytest.mark.parametrize("name", KNOWN)
def test_a_case_does_in_rehearsal_what_it_did_in_two_processes(name: str) -> None:
    expected = TRUTH[name]["ddp_false_outcome"], TRUTH[name]["ddp_true_outcome"], KNOWN[name]
    assert outcomes(of_case(name, "cpu")) == expected


@pytest.mark.parametrize(
    "name", ["crf_outside_forward", "dataclass_output", "multitask_head_switch", "reentrant_checkpoint"]
)
def test_meta_does_what_the_cpu_does(name: str) -> None:
    expected = TRUTH[name]["ddp_false_outcome"], TRUTH[name]["ddp_true_outcome"], KNOWN[name]
    assert outcomes(of_case(name, "meta")) == expected


# ---------------------------------------------------------------------- outcomes and their details


@both_devices
def test_a_static_unused_head_fails_one_forward_late(device: TraceDevice) -> None:
    found = rehearse(two_heads("a"), plans(1), device, ranks_differ=False)
    assert outcomes(found) == ("reduction_error", "ok", "ok")
    assert (found.device, found.iterations, found.ranks) == (device, 3, 2)
    assert list(found.details) == [OFF]
    assert found.details[OFF].startswith("rank 0, iteration 2: RuntimeError: Expected to have finished reduction")


@both_devices
def test_all_used_is_ok_and_has_nothing_to_say(device: TraceDevice) -> None:
    found = rehearse(two_heads("ab"), plans(1), device, ranks_differ=True)
    assert outcomes(found) == ("ok", "ok", "ok")
    assert found.details == {}


def test_each_rank_starts_on_a_path_of_its_own() -> None:
    found = rehearse(two_heads("ab", "a"), plans(2), "cpu", ranks_differ=False)
    assert outcomes(found) == ("reduction_error", "ok", "reduction_error")
    assert found.iterations == 4
    assert found.details[OFF].startswith("rank 1, iteration 2: ")  # rank 1 began with the path that leaves b out
    assert "rank 0 waits in all_reduce of gradient bucket 0" in found.details[OFF]


def test_the_error_of_the_last_path_is_seen() -> None:
    found = rehearse(two_heads(*["ab"] * 4, "b"), plans(5), "cpu", ranks=1, ranks_differ=False)
    assert found.details[OFF].startswith("rank 0, iteration 6: ")


def test_a_rank_that_uses_nothing_leaves_the_other_waiting() -> None:
    found = rehearse(two_heads("ab", ""), plans(2), "cpu", ranks_differ=False)
    assert outcomes(found) == ("hang", "hang", "hang")
    waits = "rank 0 waits in all_reduce of gradient bucket 0 (60 elements) of iteration 1, which rank 1 does not issue"
    assert found.details[OFF] == waits
    assert found.iterations == 3  # it was rehearsed for four, after which each rank has reduced twice


def test_an_error_that_its_rank_never_reaches_is_a_hang() -> None:
    """Rank 0 would raise in its third iteration, but waits for ever in its first."""
    own = [Plan(inputs=0), Plan(inputs=1), Plan(inputs=1, seed=1)]
    theirs = [Plan(inputs=2, seed=seed, rank=1) for seed in range(2)]
    found = rehearse(two_heads("ab", "a", ""), own + theirs, "cpu", ranks_differ=True)
    assert found.outcomes[OFF] == "hang"


def test_an_unfinished_reduction_waits_for_nobody() -> None:
    """Rank 0 reduces one of its two buckets, which rank 1 never does, and raises in its next forward all the same.

    Until the reducer has rebuilt its buckets, after the first iteration, there is one.
    """

    class Model(nn.Module):
        steps = 0

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(600, 600, bias=False), nn.Linear(600, 600, bias=False)  # over 1 MiB each

        def forward(self, x: Tensor) -> list[Tensor]:
            self.steps += 1
            which = "ab" if self.steps == 1 else "" if dist.get_rank() else "b"
            return [getattr(self, letter)(x) for letter in which]

    of = target(Model, lambda: ((torch.ones(2, 600),), {}), loss=total)
    found = rehearse(of, plans(1), "cpu", ranks_differ=True)
    assert found.outcomes[OFF] == "reduction_error"
    assert found.details[OFF].startswith("rank 0, iteration 3: ")


def test_loss_on_a_parameter_outside_forward_is_ready_twice_with_the_flag_on() -> None:
    class Model(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Identity()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x)

    built: list[Model] = []

    def factory() -> Model:
        built.append(Model())
        return built[-1]

    found = rehearse(target(factory, loss=lambda out: (out * built[-1].scale).sum()), plans(1), "cpu", ranks_differ=False)
    assert found.outcomes[OFF] == "ok"
    assert found.outcomes[ON] == "ready_twice"
    assert "ready only once" in found.details[ON]


def test_a_checkpointed_block_run_twice_is_ready_twice_either_way() -> None:
    class Model(Layers):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self.a(x)
            for _ in range(2):
                hidden = checkpoint(self.b, hidden, use_reentrant=True)
            return hidden

    found = rehearse(target(Model), plans(1), "meta", ranks_differ=False)
    assert (found.outcomes[OFF], found.outcomes[ON]) == ("ready_twice", "ready_twice")


def test_a_sparse_embedding_is_no_error() -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 2))

    found = rehearse(target(factory, lambda: ((torch.tensor([1, 2]),), {})), plans(1), "cpu", ranks_differ=True)
    assert found.outcomes[OFF] == "ok"


# ---------------------------------------------------------------------- answers, devices, steps


class Gated(Layers):
    """Layer b after layer a where a's result is positive on the whole."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return self.b(hidden) if hidden.sum() > 0 else hidden


@both_devices
def test_forced_answers_are_replayed(device: TraceDevice) -> None:
    fork = fork_of(Gated.forward, "hidden.sum() > 0", "bool")
    paths = [Plan(answers=((fork, answer),)) for answer in (False, True)]
    assert outcomes(rehearse(target(Gated), paths, device, ranks_differ=False)) == (
        "reduction_error",
        "ok",
        "reduction_error",
    )
    assert outcomes(rehearse(target(Gated), paths[:1], device, ranks_differ=False)) == ("reduction_error", "ok", "ok")


def test_unforced_reads_on_meta_get_the_default() -> None:
    found = rehearse(target(Gated), plans(1), "meta", ranks_differ=False, default={"bool": False})
    assert outcomes(found) == ("reduction_error", "ok", "ok")


def test_a_read_inside_a_composite_function_is_forced() -> None:
    """PyTorch's Python functions arrive whole at a mode, and their reads are missed, unless they are opened."""

    class Model(Layers):
        def forward(self, x: Tensor) -> Tensor:
            joined = torch.tensordot(x, torch.eye(4), dims=torch.tensor(1))
            return self.a(joined) if joined.dim() == 2 else self.b(joined)

    fork = fork_of(Model.forward, "torch.tensordot(x, torch.eye(4), dims=torch.tensor(1))", "int")
    paths = [Plan(), Plan(answers=((fork, 0),))]
    assert outcomes(rehearse(target(Model), paths[:1], "cpu", ranks_differ=False)) == ("reduction_error", "ok", "ok")
    assert rehearse(target(Model), paths, "cpu", ranks_differ=False).outcomes[STATIC] == "reduction_error"


def test_cpu_tensors_that_meet_meta_ones_are_moved() -> None:
    class Model(Layers):
        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x + torch.from_numpy(np.ones(4, dtype=np.float32))))

    assert outcomes(rehearse(target(Model), plans(1), "meta", ranks_differ=False)) == ("ok", "ok", "ok")


def test_the_calls_of_a_step_go_through_the_wrapper_and_it_may_call_backward_itself() -> None:
    seen: list[bool] = []

    class Model(TwoHeads):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(nn.parallel.DistributedDataParallel._active_ddp_module is not None)
            return super().forward(*args, **kwargs)

    def step(model: nn.Module) -> Tensor:
        assert isinstance(model.get_submodule("trunk"), nn.Module)  # by the names of the bare model
        loss = total(model(torch.ones(2, 4)))
        torch.autograd.backward(loss)
        return loss

    found = rehearse(target(Model, step=step), [Plan()], "cpu", ranks_differ=False)
    assert outcomes(found) == ("ok", "ok", "ok")
    assert seen == [True] * 9


def test_a_step_with_two_forwards_and_one_backward() -> None:
    def step(model: nn.Module) -> Tensor:
        one, other = model(torch.ones(2, 4)), model(torch.zeros(2, 4))
        return total([*one, *other])

    assert rehearse(target(TwoHeads, step=step), [Plan()], "cpu", ranks_differ=False).outcomes[OFF] == "ok"


def test_a_state_that_changes_late_is_reached() -> None:
    class Model(Layers):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += 1
            return self.a(x) if self.steps > 2 else self.b(self.a(x))

    three = rehearse(target(Model), plans(1), "cpu", ranks_differ=False)
    five = rehearse(target(Model), plans(1), "cpu", ranks_differ=False, steps=3)
    assert (three.iterations, three.outcomes[OFF]) == (3, "ok")
    assert (five.iterations, five.outcomes[OFF]) == (5, "reduction_error")


@both_devices
def test_buffers_are_broadcast_on_every_rank(device: TraceDevice) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    assert outcomes(rehearse(target(factory), plans(1), device, ranks_differ=True)) == ("ok", "ok", "ok")


def test_a_buffer_on_one_rank_only_is_a_hang() -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 4), nn.Identity() if dist.get_rank() else nn.BatchNorm1d(4, affine=False))

    found = rehearse(target(factory), plans(1), "cpu", ranks_differ=True)
    assert outcomes(found) == ("hang", "hang", "hang")
    assert found.details[ON].startswith("rank 0 waits in broadcast (")


@both_devices
def test_every_rank_gets_the_bucket_order_of_rank_0(device: TraceDevice) -> None:
    """The order in which gradients arrive differs between the ranks; the reducer takes rank 0's (sync_bucket_indices)."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.big, self.small = nn.Linear(600, 600, bias=False), nn.Linear(600, 10, bias=False)

        def forward(self, x: Tensor, turned: bool) -> Tensor:
            first, second = (self.small, self.big) if turned else (self.big, self.small)
            one: Tensor = first(x).sum()
            other: Tensor = second(x * one).sum()  # its gradient arrives first
            return one + other

    def turned(value: bool) -> Callable[[], Inputs]:
        return lambda: ((torch.ones(2, 600), value), {})

    found = rehearse(target(Model, turned(False), turned(True)), plans(2), device, ranks_differ=False)
    assert outcomes(found) == ("ok", "ok", "ok"), found.details


def test_what_is_answered_from_memory_is_what_would_be_computed() -> None:
    """Gradients that are not asked for stay None (the first one of a convolution here)."""

    class Compare(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            computed, answered = func(*args, **(kwargs or {})), shapes.call(func, args, kwargs or {})
            for one, other in zip(tree_leaves(computed), tree_leaves(answered), strict=True):
                assert type(one) is type(other)
                if isinstance(one, Tensor):
                    assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
                    counted.append(func)
            return computed

    def factory() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.LazyLinear(5))

    shapes, counted = Shapes(), list[Any]()
    with torch.device("meta"):
        model, image = factory(), torch.ones(2, 3, 8, 8).to(memory_format=torch.channels_last)
        model(image)
        with Compare():  # type: ignore[no-untyped-call]
            for _ in range(2):
                torch.autograd.backward(model(image).softmax(-1).sum())
    assert torch.ops.aten.convolution_backward.default in counted


# ---------------------------------------------------------------------- ranks


class OnRankZero(Layers):
    """Does one thing more on rank 0: a ``layer``, or a ``collective``."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.a(x)
        first = dist.get_rank() == 0
        if self.what == "collective":
            if first:
                dist.all_reduce(hidden.detach().clone())
            return self.b(hidden)
        return self.b(hidden) if first else hidden


@both_devices
def test_a_collective_on_one_rank_only_is_a_hang(device: TraceDevice) -> None:
    found = rehearse(target(lambda: OnRankZero("collective")), plans(1), device, ranks_differ=True)
    assert outcomes(found) == ("hang", "hang", "hang")
    assert found.details[ON].startswith("rank 0 waits in all_reduce (8 elements) of iteration 1, rank 1 in ")


def test_a_layer_on_one_rank_only_raises_there_and_leaves_the_other_waiting() -> None:
    found = rehearse(target(lambda: OnRankZero("layer")), plans(1), "cpu", ranks_differ=True)
    assert outcomes(found)[:2] == ("reduction_error", "ok")
    assert found.details[OFF].startswith("rank 1, iteration 2: RuntimeError: Expected to have finished")
    assert found.details[OFF].endswith("rank 0 waits in all_reduce of gradient bucket 0 (40 elements) of iteration 1")


def test_ranks_that_can_not_differ_are_not_run() -> None:
    ranks: list[int] = []

    def factory() -> nn.Module:
        ranks.append(dist.get_rank())
        return nn.Linear(4, 4)

    assert rehearse(target(factory), plans(1), "cpu", ranks_differ=False).ranks == 2
    assert set(ranks) == {0}
    rehearse(target(factory), plans(1), "cpu", ranks_differ=True, ranks=3)
    assert set(ranks) == {0, 1, 2}


def test_collectives_of_a_group_are_matched_in_the_group() -> None:
    class Model(Layers):
        def __init__(self) -> None:
            super().__init__()
            self.groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]

        def forward(self, x: Tensor) -> Tensor:
            group = self.groups[dist.get_rank() // 2]
            for _ in range(1 + dist.get_rank() // 2):  # the second group does one more, and nobody has to wait
                dist.all_reduce(x.clone(), group=group)
            objects: list[Any] = [None, None]
            dist.all_gather_object(objects, "x" * (1 + 100 * dist.get_rank()), group=group)
            return self.b(self.a(x))

    found = rehearse(target(Model), plans(1), "cpu", ranks=4, ranks_differ=True)
    assert outcomes(found) == ("ok", "ok", "ok"), found.details


def test_what_rank_0_broadcasts_is_what_the_others_get() -> None:
    class Model(Layers):
        def forward(self, x: Tensor) -> Tensor:
            chosen = torch.tensor([dist.get_rank()])
            dist.broadcast(chosen, 0)
            return self.b(x) + (self.a(x) if chosen.item() == 0 else 0)

    found = rehearse(target(Model), plans(1), "cpu", ranks_differ=True)
    assert outcomes(found) == ("ok", "ok", "ok"), found.details


# ---------------------------------------------------------------------- what a target raises


class Fragile(Layers):
    """Raises for ``bad``, and for ``wrapped`` if DDP runs it."""

    def forward(self, x: Tensor, how: str = "") -> Tensor:
        if how == "bad" or (how == "wrapped" and nn.parallel.DistributedDataParallel._active_ddp_module is not None):
            raise ValueError("no such mode")
        return self.b(self.a(x))


def test_a_path_that_raises_without_ddp_too_is_left_out_in_silence() -> None:
    found = rehearse(target(Fragile, heads(""), heads("bad")), plans(2), "cpu", ranks_differ=False)
    assert outcomes(found) == ("ok", "ok", "ok")
    assert found.details == {}


def test_a_path_that_raises_under_ddp_only_is_left_out_and_reported() -> None:
    found = rehearse(target(Fragile, heads(""), heads("wrapped")), plans(2), "cpu", ranks_differ=False)
    assert outcomes(found) == ("ok", "ok", "ok")
    assert "rank 0: the path with inputs 1, seed 0 raises under DDP only" in found.details[OFF]
    assert "ValueError: no such mode" in found.details[OFF]


def test_a_target_that_does_not_run_wrapped_is_one_line() -> None:
    with pytest.raises(DdplintError, match=r"under DistributedDataParallel .* raised ValueError: no such mode"):
        rehearse(target(Fragile, heads("wrapped")), plans(1), "cpu", ranks_differ=False)


def test_a_read_without_an_answer_on_meta_is_one_line() -> None:
    with pytest.raises(DdplintError, match=r"no path could be rehearsed: NoValue: __bool__"):
        rehearse(target(Gated), plans(1), "meta", ranks_differ=False)


# ---------------------------------------------------------------------- nothing left behind


def _global() -> tuple[Any, ...]:
    patches = (torch.compile, torch.load, torch.cuda.current_device, nn.Module.__call__, dist.get_rank, random.random)
    engine = (vars(torch.autograd)["_engine_run_backward"], vars(nn.functional)["has_torch_function"], np.random.rand)
    generators = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    modes = torch.overrides._get_current_function_mode(), torch.utils._python_dispatch._get_current_dispatch_mode()  # type: ignore[no-untyped-call]
    settings = gc.isenabled(), list(warnings.filters), torch.is_grad_enabled(), dist.is_initialized()
    return patches, engine, generators, modes, settings


@contextmanager
def raises_if(wanted: bool) -> Iterator[None]:
    if wanted:
        with pytest.raises(DdplintError):
            yield
    else:
        yield


@pytest.mark.parametrize("how", ["", "wrapped"])
def test_all_is_as_it_was(how: str) -> None:
    before = _global()
    with raises_if(bool(how)):
        rehearse(target(Fragile, heads(how)), plans(1), "cpu", ranks_differ=True)
    assert _global() == before


def test_a_process_group_that_is_there_already_is_put_back() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        default, other = dist.group.WORLD, dist.new_group([0])
        found = rehearse(two_heads("ab", ""), plans(2), "cpu", ranks_differ=False)
        assert found.outcomes[OFF] == "hang"
        assert dist.group.WORLD is default
        assert (dist.get_world_size(), dist.get_backend(), dist.get_process_group_ranks(other)) == (1, "gloo", [0])
        value = torch.ones(1)
        dist.all_reduce(value, group=other)
        torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(value, "sum", other.group_name)
        )  # found by its name
    finally:
        dist.destroy_process_group()


def test_stdout_stays_the_reports(capfd: pytest.CaptureFixture[str]) -> None:
    rehearse(two_heads("a"), plans(1), "meta", ranks_differ=False)
    assert capfd.readouterr().out == ""


def test_a_rehearsal_goes_through_json() -> None:
    found = rehearse(two_heads("a"), plans(1), "cpu", ranks_differ=False)
    trace = TraceRecord(device="cpu", device_reason="", paths=1, ranks=1, nodes=1, seconds=0.5)
    whole = Analysis("tests:factory", torch.__version__, (), trace, rehearsal=found)
    assert Analysis.from_json(json.loads(json.dumps(whole.to_json()))) == whole
