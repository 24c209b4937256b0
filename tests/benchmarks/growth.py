"""Trace, graph and usage of a chain of so many operations: ``python growth.py NODES one|many``, in a process of its own.

Prints one JSON object: ``seconds`` of the whole analysis without rehearsal, ``trace`` of them in ``trace.seconds``, and
``bytes`` by which the process's peak has grown over that of a chain of 100.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from ddplint.analyse import analyse
from ddplint.analysis import Analysis
from ddplint.request import Request
from ddplint.rules import TargetSpec

MODELS = Path(__file__).resolve().parent / "models"
SMALL = 100


def analysed(nodes: int, parameters: bool) -> Analysis:
    """One path of one rank, without rehearsal."""
    kwargs = {"nodes": nodes, "parameters": parameters}
    target = TargetSpec("chain.py:build", kwargs, base=str(MODELS), from_module=True)
    return analyse(Request(target, device="meta", paths=1, ranks=1, steps=1, rehearse=False))


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def main(nodes: int, parameters: bool) -> None:
    """Print what a chain of ``nodes`` takes."""
    analysed(SMALL, parameters)
    before, start = peak(), time.perf_counter()
    found = analysed(nodes, parameters)
    seconds = time.perf_counter() - start
    assert found.trace.nodes >= nodes
    print(json.dumps({"seconds": seconds, "trace": found.trace.seconds, "bytes": peak() - before}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "many")
