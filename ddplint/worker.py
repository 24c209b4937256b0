"""Runs an analysis in a process of its own: a target prints, hangs, exits or crashes there, and not here.

``run`` is all there is. It never imports torch; the other half is ``ddplint.worker_child``. What the worker
writes to stdout and stderr goes to this process's stderr, its answer comes through a pipe, and nothing of it
is left running.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import select
import signal
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ddplint
from ddplint.analysis import Analysis, Location
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.inputs import recorder, unseen
from ddplint.live import Live
from ddplint.request import Request

ENGINE = "ddplint.analyse:analyse"
TIMEOUT = 300.0  # seconds

RECORDED = "recorded"  # the worker is to say what it has looked at

_MARK = b"ddplint "
_TOKEN = "DDPLINT_WORKER"
_GRACE = 2.0  # seconds for the worker to go by itself once nothing more is to come from it
_PACKAGE = Path(ddplint.__file__).resolve().parent
# The package's folder is on sys.path for the first import only: it may hold names of the standard library.
_START = (
    f"import sys; sys.path.insert(0, {str(_PACKAGE.parent)!r}); import ddplint; del sys.path[0]; "
    "from ddplint.worker_child import main; main()"
)


class EngineError(DdplintError):
    """The engine raised what it should not: a bug of ddplint. ``traceback`` is the worker's, as text."""

    def __init__(self, what: str, *, traceback: str, where: str = "") -> None:
        super().__init__(what, where=where, fix="this is a bug of ddplint: --debug shows the traceback to report")
        self.traceback = traceback


@dataclass(frozen=True, slots=True)
class _Worker:
    """A running worker: the keeper's process, the answer's pipe, the file of last places, what it runs."""

    keeper: subprocess.Popen[bytes]
    answer: int
    record: IO[bytes]
    target: str


def run(
    request: Request,
    *,
    timeout: float = TIMEOUT,
    verbose: bool = False,
    quiet: bool = False,
    live: Live | None = None,
    engine: str = ENGINE,
) -> Analysis:
    """The engine's answer to ``request``, as ``ask`` gets it."""
    return Analysis.from_json(ask(request, timeout=timeout, verbose=verbose, quiet=quiet, live=live, engine=engine))


def ask(
    request: Request,
    *,
    timeout: float = TIMEOUT,
    verbose: bool = False,
    quiet: bool = False,
    live: Live | None = None,
    engine: str = ENGINE,
) -> dict[str, Any]:
    """The engine's answer to ``request`` as JSON has it, from a process of its own.

    ``timeout`` is in seconds, from the start of the process. ``verbose`` lets the warnings of Python and
    PyTorch through to stderr; ``quiet`` drops all that the target prints; ``live`` gets it, and what the worker says it is
    doing, in the place of stderr. ``engine`` is "module:function",
    Request -> what has a ``to_json``. Raises DdplintError as the engine did, or where the worker left without an answer:
    out of time, by an exit, by a signal, with its pipe closed or spoilt; EngineError on any other exception
    of the engine.
    """
    printed = subprocess.DEVNULL if quiet or not _is_open(2) else live.output if live else 2
    with unseen(), _started(request, verbose, printed, engine) as worker:
        outcome = _received(worker, time.monotonic() + timeout, timeout, live)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.keeper.wait(_GRACE)
    if "analysis" in outcome:
        answer: dict[str, Any] = outcome["analysis"]
        return answer
    if "error" in outcome:
        raise DdplintError(**outcome["error"])
    if "exit" in outcome:
        raise DdplintError(
            f"the target left with {outcome['exit']['error']}{_at(_places(outcome['exit']))}",
            where=worker.target,
            fix="a target must return",
        )
    place = _places(outcome["bug"])[0]
    raise EngineError(
        f"{outcome['bug']['error']} (at {shown(place.file)}:{place.line} in {place.function})",
        traceback=outcome["bug"]["traceback"],
        where=worker.target,
    )


@contextlib.contextmanager
def _started(request: Request, verbose: bool, output: int, engine: str) -> Iterator[_Worker]:
    """A worker on ``request`` that prints to ``output``; nothing of it is running after the block."""
    answer, answer_end = os.pipe()
    lifeline_end, lifeline = os.pipe()
    with (
        tempfile.TemporaryFile() as record,
        tempfile.TemporaryFile() as message,
        contextlib.ExitStack() as held,
    ):
        held.callback(os.close, answer)
        close_lifeline = contextlib.ExitStack()
        close_lifeline.callback(os.close, lifeline)
        held.push(close_lifeline)
        message.write(json.dumps(request.to_json()).encode())
        message.seek(0)
        ends = (answer_end, record.fileno(), lifeline_end)
        try:
            keeper = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, engine, *map(str, ends), *([RECORDED] if recorder() else [])],
                stdin=message,
                stdout=output,
                stderr=output,
                pass_fds=ends,
                env=_environment(verbose),
                start_new_session=True,
            )
        finally:
            os.close(answer_end)
            os.close(lifeline_end)
        try:
            yield _Worker(keeper, answer, record, request.target.factory)
        finally:
            close_lifeline.close()  # the keeper ends all that is left, also if this process dies here
            try:
                keeper.wait(_GRACE * 2)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()


