from __future__ import annotations

import io
import os
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddplint.trace.devices import DeviceMode
from ddplint.trace.environment import without_gpu
from tests.kinds import environments
from tests.kinds.compare import Device, analysed, misplaced, never, plain, replay, unreached_from_outputs
from tests.kinds.kind import Kind, kinds_in

KINDS = [*kinds_in(environments)]
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
on_each_device = pytest.mark.parametrize("device", ["auto", "cpu"])
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU, which answers itself")


@each_kind
def test_a_real_run_leaves_without_gradient_what_the_kind_says(kind: type[Kind]) -> None:
    run = plain(kind)
    said = {name for name in run.trainable if any(e.is_about(name) for e in kind.explanations())}
    assert said == run.never


@on_each_device
@each_kind
def test_code_written_for_gpus_and_ranks_is_traced(kind: type[Kind], device: Device) -> None:
    found = analysed(kind, device)
    assert never(found) == plain(kind).never
    assert found.trace.disagreements == ()


@on_each_device
@each_kind
def test_an_unused_parameter_is_explained_by_the_line_that_does_it(kind: type[Kind], device: Device) -> None:
    assert misplaced(kind, analysed(kind, device)) == []


@pytest.mark.parametrize("kind", [k for k in KINDS if k.step is None], ids=lambda kind: kind.__name__)
def test_what_ddp_finds_from_the_outputs(kind: type[Kind]) -> None:
    assert unreached_from_outputs(analysed(kind, "auto")) == plain(kind).never


@pytest.mark.parametrize("kind", [k for k in KINDS if k.step is None and not k.replay], ids=lambda kind: kind.__name__)
def test_the_recorded_graph_runs_again_to_the_same_result(kind: type[Kind]) -> None:
    assert replay(kind.spec()).differing() == []


@pytest.mark.parametrize("name", ["cuda", "cuda:1", "xpu", "mps", torch.device("cuda", 0), 0])
def test_an_accelerator_becomes_the_traces_device(name: Any) -> None:
    x = torch.ones(2)
    with DeviceMode("cpu"):
        assert x.to(name).device.type == "cpu"
        assert torch.zeros(2, device=name).device.type == "cpu"
    with DeviceMode("meta"):
        assert x.to(name).device.type == "meta"
        assert torch.zeros(2, device=name).device.type == "meta"


def test_on_meta_everything_is_meta() -> None:
    with DeviceMode("meta"):
        made = [torch.zeros(2), torch.arange(3), torch.tensor([1.0]), torch.ones(2, device="cpu")]
        made += [torch.full((2,), 1.0).cpu(), torch.randn(2, generator=torch.Generator())]
    assert {t.device.type for t in made} == {"meta"}


def test_to_keeps_the_dtype_that_it_is_given() -> None:
    x = torch.ones(2)
    with DeviceMode("cpu"):
        assert x.to("cuda", torch.float64).dtype == torch.float64
        assert x.to(torch.zeros(1, dtype=torch.int32)).dtype == torch.int32
        assert x.type("torch.cuda.DoubleTensor").dtype == torch.float64
        assert x.cuda(non_blocking=True) is x


@no_gpu
def test_queries_are_answered_as_by_one_gpu_that_is_not_there() -> None:
    with without_gpu():
        assert not torch.cuda.is_available()
        assert torch.cuda.current_device() == 0
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.get_device_properties(0).total_memory == 80 * 1024**3
        assert torch.cuda.mem_get_info() == (80 * 1024**3, 80 * 1024**3)
        cuda: Any = torch.cuda  # not annotated
        stream, event = cuda.Stream(), cuda.Event(enable_timing=True)
        with cuda.stream(stream), cuda.device(0):
            event.record()
            cuda.nvtx.range_push("range")
            cuda.nvtx.range_pop()
            cuda.synchronize()
        assert event.query() is True
        assert event.elapsed_time(event) == 0.0


@no_gpu
def test_a_generator_for_a_gpu_draws_on_the_cpu() -> None:
    with without_gpu(), DeviceMode("cpu"):
        drawn = torch.rand(3, device="cuda", generator=torch.Generator(device="cuda").manual_seed(5))
    assert torch.equal(drawn, torch.rand(3, generator=torch.Generator().manual_seed(5)))


def test_a_file_is_loaded_to_the_cpu_unless_it_says_where() -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    with without_gpu():
        file.seek(0)
        assert torch.load(file, weights_only=True).device.type == "cpu"
        file.seek(0)
        assert torch.load(file, map_location="meta", weights_only=True).device.type == "meta"


def test_nothing_is_compiled_and_names_are_those_of_a_compiled_module() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with without_gpu():
        compiled: Any = torch.compile(nn.Linear(2, 2), mode="max-autotune")
        assert torch.compile(double) is double
        assert torch.compile(fullgraph=True)(double) is double
        assert compiled.in_features == 2
    assert [name for name, _ in compiled.named_parameters()] == ["_orig_mod.weight", "_orig_mod.bias"]
    assert not compiled.eval().training
    assert not compiled._orig_mod.training


def test_ranks_of_a_group_that_is_not_there() -> None:
    with without_gpu(rank=1, world_size=3):
        assert dist.is_initialized()
        assert (dist.get_rank(), dist.get_world_size()) == (1, 3)
        assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("1", "3")
        dist.init_process_group("nccl")  # the target's own call finds the group there
        dist.barrier()
        total = torch.ones(2)
        dist.all_reduce(total)
        assert total.tolist() == [1.0, 1.0]
        dist.destroy_process_group()
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_an_existing_group_is_left_alone() -> None:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        with without_gpu(rank=1, world_size=2):
            assert dist.get_world_size() == 1
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_the_places_that_ask_for_the_rank_are_noted() -> None:
    with without_gpu(rank=0, world_size=2) as environment:
        assert environment.rank_asked == []
        dist.get_rank()  # asked here
    (site,) = environment.rank_asked
    assert site.location().text == "dist.get_rank()  # asked here"


def test_everything_is_put_back() -> None:
    watched: list[tuple[Any, str]] = [
        *((torch.cuda, name) for name in ("current_device", "Stream", "synchronize", "stream", "device")),
        *((torch, name) for name in ("compile", "load", "Generator")),
        *((dist, name) for name in ("get_rank", "init_process_group", "destroy_process_group")),
        (nn.Module, "compile"), (nn.SyncBatchNorm, "forward"), (torch.cuda.nvtx, "_nvtx"),
    ]  # fmt: skip
    before = [getattr(owner, name) for owner, name in watched]
    variables = dict(os.environ)
    with without_gpu():
        pass
    assert [getattr(owner, name) for owner, name in watched] == before
    assert dict(os.environ) == variables


def test_the_hook_for_uncaught_exceptions_is_put_back() -> None:
    """``dist.init_process_group`` puts a prefix before every uncaught exception, and leaves it there."""
    before = sys.excepthook
    with without_gpu():
        pass
    assert sys.excepthook is before
