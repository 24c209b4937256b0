"""What finetune code asks of GPUs, compilers and other ranks, on a machine that has none."""

# Models as people write them: what mypy says about PyTorch's own annotations is not what is tested here.
# mypy: allow-untyped-calls, allow-untyped-decorators, no-warn-return-any
# mypy: disable-error-code="arg-type, assignment, attr-defined, has-type, index, misc, operator, override"

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.kinds.kind import Kind, One, Two

DEVICE = "cuda"  # what the kinds ask for


@contextmanager
def _on_this_machine() -> Iterator[None]:
    """The same code on the CPU: strings say cpu, ``.cuda()`` is no move."""
    with (
        patch(f"{__name__}.DEVICE", "cpu"),
        patch.object(torch.Tensor, "cuda", lambda self, *args, **kwargs: self),
        patch.object(nn.Module, "cuda", lambda self, *args, **kwargs: self),
    ):
        yield


@contextmanager
def _alone() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Gpu(Two):
    """Needs a GPU, or a stand-in."""

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _on_this_machine()


class CudaMethods(Gpu):
    def __init__(self) -> None:
        super().__init__()
        self.cuda()

    def forward(self, x: Tensor) -> Any:
        return self.live(x.cuda()) + self.dead(x.cuda(non_blocking=True)).detach().cpu().to(DEVICE)  # <- severed: dead


class DeviceStrings(Gpu):
    def __init__(self) -> None:
        super().__init__()
        self.to(DEVICE)
        self.register_buffer("mask", torch.ones(4, device=DEVICE))

    def forward(self, x: Tensor) -> Any:
        x = x.to(device=DEVICE, non_blocking=True)
        noise = torch.zeros(2, 4, device=torch.device(DEVICE, 0))
        grid = torch.arange(4, device=DEVICE).float() + torch.linspace(0, 1, 4).to(DEVICE, torch.float32)
        return self.live(x + noise) * self.mask + grid + self.dead(x).to(f"{DEVICE}:0").detach()  # <- severed: dead


class DeviceContext(Gpu):
    def forward(self, x: Tensor) -> Any:
        with torch.device(DEVICE):
            noise = torch.zeros(2, 4)
        return self.live(x.to(noise)) + self.dead(x.to(noise.device)).argmax()  # <- severed: dead


class CudaQueries(One):
    def forward(self, x: Tensor) -> Any:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if next(self.parameters()).is_cuda or x.is_cuda:
            x = x * 2
        torch.cuda.empty_cache()
        torch.cuda.manual_seed_all(0)
        return self.live(x) + torch.cuda.device_count() + torch.cuda.memory_allocated()


class CudaAnswers(Gpu):
    """Queries that raise without a GPU, unless someone answers."""

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _with_queries()

    def forward(self, x: Tensor) -> Any:
        device = torch.cuda.current_device()
        torch.cuda.set_device(device)
        torch.cuda.synchronize()
        if torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.get_device_properties(device).major >= 8:
            x = x + 1
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            y = self.live(x)
        start = torch.cuda.Event(enable_timing=True)
        start.record()
        torch.cuda.nvtx.range_push("dead")
        with torch.cuda.nvtx.range("inner"):
            h = self.dead(x)
        torch.cuda.nvtx.range_pop()
        return y + h.detach()  # <- severed: dead


@contextmanager
def _with_queries() -> Iterator[None]:
    from ddplint.trace.environment import without_gpu

    with without_gpu():
        yield


class Autocast(Two):
    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.live(x) + self.dead(x).detach()  # <- severed: dead


class AutocastOnCuda(One):
    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cuda", dtype=torch.float16), torch.amp.autocast("cuda", enabled=False):
            y = self.live(x)
        with torch.autocast(device_type=x.device.type, dtype=torch.bfloat16):
            return self.live(y)


class AutocastDecorator(Two):
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():  # <- severed: dead
            h = self.dead(x)
        return self.live(x) + h