def _is_open(number: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(number)
        return True
    return False


def _environment(verbose: bool) -> dict[str, str]:
    """The worker's environment: what has to be set before Python starts or torch is imported."""
    environment = {
        "OMP_NUM_THREADS": "1",  # one trace is small; threads would only wait for each other
        **os.environ,
        _TOKEN: uuid.uuid4().hex,
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # the reducer warns that it can't time on meta
        "PYTORCH_JIT": "0",  # TorchScript functions run as Python, where they can be recorded
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
    }
    if not verbose:
        environment |= {"PYTHONWARNINGS": "ignore", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    return environment


def _received(worker: _Worker, deadline: float, timeout: float, live: Live | None) -> dict[str, Any]:
    """The worker's last message, once it is whole. Raises DdplintError if none comes.

    Of those before, ``live`` gets what it is doing, and this process's recorder what it has looked at.
    """
    data = bytearray()
    while True:
        ended = worker.keeper.poll() is not None  # asked first, so that what it wrote before is read below
        wait = min(0.05, max(0.0, deadline - time.monotonic()))
        if select.select([worker.answer], [], [], 0 if ended else wait)[0]:
            piece = os.read(worker.answer, 1 << 20)
            data += piece
            if not _MARK.startswith(bytes(data[: len(_MARK)])):
                raise _spoilt(worker)
            while (message := _whole(data)) is not None:
                try:
                    outcome = dict(json.loads(message))
                except ValueError:
                    raise _spoilt(worker) from None
                recording = recorder()
                if "seen" in outcome:
                    if recording is not None:
                        recording.take(outcome["seen"])
                elif "stage" not in outcome:
                    return outcome
                elif live is not None:
                    live.say(str(outcome["stage"]))
                del data[: len(_MARK) + 8 + len(message)]
            if not piece:
                raise _left(worker)
        elif ended:
            raise _left(worker)
        elif time.monotonic() >= deadline:
            place = _at(_asked_place(worker))
            raise DdplintError(
                f"no answer after {timeout:g} s{place}",
                where=worker.target,
                fix="raise --timeout, or give it smaller example inputs",
            )


def _whole(data: bytearray) -> bytearray | None:
    """The text of a message that has arrived whole, else None."""
    start = len(_MARK) + 8
    length = int.from_bytes(data[len(_MARK) : start])
    return data[start : start + length] if start <= start + length <= len(data) else None


def _spoilt(worker: _Worker) -> DdplintError:
    return DdplintError(
        "the target wrote into the pipe that ddplint's worker answers through",
        where=worker.target,
        fix="a target must write only to files that it opened itself",
    )


def _left(worker: _Worker) -> DdplintError:
    """Why a worker is gone without an answer."""
    try:
        code = worker.keeper.wait(_GRACE)
    except subprocess.TimeoutExpired:
        code = os.EX_IOERR
    place = _at(_recorded_places(worker))
    fix = "a target must return"
    if code == -signal.SIGKILL:
        fix = "the system does that when memory is short: use a smaller model or inputs, or --device meta"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return DdplintError(f"the target's process was ended by {name}{place}", where=worker.target, fix=fix)
    if code == os.EX_IOERR and not place:
        return DdplintError(
            "the target closed the pipe that ddplint's worker answers through",
            where=worker.target,
            fix="a target must close only files that it opened itself",
        )
    return DdplintError(f"the target ended its process with exit code {code}{place}", where=worker.target, fix=fix)


def _asked_place(worker: _Worker) -> list[Location]:
    """Where the worker is now: it writes its Python stack when it is sent SIGUSR1, from inside C code too."""
    number = _record(worker).partition("\n")[0]
    if not number:
        return []  # it has not come so far
    before = size = os.fstat(worker.record.fileno()).st_size
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(number), signal.SIGUSR1)
    for _ in range(20):
        time.sleep(0.05)
        now = os.fstat(worker.record.fileno()).st_size
        if size > before and now == size:
            break
        size = now
    return _recorded_places(worker)


def _record(worker: _Worker) -> str:
    number = worker.record.fileno()
    return os.pread(number, os.fstat(number).st_size, 0).decode(errors="replace")


def _recorded_places(worker: _Worker) -> list[Location]:
    """The frames of the last recorded stack, the innermost first.

    The format is that of CPython's ``Python/traceback.c`` (``_Py_DumpTracebackThreads``): a block a thread,
    the main thread's last; the one that crashed or was asked is called current.
    """
    current: list[Location] = []
    main: list[Location] = []
    for block in re.split(r"^(?=(?:Current thread|Thread) 0x)", _record(worker), flags=re.MULTILINE):
        found = re.findall(r'^  File "(.*)", line (\d+) in (.*)$', block, flags=re.MULTILINE)
        main = [Location(file, int(line), function) for file, line, function in found]
        if block.startswith("Current"):
            current = main
    return current if _users(current) else main


def _places(outcome: dict[str, Any]) -> list[Location]:
    return [Location(*frame) for frame in outcome["frames"]]


def _at(frames: list[Location]) -> str:
    """Where the innermost of the user's frames is, as the end of a sentence; "" if there is none."""
    users = _users(frames)
    if not users:
        return ""
    place = users[0]
    text = textwrap.shorten(linecache.getline(place.file, place.line), 100, placeholder=" ...")
    return f" at {shown(place.file)}:{place.line} in {place.function}" + (f" ({text})" if text else "")


def _users(frames: list[Location]) -> list[Location]:
    """The frames in the user's own files; if there are none, those in installed packages other than torch."""
    packages = {"site-packages", "dist-packages"}
    paths = [(frame, Path(frame.file)) for frame in frames if not frame.file.startswith("<")]
    outside = [(frame, path) for frame, path in paths if not _is_internal(path, packages & set(path.parts))]
    return [frame for frame, path in outside if not packages & set(path.parts)] or [frame for frame, _ in outside]


def _is_internal(path: Path, packages: set[str]) -> bool:
    """Whether a frame there tells the user nothing: ddplint (but for its reference model), Python, torch."""
    path = path.resolve()
    if path.is_relative_to(_PACKAGE):
        return not path.is_relative_to(_PACKAGE / "reference")
    return "torch" in path.parts if packages else path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())
