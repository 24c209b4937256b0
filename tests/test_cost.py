"""What the flag costs: numbers from a run of two real processes against known ones, and how they are told."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddplint import cli, cost, verify
from ddplint.checking import Options, Subject, bare_target
from ddplint.cost import Cost, Wrapped, measured, quartiles, refuse_too_large, render
from ddplint.errors import DdplintError
from ddplint.verify import Ranks

OPTIONS = Options(timeout=60.0, paths=4, quiet=True)
STEPS = 7  # a round and a part of one

HEAD = """
import random
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.dead = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(30, 10)

    def forward(self, x):
        {forward}

def build():
    return Model()

def inputs():
    return (torch.ones(1, 2),), {{}}

def loss(output):
    return output.sum()
"""


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two ranks that the tests of the module share."""
    with verify.started(OPTIONS, None) as running:
        yield running


def found(ranks: Ranks, folder: Path, forward: str) -> Cost:
    """The measured cost to a model with layers ``a`` and ``b`` of 2 x 2, ``dead`` of 30 x 10, and this forward."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8).strip()
    (folder / "net.py").write_text(HEAD.format(forward=body))
    return measured(Subject(bare_target("net.py", folder)), OPTIONS, ranks, steps=STEPS)


def test_a_model_with_a_dead_layer(ranks: Ranks, tmp_path: Path) -> None:
    made = found(ranks, tmp_path, "return self.b(self.a(x))")
    # Two addmm, each with its transposed weight, and the accumulators of two weights and two biases.
    assert (made.nodes, made.edges) == (8, 7)
    assert made.dead == ("dead.weight", "dead.bias")
    assert made.dead_bytes == made.on.unused_bytes == 4 * 310
    assert made.weight_bytes == 4 * (310 + 12)
    assert made.off is not None
    assert made.why_not == ""
    assert len(made.on.seconds) == len(made.off.seconds) == STEPS
    assert all(0 < seconds < 60 for seconds in (*made.on.seconds, *made.off.seconds, *made.on.search))
    assert len(made.on.search) >= 1
    assert made.off.search == ()
    assert (sum(made.on.buckets), made.on.rebuilt) == (4 * 322, False)
    assert (sum(made.off.buckets), made.off.rebuilt) == (4 * 12, True)
    # The gradients, and with the flag on the map of the six used parameters.
    assert sum(made.on.reduces) == 322 + 6
    assert len(made.on.reduces) == len(made.on.buckets) + 1
    assert made.off.reduces == (12,)
    # Two moments of 12 weights, and the number of steps of 4 parameters.
    assert made.optimizer_bytes == 4 * (2 * 12 + 4)
    assert made.dead_optimizer_bytes == made.dead_gradients == 0
    assert not made.redirected
    assert made.threads >= 1


def test_a_model_without_one(ranks: Ranks, tmp_path: Path) -> None:
    made = found(ranks, tmp_path, "return self.b(self.a(x)).sum() + self.dead(x.repeat(1, 15)).sum()")
    assert made.dead == ()
    assert made.off is not None
    assert made.on.unused_bytes == made.off.unused_bytes == 0
    assert sum(made.on.buckets) == sum(made.off.buckets) == 4 * 322
    assert sum(made.on.reduces) == sum(made.off.reduces) + 6


def test_a_model_that_needs_the_flag(ranks: Ranks, tmp_path: Path) -> None:
    made = found(ranks, tmp_path, "y = self.a(x)\nreturn self.b(y) if random.random() < 0.5 else y")
    assert made.off is None
    assert made.why_not == (
        "DDP ends in reduction_error, also once what no path uses is frozen (2 parameters used on some paths only)"
    )
    assert len(made.on.seconds) == STEPS
    assert "not timed with the flag off: DDP ends in reduction_error" in " ".join(render("text", made).split())


def test_code_that_asks_for_a_gpu_is_redirected(ranks: Ranks, tmp_path: Path) -> None:
    made = found(ranks, tmp_path, "return self.b(self.a(x)) + torch.zeros(2, device='cuda')")
    assert made.redirected
    assert len(made.on.seconds) == STEPS
    assert "redirected to the CPU" in render("text", made)


def test_a_step_of_ones_own(ranks: Ranks, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        HEAD.format(forward="return self.b(self.a(x))").split("def inputs")[0]
        + "def step(model):\n    return model(torch.ones(1, 2)).sum()\n"
    )
    made = measured(Subject(bare_target("net.py", tmp_path)), OPTIONS, ranks, steps=1)
    assert (made.nodes, len(made.on.seconds), made.on.unused_bytes) == (8, 1, 4 * 310)


def test_what_does_not_run_with_the_flag_has_no_cost(ranks: Ranks, tmp_path: Path) -> None:
    forward = "import collections\nbox = collections.UserDict()\nbox['y'] = self.b(self.a(x))\nreturn box"
    (tmp_path / "net.py").write_text(
        HEAD.format(forward=textwrap.indent(forward, " " * 8).strip()).replace("output.sum", "output['y'].sum")
    )
    with pytest.raises(DdplintError, match=r"build: it does not run with find_unused_parameters=True \(ready_twice\)"):
        measured(Subject(bare_target("net.py", tmp_path)), OPTIONS, ranks, steps=1)


def test_a_model_too_large_is_refused_in_one_sentence() -> None:
    gib = 1024**3
    refuse_too_large(gib, 16 * gib, "net.py:build")
    refuse_too_large(gib, 0, "net.py:build")  # it is not known how much there is
    with pytest.raises(DdplintError) as caught:
        refuse_too_large(gib, 16 * gib - 1, "net.py:build")
    text = str(caught.value)
    assert "too large to be measured here: 1.0 GiB of weights take 16.0 GiB in two processes" in text
    assert "\n" not in text


def test_too_large_is_known_before_anything_is_run(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "free_memory", lambda: 1024)
    monkeypatch.setattr(Ranks, "run", None)  # would raise
    with pytest.raises(DdplintError, match="too large to be measured here"):
        found(ranks, tmp_path, "return self.b(self.a(x))")


def test_free_memory_is_a_number_of_bytes() -> None:
    assert cost.free_memory() > 1024**2


# ---------------------------------------------------------------------- what is said of it


def made(on: float = 0.012, off: float | None = 0.010, **more: Any) -> Cost:
    """A cost whose steps took about so many seconds."""

    def wrapped(seconds: float, *, flag: bool) -> Wrapped:
        times = tuple(seconds + i * 1e-4 for i in (-2, -1, 0, 1, 2))
        return Wrapped(times, (400, 1240), not flag, (410, 6) if flag else (100,), (3e-6, 4e-6) if flag else (), 1240)

    fields = {
        "title": "hybrid",
        "ckpt": "hybrid",
        "target": "net.py:build",
        "torch_version": "2.13.0",
        "nodes": 1319,
        "edges": 1691,
        "on": wrapped(on, flag=True),
        "off": wrapped(off, flag=False) if off is not None else None,
        "why_not": "" if off is not None else "DDP ends in hang",
        "dead": ("dead.weight", "dead.bias"),
        "dead_bytes": 1240,
        "weight_bytes": 2480,
        "optimizer_bytes": 112,
        "dead_optimizer_bytes": 0,
        "dead_gradients": 0,
        "redirected": False,
        "threads": 1,
    }
    return Cost(**{**fields, **more})


def test_a_difference_beyond_the_spread_is_told_by_the_medians() -> None:
    lines = render("text", made()).splitlines()
    assert lines[0] == "hybrid: a step took 2 ms (20 %) more with the flag and the unused parameters, by the medians"
    assert " ".join(lines[5].split()) == "flag on, all parameters as built 12 ms 11.9 ms to 12.1 ms"
    assert " ".join(lines[6].split()) == "flag off, the 2 never used frozen 10 ms 9.9 ms to 10.1 ms"
    assert max(map(len, lines)) <= 120
    assert "On GPUs with nccl" in render("text", made())


def test_one_within_the_spread_is_not_claimed() -> None:
    first = render("text", made(on=0.0101, dead=())).splitlines()[0]
    assert first == "hybrid: no difference shown: the steps' quartiles with and without the flag overlap"
    less = render("text", made(on=0.005)).splitlines()[0]
    assert less == "hybrid: a step took 5 ms (50 %) less with the flag and the unused parameters, by the medians"


def test_where_the_flag_can_not_be_off_nothing_is_compared() -> None:
    text = render("text", made(off=None))
    assert text.startswith("hybrid: a step takes 12 ms with the flag on; it can't be off\n")
    assert "not timed with the flag off: DDP ends in hang" in text
    assert "with it off" not in text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, "AdamW's state takes 112 B after a step, nothing of it for the never used: DDP leaves their .grad None"),
        ({"dead_optimizer_bytes": 64, "dead_gradients": 2}, "after a step, 64 B of it for the never used"),
        (
            {"optimizer_bytes": None, "dead_optimizer_bytes": None, "dead_gradients": None},
            "optimizer: not measured, for the",
        ),
        ({"dead": ()}, "AdamW's state takes 112 B after a step Measured"),
    ],
)
def test_the_optimizer_is_told_as_it_was_measured(more: dict[str, Any], told: str) -> None:
    assert told in " ".join(render("text", made(**more)).split())


def test_a_profiler_without_the_event_is_said() -> None:
    without = made(on=0.01)
    without = dataclasses.replace(without, on=dataclasses.replace(without.on, search=()))
    assert "search: not known, for this PyTorch's profiler shows no event" in render("text", without)


def test_the_json_report_has_every_step() -> None:
    document = json.loads(render("json", made()))
    assert document["schema_version"] == 1
    assert document["tool"]["torch"] == "2.13.0"
    assert document["machine"]["backend"] == "gloo"
    result = document["result"]
    assert len(result["on"]["seconds"]) == 5
    assert result["on"]["median"] == pytest.approx(0.012)
    assert result["on"]["quartiles"] == pytest.approx([0.0119, 0.0121])
    assert result["dead"] == ["dead.weight", "dead.bias"]
    assert json.loads(render("json", made(off=None)))["result"]["off"] is None


def test_quartiles_of_few() -> None:
    assert quartiles([3.0]) == (3.0, 3.0, 3.0)
    assert quartiles([1.0, 2.0, 3.0, 4.0, 5.0]) == (2.0, 3.0, 4.0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(HEAD.format(forward="return self.b(self.a(x))"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["cost", "--target", "net.py", "--steps", "2", "--paths", "2", "--format", "json", "--output", "cost.json"])
    assert left.value.code == 0
    result = json.loads((tmp_path / "cost.json").read_text())["result"]
    assert result["target"] == "net.py:build"
    assert len(result["on"]["seconds"]) == len(result["off"]["seconds"]) == 2
    assert "cost net.py:build: both wraps … ok (" in capsys.readouterr().err


def test_a_target_that_raises_is_one_line_and_a_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    (tmp_path / "net.py").write_text(HEAD.format(forward="raise KeyError('no such atom')"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(["cost", "--target", "net.py"])
    assert left.value.code == 2
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: ")
