"""Two runs print the same bytes, whatever the hash seed: the command, in processes of its own, on a real trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TIMELESS = ("github", "gitlab", "junit", "markdown", "sarif")

TARGET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)
        self.spare = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("a", "b", "c")})

    def forward(self, x):
        y = self.body(x) * self.gate(x).detach()
        return self.spare["c"](y) if y.sum() > 0 else y


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""

# The command for each format, with one trace for all of them; a line of NULs parts their outputs.
COMMANDS = """
import functools, sys
from ddplint import cli, worker

answers = {}
trace = worker.run

def run(request, **options):
    if repr(request) not in answers:
        answers[repr(request)] = trace(request, **options)
    return answers[repr(request)]

worker.run = run
for format in sys.argv[1:]:
    try:
        cli.main(["check", "--target", "target.py", "--format", format])
    except SystemExit as ended:
        sys.stdout.write(f"\\0{ended.code}\\0")
        sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the command runs in."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "target.py").write_text(TARGET)
    return folder


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[dict[str, tuple[str, str]]]:
    """For each of two runs, what every format printed, and the exit code."""
    formats = (*TIMELESS, "json")
    found = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", COMMANDS, *formats],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        parts = done.stdout.split("\0")
        found.append(dict(zip(formats, zip(parts[::2], parts[1::2], strict=False), strict=True)))
    return found


@pytest.mark.parametrize("format", TIMELESS)
def test_the_bytes_are_the_same(runs: list[dict[str, tuple[str, str]]], format: str) -> None:
    first, second = (run[format] for run in runs)
    assert first == second
    assert first[1] == "1"
    assert "DDP201" in first[0]


def test_json_differs_in_its_seconds_alone(runs: list[dict[str, tuple[str, str]]]) -> None:
    documents = [json.loads(run["json"][0]) for run in runs]
    for document in documents:
        (result,) = document["results"]
        assert result["trace"].pop("seconds") > 0
        assert result["rehearsal"].pop("seconds") > 0
    assert documents[0] == documents[1]


@pytest.mark.parametrize("format", TIMELESS)
def test_no_path_of_this_machine_is_in_a_report(runs: list[dict[str, tuple[str, str]]], folder: Path, format: str) -> None:
    text = runs[0][format][0]
    assert "target.py" in text
    assert not [path for path in (folder, ROOT) if str(path) in text]
