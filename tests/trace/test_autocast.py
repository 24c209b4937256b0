"""Autocast on meta against real runs on the CPU, and a GPU's regions where there is no GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from ddplint.trace.autocast import on_the_cpu, query_the_cpu
from ddplint.trace.devices import DeviceMode
from ddplint.trace.patching import patched
from tests.programs_oracle import ask

A, B, W = torch.randn(4, 4), torch.randn(4, 4), torch.randn(3, 4)
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "linear": lambda a, b: F.linear(a, b),
    "linear with a bias": lambda a, b: F.linear(a, b, b[0]),
    "matmul": lambda a, b: a @ b,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", a, b),
    "conv1d": lambda a, b: F.conv1d(a[None], b[:, :, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
    "prelu": lambda a, b: F.prelu(a, b[0, :1]),
    "layer_norm": lambda a, b: F.layer_norm(a, (4,), b[0], b[1]),
    "softmax": lambda a, b: a.softmax(1),
    "softmax of a product": lambda a, b: (a @ b).softmax(1),
    "sum": lambda a, b: (a @ b).sum(),
    "prod": lambda a, b: (a @ b).prod(),
    "mse_loss": lambda a, b: F.mse_loss(a @ b, a @ b),
    "smooth_l1_loss": lambda a, b: F.smooth_l1_loss(a @ b, a @ b),
    "cross_entropy": lambda a, b: F.cross_entropy(a @ b, torch.zeros(4, dtype=torch.long, device=a.device)),
    "cat": lambda a, b: torch.cat([a @ b, a]),
    "stack": lambda a, b: torch.stack([a @ b, a @ b]),
    "add": lambda a, b: (a @ b) + a,
    "relu": lambda a, b: (a @ b).relu(),
    "double": lambda a, b: F.linear(a.double(), b.double()),
    "inverse": lambda a, b: torch.linalg.inv(a @ b),
    "cdist": lambda a, b: torch.cdist(a @ b, b),
}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_the_type_on_meta_is_that_of_a_real_run(name: str, kind: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=kind):
        real = CALLS[name](A, B)
        a, b = A.to("meta"), B.to("meta")
        with DeviceMode("meta"):
            traced = CALLS[name](a, b)
    assert traced.is_meta
    assert (traced.dtype, traced.shape) == (real.dtype, real.shape)


def test_without_autocast_nothing_is_cast() -> None:
    with DeviceMode("meta"):
        assert F.linear(A.to("meta"), W.to("meta")).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
            assert F.linear(A.to("meta"), W.to("meta")).dtype == torch.float32


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU its regions are its own")
@pytest.mark.parametrize(("device", "kind"), [("cuda", torch.float16), ("meta", torch.float16)])
def test_a_region_of_a_device_that_is_not_there_is_the_cpus(device: str, kind: torch.dtype) -> None:
    queries = {name: query_the_cpu(getattr(torch, name)) for name in ("is_autocast_enabled", "get_autocast_dtype")}
    with patched(torch.autocast, __init__=on_the_cpu(torch.autocast.__init__)), patched(torch, **queries):
        assert not torch.is_autocast_enabled()
        with torch.autocast(device):
            assert torch.is_autocast_enabled(device)
            assert torch.get_autocast_dtype(device) == kind
            assert F.linear(A, W).dtype == kind
            with torch.autocast(device, enabled=False):
                assert F.linear(A, W).dtype == torch.float32


HALVES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x):
        with torch.autocast(DEVICE, dtype=torch.float16):
            y = self.first(x)
            out = torch.zeros(2, 4, dtype=torch.float16, device=x.device)
            out[torch.arange(2, device=x.device)] = self.second(y.half())
            return self.last(out).float().sum()

def build():
    return Model()

def inputs():
    return (torch.randn(2, 4),), {}
"""


@pytest.mark.parametrize("device", ["'cuda'", "x.device.type", "'cpu'"])
@pytest.mark.parametrize("traced", ["meta", "cpu"])
def test_a_target_can_count_on_the_types_that_its_gpu_gives(device: str, traced: str, tmp_path: Path) -> None:
    found = ask(HALVES.replace("DEVICE", device), tmp_path, device=traced)
    assert {p.name: p.usage for p in found.parameters} == dict.fromkeys(
        [f"{layer}.{which}" for layer in ("first", "second", "last") for which in ("weight", "bias")], "always"
    )
    assert found.trace.device == traced


def test_a_lazy_module_under_autocast_gets_its_shapes(tmp_path: Path) -> None:
    text = HALVES.replace("DEVICE", "'cuda'").replace("nn.Linear(4, 4), nn.Linear", "nn.LazyLinear(4), nn.Linear")
    assert {p.usage for p in ask(text, tmp_path).parameters} == {"always"}