class Scaler(One):
    @staticmethod
    def step(model: Any) -> Tensor:
        scaler = torch.amp.GradScaler("cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        loss = model.live(torch.randn(2, 4)).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()


class ScalerOnCpu(One):
    @staticmethod
    def step(model: Any) -> Tensor:
        scaler = torch.amp.GradScaler("cpu", enabled=False)
        loss = model.live(torch.randn(2, 4)).mean()
        scaler.scale(loss).backward()
        return loss.detach()


class CompiledModule(Kind):
    def __init__(self) -> None:
        super().__init__()
        self.block = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), backend="eager")
        self.spare = torch.compile(nn.Linear(4, 4), backend="eager")  # <- uncalled: spare

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


class CompiledFunction(Two):
    def forward(self, x: Tensor) -> Any:
        @torch.compile(backend="eager", fullgraph=True)
        def run(x: Tensor) -> Any:
            return torch.tanh(self.live(x)) + self.dead(x).detach()  # <- severed: dead

        return run(x)


class CompiledMethod(One):
    def __init__(self) -> None:
        super().__init__()
        self.live.compile(backend="eager")

    def forward(self, x: Tensor) -> Any:
        return self.live(x)


class Collectives(Two):
    """Collectives pass no gradient: only the functional ones do."""

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _alone()

    def forward(self, x: Tensor) -> Any:
        mean = self.dead(x).mean(0).detach()  # <- severed: dead
        dist.all_reduce(mean)
        dist.barrier()
        parts = [torch.zeros(4) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mean.contiguous())
        dist.broadcast(mean, src=0)
        return self.live(x) + mean / dist.get_world_size() + parts[0]


class GatheredWithGradient(One):
    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _alone()

    def forward(self, x: Tensor) -> Any:
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(self.live(x).clone())


class GatheredFeatures(Two):
    """The usual contrastive loss: features of all ranks, one's own put back with its gradient."""

    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _alone()

    def forward(self, x: Tensor) -> Any:
        image, text = self.live(x), self.dead(x)
        images = [torch.zeros_like(image) for _ in range(dist.get_world_size())]
        texts = [torch.zeros_like(text) for _ in range(dist.get_world_size())]
        dist.all_gather(images, image)
        dist.all_gather(texts, text)  # <- severed: dead
        images[dist.get_rank()] = image
        return torch.cat(images) @ torch.cat(texts).T


class SyncedBatchNorm(Kind):
    @classmethod
    def plainly(cls) -> AbstractContextManager[None]:
        return _synced_as_batch_norm()

    def __init__(self) -> None:
        super().__init__()
        block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.block = nn.SyncBatchNorm.convert_sync_batchnorm(block)

    def forward(self, x: Tensor) -> Any:
        return self.block(x)


@contextmanager
def _synced_as_batch_norm() -> Iterator[None]:
    with patch.object(nn.SyncBatchNorm, "forward", nn.BatchNorm1d.forward):
        yield


class SavedDevice(Gpu):
    """A device kept as an attribute when the model was made, and asked again later."""

    replay = "a generator object goes on from where the recorded run left it"

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device(DEVICE if torch.cuda.is_available() else "cpu")

    def forward(self, x: Tensor) -> Any:
        x = x.to(self.device)
        noise = torch.randn(x.shape, device=self.device, generator=torch.Generator(device=self.device))
        return self.live(x + noise) + self.dead(x).type(torch.int64)  # <- severed: dead


class PinnedMemory(One):
    @classmethod
    def plainly(cls) -> AbstractContextManager[Any]:
        return patch.object(torch.Tensor, "pin_memory", lambda self: self)

    def forward(self, x: Tensor) -> Any:
        return self.live(x.pin_memory())


class Profiled(One):
    def forward(self, x: Tensor) -> Any:
        with torch.profiler.record_function("live"), torch.autograd.profiler.record_function("inner"):
            return self.live(x)
