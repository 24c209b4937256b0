"""One command in a process of its own: its time, its peak memory and what it printed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LIMIT = 600.0  # seconds


@dataclass(frozen=True, slots=True)
class Ran:
    """``seconds`` of wall time, ``peak`` bytes of the largest process; ``out`` is the JSON it printed, or ``fails``."""

    seconds: float
    peak: int
    out: dict[str, Any]


def run(command: Sequence[str], limit: float = LIMIT) -> Ran:
    """Run ``command`` with this Python, in the environment of a user who has set no number of threads."""
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *command], stdout=output, stderr=subprocess.DEVNULL, env=environment, start_new_session=True
        )
        status, usage = _ended(process.pid, start + limit)
        seconds = time.perf_counter() - start
        output.seek(0)
        text = output.read().decode(errors="replace")
    unit = 1 if sys.platform == "darwin" else 1024
    return Ran(seconds, usage.ru_maxrss * unit, _out(status, text, limit))


def _ended(pid: int, deadline: float) -> tuple[int | None, Any]:
    """The exit code and resources of the process and all that it has waited for; None: it was out of time."""
    late = False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            return (None if late else os.waitstatus_to_exitcode(status)), usage
        if not late and time.perf_counter() > deadline:
            late = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.002)


def _out(status: int | None, text: str, limit: float) -> dict[str, Any]:
    if status is None:
        return {"fails": f"no end after {limit:g} s"}
    if status < 0:
        return {"fails": f"ended by {signal.Signals(-status).name}"}
    try:
        found: dict[str, Any] = json.loads(text[text.index("{") :])
    except ValueError:
        return {"fails": f"exit code {status}"}
    return found
