"""What a real ``DistributedDataParallel`` of two processes over gloo does with a target file.

``run`` starts one pair of processes and puts one target after the other to them, each with a fresh process
group, so that importing torch is paid once. A pair that does not answer in time is killed and replaced.
This file is also the program that the two processes run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Literal

Outcome = Literal["ok", "reduction_error", "ready_twice", "hang", "other"]

SETTINGS: dict[str, dict[str, bool]] = {
    "find_unused_parameters=False": {},
    "find_unused_parameters=True": {"find_unused_parameters": True},
    "static_graph=True": {"static_graph": True},
}
RANKS = 2
GROUP_TIMEOUT = 5.0  # seconds a rank waits in a collective for the other one


@dataclass(frozen=True, slots=True)
class Observed:
    """DDP's outcome for each setting, what each rank said, and the parameters without a gradient.

    ``never`` and ``sometimes`` come from plain backward runs of the unwrapped model on rank 0: the trainable
    parameters whose ``.grad`` stayed None in every run, and in some.
    """

    outcomes: dict[str, Outcome]
    details: dict[str, tuple[str, ...]]
    never: tuple[str, ...]
    sometimes: tuple[str, ...]


def classify(messages: Iterable[str]) -> Outcome:
    """One outcome from what the ranks said ("ok", "silent", or the text of an error).

    The texts are the reducer's own, torch/csrc/distributed/c10d/reducer.cpp. One rank's DDP error makes the
    other one wait for it, so such an error goes before silence.
    """
    texts = list(messages)
    if any("ready only once" in text for text in texts):
        return "ready_twice"
    if any("finished reduction" in text or "graph has changed" in text for text in texts):
        return "reduction_error"
    waited = ("silent", "Timed out", "timeout", "Connection closed", "Connection reset")
    if any(text != "ok" and not any(word in text for word in waited) for text in texts):
        return "other"
    return "ok" if all(text == "ok" for text in texts) else "hang"


class Pair:
    """Two running ranks that take one job at a time."""

    def __init__(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        self.ranks = [
            subprocess.Popen(
                [sys.executable, __file__, str(rank)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            for rank in range(RANKS)
        ]
        self.answers: queue.Queue[tuple[int, dict[str, Any] | None]] = queue.Queue()
        for rank, process in enumerate(self.ranks):
            assert process.stdout is not None
            threading.Thread(target=self._read, args=(rank, process.stdout), daemon=True).start()
        for _ in self.ranks:
            self.answers.get(timeout=120)  # torch is imported

    def _read(self, rank: int, stream: IO[str]) -> None:
        for line in stream:
            self.answers.put((rank, json.loads(line)))
        self.answers.put((rank, None))

    def ask(self, job: dict[str, Any], limit: float) -> list[dict[str, Any] | None]:
        """Each rank's answer to ``job``; None for one that died or said nothing within ``limit`` seconds."""
        for process in self.ranks:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job) + "\n")
            process.stdin.flush()
        answers: list[dict[str, Any] | None] = [None] * RANKS
        for _ in self.ranks:
            try:
                rank, answer = self.answers.get(timeout=limit)
            except queue.Empty:
                break
            answers[rank] = answer
        return answers

    def close(self) -> None:
        """End both processes."""
        for process in self.ranks:
            process.kill()
            process.wait()


def run(
    files: Sequence[Path], settings: Sequence[str] = tuple(SETTINGS), iterations: int = 3, limit: float = 30.0
) -> dict[Path, Observed]:
    """What real DDP does with each target file (``build``, ``inputs``, ``loss``, …).

    ``settings`` are keys of SETTINGS; ``iterations`` is how many forwards and backwards each gets; ``limit``
    is the time in seconds that a rank may need for one setting of one file. Raises RuntimeError for a target
    that does not run without DDP.
    """
    observed = {}
    pair: Pair | None = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, file in enumerate(files):
                details: dict[str, tuple[str, ...]] = {}
                unused: dict[str, list[str]] = {"never": [], "sometimes": []}
                for setting in ("", *settings):
                    store = str(Path(folder) / f"{number}-{setting}")
                    job = {"file": str(file), "setting": setting, "iterations": iterations, "store": store}
                    pair = pair or Pair()
                    answers = pair.ask(job, limit)
                    if any(answer is None for answer in answers):
                        pair.close()
                        pair = None
                    said = tuple("silent" if answer is None else answer["said"] for answer in answers)
                    if setting:
                        details[setting] = said
                    elif answers[0] is None or said[0] != "ok":
                        raise RuntimeError(f"{file}: the model does not run without DDP: {said[0]}")
                    else:
                        unused = answers[0]
                outcomes = {setting: classify(said) for setting, said in details.items()}
                observed[file] = Observed(outcomes, details, tuple(unused["never"]), tuple(unused["sometimes"]))
    finally:
        if pair is not None:
            pair.close()
    return observed


def _load(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("case", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["case"] = module
    spec.loader.exec_module(module)
    return module


def _loss(case: ModuleType, model: Any, rank: int, number: int) -> Any:
    """The loss of one iteration; seeds, and the variant if there are any, depend on rank and number."""
    import random

    import numpy
    import torch

    seed = 1000 * rank + number
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)
    if hasattr(case, "step"):
        return case.step(model)
    variants = list(case.variants()) if hasattr(case, "variants") else [case.inputs]
    args, kwargs = variants[(number + rank) % len(variants)]()
    return case.loss(model(*args, **kwargs))


def _plain(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Backward runs of the unwrapped model: which trainable parameters stayed without a gradient."""
    case = _load(job["file"])
    model = case.build().train()
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    without = dict.fromkeys(trainable, 0)
    for number in range(job["iterations"]):
        _loss(case, model, rank, number).backward()
        for name, parameter in trainable.items():
            without[name] += parameter.grad is None
            parameter.grad = None
    return {
        "said": "ok",
        "never": [name for name, count in without.items() if count == job["iterations"]],
        "sometimes": [name for name, count in without.items() if 0 < count < job["iterations"]],
    }


def _wrapped(job: dict[str, Any], rank: int) -> dict[str, Any]:
    """Iterations of the wrapped model: "ok", or the error with the stage it came in."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    case = _load(job["file"])
    store = torch._C._distributed_c10d.FileStore(job["store"], RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=timedelta(seconds=GROUP_TIMEOUT))
    number, stage = 0, "wrap"
    model, loss, settings = None, None, SETTINGS[job["setting"]]
    try:
        torch.manual_seed(0)
        model = DistributedDataParallel(
            case.build().train(),
            find_unused_parameters=settings.get("find_unused_parameters", False),
            static_graph=settings.get("static_graph", False),
        )
        for number in range(job["iterations"]):
            stage = "forward"
            loss = _loss(case, model, rank, number)
            stage = "backward"
            loss.backward()
            model.zero_grad()
    except Exception as error:  # whatever the model or the reducer raised is this run's result
        return {"said": f"{stage} {number + 1}: {type(error).__name__}: {str(error)[:300]}"}
    finally:
        model = loss = None  # the reducer goes before its process group
        dist.destroy_process_group()
    return {"said": "ok"}


def _serve(rank: int) -> None:
    """Answer jobs from stdin, one JSON line each, until it closes. What a model prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    import torch._dynamo  # DistributedDataParallel imports it when it wraps: that is not to be on a job's time
    import torch.nn.parallel

    torch.set_num_threads(1)
    print(json.dumps({"said": torch.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = _wrapped(job, rank) if job["setting"] else _plain(job, rank)
        except Exception as error:  # a model that does not even run is reported to the test, not lost
            answer = {"said": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
