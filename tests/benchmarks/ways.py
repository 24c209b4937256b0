"""What a user can do to find unused parameters, each way a process of its own: ``python ways.py WAY MODEL``.

Prints one JSON object: ``seconds`` of each part, ``unused`` (how many trainable parameters the way found without a
gradient; None where it can't tell). What the way can't do is ``{"fails": the error's first line}``.
"""

from __future__ import annotations

import time

START = time.perf_counter()

import contextlib  # noqa: E402  # the clock starts before anything is imported
import importlib.util  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402

MODELS = Path(__file__).resolve().parent / "models"
Seconds = dict[str, float]
DDP_STEPS = 2  # the reducer says at the second forward what the first iteration left out


@contextlib.contextmanager
def timed(seconds: Seconds, part: str) -> Iterator[None]:
    """Put the time of the block under ``part``."""
    start = time.perf_counter()
    yield
    seconds[part] = time.perf_counter() - start


def model_file(name: str) -> Any:
    """The module ``models/<name>.py``: build, inputs, loss."""
    spec = importlib.util.spec_from_file_location(name, MODELS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def walk(loss: torch.Tensor) -> set[int]:
    """The ids of the parameters whose gradient accumulators are behind ``loss``."""
    found: set[int] = set()
    stack: list[Any] = [loss.grad_fn]
    seen = set()
    while stack:
        function = stack.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        if hasattr(function, "variable"):
            found.add(id(function.variable))
        stack.extend(following for following, _ in function.next_functions)
    return found


def forward(module: Any, device: str, seconds: Seconds) -> tuple[torch.nn.Module, torch.Tensor]:
    """Model and loss, both on ``device``."""
    with timed(seconds, "build"), torch.device(device):
        model: torch.nn.Module = module.build()
    with timed(seconds, "forward"):  # what it draws itself (layer drop) is on the CPU: a value can be read
        args, kwargs = moved(module.inputs(), device)
        loss: torch.Tensor = module.loss(model(*args, **kwargs))
    return model, loss


def moved(inputs: Any, device: str) -> Any:
    """``inputs`` with every tensor on ``device``."""
    return torch.utils._pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, inputs)


def meta_forward(module: Any, seconds: Seconds) -> int:
    """The floor: build on meta, one forward, walk autograd's graph."""
    model, loss = forward(module, "meta", seconds)
    with timed(seconds, "walk"):
        found = walk(loss)
    return sum(p.requires_grad and id(p) not in found for p in model.parameters())


def meta_backward(module: Any, seconds: Seconds) -> int:
    """The floor of a rehearsal: build on meta, forward and backward."""
    model, loss = forward(module, "meta", seconds)
    return backward(model, loss, seconds)


def real(module: Any, seconds: Seconds) -> int:
    """Forward and backward on the CPU, and ``p.grad is None``."""
    model, loss = forward(module, "cpu", seconds)
    return backward(model, loss, seconds)


def backward(model: torch.nn.Module, loss: torch.Tensor, seconds: Seconds) -> int:
    """How many trainable parameters have no gradient after ``loss.backward()``."""
    with timed(seconds, "backward"):
        loss.backward()  # type: ignore[no-untyped-call]
        return sum(p.requires_grad and p.grad is None for p in model.parameters())


def export(module: Any, seconds: Seconds) -> int:
    """``torch.export`` of the model on meta, and the parameters that no node of its graph takes."""
    with timed(seconds, "build"), torch.device("meta"):
        model = module.build()
    args, kwargs = moved(module.inputs(), "meta")
    with timed(seconds, "export"):
        program = torch.export.export(model, args, kwargs, strict=False)
    taken = {node.name for node in program.graph.nodes if node.op == "placeholder" and node.users}
    names = program.graph_signature.inputs_to_parameters
    used = {target for name, target in names.items() if name in taken}
    return sum(p.requires_grad and name not in used for name, p in model.named_parameters())


def ddp_detail(module: Any, seconds: Seconds) -> int:
    """As ``ddp``, with the level DETAIL: torch 2.13 ends it by SIGSEGV over gloo, in DDP's constructor."""
    return ddp(module, seconds, "DETAIL")


def ddp(module: Any, seconds: Seconds, level: str = "INFO") -> int:
    """Two processes in ``DistributedDataParallel`` over gloo; TORCH_DISTRIBUTED_DEBUG=INFO, too, names what is unused."""
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    with timed(seconds, "ddp"), tempfile.TemporaryDirectory() as folder:
        context = torch.multiprocessing.get_context("spawn")
        ranks = [context.Process(target=_rank, args=(rank, Path(module.__file__).stem, folder)) for rank in (0, 1)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
        said = Path(folder, "said")
        if not said.exists():
            raise RuntimeError(f"the process of rank 0 left with exit code {ranks[0].exitcode}")
        text = said.read_text()
    if text == "":
        return 0
    listed = re.search(r"Parameters which did not receive grad for rank \d+: (.*)", text)
    if listed is None:
        raise RuntimeError(text)
    return len(listed[1].split(", "))


def _rank(rank: int, name: str, folder: str) -> None:
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    module = model_file(name)
    store = FileStore(os.path.join(folder, "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    text = ""
    try:
        torch.manual_seed(0)
        model = torch.nn.parallel.DistributedDataParallel(module.build())
        for _ in range(DDP_STEPS):
            args, kwargs = module.inputs()
            module.loss(model(*args, **kwargs)).backward()
            model.zero_grad()
    except RuntimeError as error:
        text = str(error)
    if rank == 0:
        Path(folder, "said").write_text(text)
    os._exit(0)  # the other may have ended before: no farewell is waited for


WAYS: dict[str, Callable[[Any, Seconds], int | None]] = {
    "meta-forward": meta_forward,
    "meta-backward": meta_backward,
    "real": real,
    "export": export,
    "ddp": ddp,
    "ddp-detail": ddp_detail,
}


def main(way: str, name: str) -> None:
    """Go ``way`` with the model, and print what it took."""
    seconds = {}
    module = model_file(name)
    seconds["imports"] = time.perf_counter() - START
    torch.manual_seed(0)
    try:
        unused = WAYS[way](module, seconds)
    except Exception as error:
        print(json.dumps({"fails": f"{type(error).__name__}: {error}".split("\n", 1)[0]}))  # noqa: T201
        return
    seconds["all"] = time.perf_counter() - START
    print(json.dumps({"seconds": seconds, "unused": unused}))  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
