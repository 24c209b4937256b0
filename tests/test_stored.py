"""``ddplint ckpt`` and ``ddplint strip`` by the command line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ddplint.reference import finetune
from ddplint.trace.run import seed_everything
from tests.checkpoint.files import save_safetensors

ROOT = Path(__file__).resolve().parent.parent

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 2)
        self.spare = nn.Linear(4, 4)
        self.cut = nn.Linear(4, 4)

    def forward(self, x):
        x = self.drop(self.norm(self.body(x)))
        return self.head(x + CUT)


def build():
    return Net()


def inputs():
    return (torch.ones(3, 4) * torch.arange(3.0)[:, None],), {}


def loss(output):
    return output.sum()
"""
RULES = """
[checkpoint]
name = "small"
detect = ["body.*", "spare.*"]

[target]
factory = "net.py:build"
inputs = "net.py:inputs"
loss = "net.py:loss"

[[unused]]
params = ["spare.**"]
reason = "not called"
action = "allow"
"""


def ddplint(folder: Path, *arguments: str) -> tuple[int, str, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ddplint", *arguments]
    ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" not in ended.stderr
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose model has a spare layer, with a checkpoint of two steps of AdamW in two formats."""
    (tmp_path / "net.py").write_text(NET.replace("CUT", "0"))
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "small.toml").write_text(RULES)
    (tmp_path / "pyproject.toml").write_text("[tool.ddplint]\n")
    model = built(tmp_path)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}, tmp_path / "a.pt")
    save_safetensors(tmp_path / "a.safetensors", dict(model.state_dict()), {"format": "pt"})
    return tmp_path


def built(folder: Path) -> Any:
    space: dict[str, Any] = {}
    exec(compile((folder / "net.py").read_text(), "net.py", "exec"), space)
    torch.manual_seed(0)
    return space["build"]()


def test_a_table_and_what_is_dead(project: Path) -> None:
    code, out, _ = ddplint(project, "ckpt", "a.pt")
    assert code == 1
    assert "a.pt: torch.save, 13 tensors at model" in out
    assert "checkpoint type: small (by its keys)" in out
    wanted = ("loaded", "dead", "dropped", "fresh")
    rows = {words[0]: words[1:] for line in out.splitlines() if (words := line.split()) and words[0] in wanted}
    assert rows == {
        "loaded": ["13", "352", "B"],
        "dead": ["4", "160", "B"],
        "dropped": ["0", "-"],
        "fresh": ["0", "-"],
    }
    assert "optimizer state in the file: 0 B for them" in out
    assert "DDP's all-reduce: 160 B of zeros a step" in out
    assert "DDP401 dead-weights (warning)" in out


def test_the_same_as_json(project: Path) -> None:
    code, out, _ = ddplint(project, "ckpt", "a.safetensors", "--ckpt", "small", "--format", "json")
    found = json.loads(out)
    assert (code, found["schema_version"], found["checkpoint"]["format"]) == (1, 1, "safetensors")
    assert found["checkpoint"]["totals"]["dead"] == {"tensors": 4, "bytes": 160}
    assert {t["key"] for t in found["checkpoint"]["tensors"] if t["dead"]} == {
        f"{layer}.{name}" for layer in ("spare", "cut") for name in ("weight", "bias")
    }
    assert [(r["ckpt"], r["detected"], {f["code"] for f in r["findings"]}) for r in found["results"]] == [
        ("small", False, {"DDP401"})
    ]


def test_what_does_not_fit_is_named(project: Path) -> None:
    state = built(project).state_dict()
    state["body.weight"] = torch.zeros(8, 4)
    state["other"] = state.pop("head.bias")
    torch.save({f"module.{key}": value for key, value in state.items()}, project / "b.pt")
    code, out, _ = ddplint(project, "ckpt", "b.pt", "--target", "net.py")
    assert code == 1
    assert "every key begins with `module.`, which is left out" in out
    assert "DDP402 dropped-keys (info)" in out
    assert "`module.other`" in out
    assert "`body.weight` [8, 4] for [4, 4]" in out
    assert "DDP403 fresh-parameters (info)\n  1 tensor of the model (8 B) is not in b.pt: `head.bias`" in out


def test_wrong_calls_are_one_line_and_exit_2(project: Path) -> None:
    (project / "bad.pt").write_bytes(b"PK\x03\x04 and no more")
    for arguments, wanted in (
        (("ckpt", "missing.pt"), "missing.pt: can't be read: No such file or directory"),
        (("ckpt", "bad.pt"), "bad.pt: can't be read as a checkpoint: its zip archive is not whole"),
        (("ckpt", "a.pt", "--ckpt", "small", "--target", "net.py"), "--ckpt and --target exclude each other"),
        (("ckpt", "a.pt", "--key", "other"), "--key: no state dict at 'other'; There are: model"),
        (("ckpt", "a.pt", "--ckpt", "large"), "large"),
        (("strip", "a.pt", "-o", "a.pt"), "a.pt: is the file itself"),
        (("strip", "a.pt", "-o", "missing/b.pt"), "missing: no such folder"),
        (("strip", "a.pt", "-o", "rules"), "rules: is a folder"),
        (("strip", "a.pt", "-o", "net.py"), "net.py: exists already"),
    ):
        code, out, err = ddplint(project, *arguments)
        assert (code, out) == (2, "")
        assert wanted in err
        assert len(err.splitlines()) == 1
    assert sorted(p.name for p in project.iterdir() if p.name.startswith(".")) == []


def test_stripping_keeps_all_else_as_it_is(project: Path) -> None:
    before = {name: hashlib.sha256((project / name).read_bytes()).hexdigest() for name in ("a.pt", "a.safetensors")}
    code, out, _ = ddplint(project, "strip", "a.pt", "-o", "b.pt")
    assert code == 0
    assert "b.pt: 2 tensors less (80 B), 11 kept" in out
    assert "optimizer state: 10 -> 8 parameters, numbered anew" in out
    assert "proven" in out
    assert "left in: 2 dead parameters that no rule names (DDP101)" in out
    old, new = (torch.load(project / name, weights_only=True) for name in ("a.pt", "b.pt"))
    assert set(old["model"]) - set(new["model"]) == {"spare.weight", "spare.bias"}
    assert list(new["model"]) == [key for key in old["model"] if not key.startswith("spare")]
    assert all(torch.equal(new["model"][key], old["model"][key]) for key in new["model"])
    assert new["model"]._metadata == old["model"]._metadata
    assert new["epoch"] == 2
    assert new["optimizer"]["param_groups"][0]["params"] == list(range(8))
    code, _, _ = ddplint(project, "strip", "a.safetensors", "-o", "b.safetensors", "--ckpt", "small")
    assert code == 0
    assert (project / "b.safetensors").stat().st_size < (project / "a.safetensors").stat().st_size
    code, out, _ = ddplint(project, "ckpt", "b.safetensors", "--ckpt", "small", "--format", "json")
    assert json.loads(out)["checkpoint"]["totals"]["loaded"]["tensors"] == 11
    after = {name: hashlib.sha256((project / name).read_bytes()).hexdigest() for name in before}
    assert after == before


def test_training_goes_on_from_the_stripped_optimizer_as_from_the_whole(project: Path) -> None:
    assert ddplint(project, "strip", "a.pt", "-o", "b.pt")[0] == 0
    weights = []
    for name, gone in (("a.pt", ()), ("b.pt", ("spare",))):
        saved = torch.load(project / name, weights_only=True)
        model = built(project)
        model.load_state_dict(saved["model"], strict=not gone)
        kept = [p for n, p in model.named_parameters() if not n.startswith(gone or "nothing")]
        optimizer = torch.optim.AdamW(kept, lr=0.1)
        optimizer.load_state_dict(saved["optimizer"])
        torch.manual_seed(1)
        loss: torch.Tensor = model(torch.randn(3, 4)).sum()
        torch.autograd.backward(loss)
        optimizer.step()
        weights.append({n: p.detach() for n, p in model.named_parameters() if not n.startswith("spare")})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("cut", "entry", "wanted"),
    [
        ("self.spare(x)", "spare.**", "`spare.weight` is documented as never used, and the trace says: always (DDP102)"),
        ("self.spare(x).detach()", "spare.**", "the values of `spare` are used, if not trained (severed)"),
        ("0 * self.spare(x).detach().sum()", "spare.**", "are used, if not trained"),
        ("0", "other.**", "it documents nothing as never used"),
    ],
)
def test_what_is_not_sure_to_be_dead_is_not_stripped(project: Path, cut: str, entry: str, wanted: str) -> None:
    (project / "net.py").write_text(NET.replace("CUT", cut))
    (project / "rules" / "small.toml").write_text(RULES.replace("spare.**", entry))
    code, out, err = ddplint(project, "strip", "a.pt", "--ckpt", "small", "-o", "b.pt")
    assert (code, out) == (2, "")
    assert wanted in err
    assert not (project / "b.pt").exists()
    assert not [p for p in project.iterdir() if p.name.endswith(".tmp")]


def test_values_that_the_trace_does_not_follow_fail_the_proof(project: Path) -> None:
    """numpy's copy of a weight: no edge of the graph, but the output changes with it."""
    cut = "float(self.spare.weight.detach().numpy().sum()) * 0 + 0"
    (project / "net.py").write_text(NET.replace("CUT", cut))
    code, _, err = ddplint(project, "strip", "a.pt", "--ckpt", "small", "-o", "b.pt")
    assert code == 2
    assert "something else without them" in err
    assert not (project / "b.pt").exists()


def test_an_optimizer_of_other_parameters_is_refused(project: Path) -> None:
    saved = torch.load(project / "a.pt", weights_only=True)
    saved["optimizer"]["param_groups"][0]["params"] = [0, 1, 2]
    torch.save(saved, project / "c.pt")
    code, _, err = ddplint(project, "strip", "c.pt", "-o", "b.pt")
    assert code == 2
    assert "is of 3 parameters, the model has 10, 10 of them trainable: which is which is open" in err


def test_the_reference_models_hybrid_checkpoint(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = finetune.build(checkpoint="hybrid")
    optimizer = torch.optim.AdamW(model.parameters())
    args, kwargs = finetune.inputs()
    torch.autograd.backward(finetune.loss(model(*args, **kwargs)))
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "hybrid.pt")
    code, out, err = ddplint(tmp_path, "strip", "hybrid.pt", "-o", "small.pt")
    assert code == 0, err
    assert "94 tensors less (51.9 KiB), 199 kept" in out
    saved = torch.load(tmp_path / "small.pt", weights_only=True)
    dead = set(model.state_dict()) - set(saved["model"])
    share = sum(4 * p.numel() for name, p in model.named_parameters() if name in dead)
    assert (tmp_path / "hybrid.pt").stat().st_size - (tmp_path / "small.pt").stat().st_size > share
    kept = [p for name, p in model.named_parameters() if name not in dead]
    fresh = torch.optim.AdamW(kept)
    fresh.load_state_dict(saved["optimizer"])
    again = finetune.build(checkpoint="hybrid")
    assert set(again.load_state_dict(saved["model"], strict=False).missing_keys) == dead
    outputs = []
    for one in (model, again):
        seed_everything(3)
        outputs.append(finetune.loss(one(*args, **kwargs)))
    assert torch.equal(*outputs)
