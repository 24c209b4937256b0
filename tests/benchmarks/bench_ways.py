"""ddplint beside what a user would do instead, whole processes by turns; and how it grows. See CONTRIBUTING.md.

Named so that the tests do not run it. It runs everything once; ``table.py`` runs it several times and takes the medians.
"""

from __future__ import annotations

import os
import resource
from typing import Any

import pytest

from tests.benchmarks.measure import HERE, Ran, run

WAYS = ("check", "meta-forward", "meta-backward", "real", "ddp", "ddp-detail", "export")
# Too large for a machine of 16 GB, once or in two processes.
LEFT_OUT = {
    "llama_7b": ("real", "ddp", "ddp-detail"),
    "llama_70b": ("real", "ddp", "ddp-detail"),
    "wav2vec2_48": ("ddp", "ddp-detail"),
    "bert_large": ("ddp-detail",),  # nothing new
    "bert_base": ("ddp-detail",),
}
MODELS = ("reference", "bert_base", "bert_large", "llama_7b", "llama_70b", "wav2vec2_48")
CASES = [(model, way) for model in MODELS for way in WAYS if way not in LEFT_OUT.get(model, ())]
SIZES = (10_000, 100_000, 1_000_000)
CHAINS = [(nodes, kind) for nodes in SIZES for kind in ("one", "many")]


def command(model: str, way: str) -> list[str]:
    """The arguments of a Python that goes ``way`` with the model."""
    file = str(HERE / "models" / f"{model}.py")
    if way == "check":
        return ["-m", "ddplint", "check", "--target", file, "--no-cache", "--format", "json", "--exit-zero", "--quiet"]
    return [str(HERE / "ways.py"), way, model]


@pytest.fixture(scope="session", autouse=True)
def _files_read_once() -> None:
    """What all of them import is in the system's memory before the first is timed."""
    run(command("bert_base", "check"))
    run(command("wav2vec2_48", "meta-forward"))


def _benched(benchmark: Any, group: str, arguments: list[str], **facts: Any) -> Ran:
    benchmark.group = group
    load, stack = os.getloadavg()[0], resource.getrlimit(resource.RLIMIT_STACK)[0]
    ran: Ran = benchmark.pedantic(run, args=(arguments,), rounds=1, iterations=1, warmup_rounds=0)
    benchmark.extra_info.update(facts, load=load, stack=stack, seconds=ran.seconds, peak=ran.peak, out=_kept(ran.out))
    return ran


def _kept(out: dict[str, Any]) -> dict[str, Any]:
    """Of a report only what the table has."""
    if "results" not in out:
        return out
    result = out["results"][0] if out["results"] else {"unchecked": True}
    return {key: result[key] for key in ("counts", "trace", "rehearsal", "verdict", "unchecked") if key in result}


@pytest.mark.parametrize(("model", "way"), CASES)
def test_way(benchmark: Any, model: str, way: str) -> None:
    """One process."""
    _benched(benchmark, model, command(model, way), model=model, way=way)


@pytest.mark.parametrize(("nodes", "kind"), CHAINS)
def test_growth(benchmark: Any, nodes: int, kind: str) -> None:
    """One chain."""
    _benched(benchmark, kind, [str(HERE / "growth.py"), str(nodes), kind], nodes=nodes, kind=kind)
