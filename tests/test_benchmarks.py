"""What the benchmarks are made of: processes measured, medians, ratios and the page. Nothing is timed here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import table
from tests.benchmarks.bench_ways import CASES, WAYS, command
from tests.benchmarks.measure import HERE, run


def made(model: str, way: str, seconds: float = 2.0, **out: Any) -> dict[str, Any]:
    """One run as ``bench_ways.py`` notes it."""
    parts = {"seconds": {"forward": 0.5, "backward": 0.5}, "unused": 3}
    return {
        "model": model,
        "way": way,
        "seconds": seconds,
        "peak": 2**20,
        "out": out or parts,
        "load": 1.0,
        "stack": 8 * 2**20,
    }


def check(model: str, seconds: float = 3.0) -> dict[str, Any]:
    """A run of ``ddplint check``."""
    counts = {"never": 3, "sometimes": 0}
    return made(model, "check", seconds, counts=counts, trace={"seconds": 0.25}, rehearsal={"seconds": 6.0, "iterations": 3})


FILES = [
    {
        "machine_info": {"machine": "x86", "system": "Linux", "release": "6", "python_version": "3.11"},
        "datetime": "2026-12-01T",
    }
]


def test_what_a_process_printed_is_kept_and_its_end_is_said(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, signal, sys\nexec(sys.argv[1])")
    ran = run([str(script), "print('note'); print('{\"unused\": 1}')"])
    assert ran.out == {"unused": 1}
    assert ran.peak > 2**20
    assert run([str(script), "os.kill(os.getpid(), signal.SIGSEGV)"]).out == {"fails": "ended by SIGSEGV"}
    assert run([str(script), "sys.exit(3)"]).out == {"fails": "exit code 3"}
    assert run([str(script), "import time; time.sleep(100)"], limit=0.2).out == {"fails": "no end after 0.2 s"}


def test_every_model_has_a_file_and_every_way_a_name() -> None:
    assert {f"{model}.py" for model, _ in CASES} | {"chain.py"} == {file.name for file in (HERE / "models").glob("*.py")}
    assert set(WAYS) == set(table.WAYS)
    assert {model for model, _ in CASES} == set(table.NAMES)
    assert "--no-cache" in command("bert_base", "check")


def test_the_median_leaves_out_what_failed() -> None:
    runs = [made("bert_base", "real", 1.0), made("bert_base", "real", 9.0), made("bert_base", "real", 2.0)]
    assert table.median(runs, table.whole) == 2.0
    assert table.median([made("bert_base", "real", 1.0, fails="RuntimeError: no")], table.whole) is None


def test_the_page_has_both_numbers_of_a_ratio() -> None:
    runs = [check("bert_base"), made("bert_base", "meta-forward"), check("bert_large"), made("bert_large", "real", 50.0)]
    lines = list(table.page(FILES, runs))
    assert "| BERT-base: cold check : script with one meta forward | 3.00 s | 2.00 s | 1.50 | at most 1.25 |" in lines
    text = (
        "| BERT-large: trace, graph, usage : real forward and backward | 0.25 s | 1.00 s | 4.0 | at least 20 times faster |"
    )
    assert text in lines
    assert "| Llama-70B shape: trace, graph, usage : one meta forward | not measured | | | at most 1.5 |" in lines
    assert "| `ddplint check`, nothing cached | 3.0 | 1 MiB | 3 | 1 |" in lines
    assert "| limit of the stack | 8 MiB |" in lines


def test_what_failed_is_in_the_table_with_its_reason() -> None:
    lines = list(table.page(FILES, [made("reference", "export", 1.0, fails="GuardOnDataDependentSymNode: no")]))
    assert "| `torch.export` on meta | fails: GuardOnDataDependentSymNode: no | | | 1 |" in lines


def test_growth_is_held_against_the_shortest_chain() -> None:
    facts = {"kind": "one", "load": 1.0, "stack": -1}
    runs = [
        {**facts, "nodes": nodes, "out": {"seconds": seconds, "bytes": held}}
        for nodes, seconds, held in ((10, 1e-3, 1000), (100, 2e-2, 11000))
    ]
    lines = list(table.page(FILES, runs))
    assert "| 10 | one | 100 | 1.00 | 100 | 1.00 | 1 |" in lines
    assert "| 100 | one | 200 | 2.00 | 110 | 1.10 | 1 |" in lines
    assert "| limit of the stack | none |" in lines


@pytest.mark.parametrize("way", ["meta-forward", "meta-backward", "real", "export"])
def test_a_way_finds_what_is_known(way: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.benchmarks import ways

    (tmp_path / "small.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "class Small(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a, self.dead = nn.Linear(2, 2), nn.Linear(2, 2)\n"
        "    def forward(self, x):\n"
        "        return self.a(x)\n\n"
        "def build():\n    return Small()\n\n"
        "def inputs():\n    return (torch.ones(1, 2),), {}\n\n"
        "def loss(output):\n    return output.sum()\n"
    )
    monkeypatch.setattr(ways, "MODELS", tmp_path)
    ways.main(way, "small")
    assert '"unused": 2' in capsys.readouterr().out
    assert "small" not in sys.modules
