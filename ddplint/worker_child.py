"""The other side of ``ddplint.worker``: a process that runs a target, and a keeper that ends it with its
parent.

``ddplint.worker`` starts ``main`` with an engine ("module:function") and three file descriptors as arguments,
and the request as JSON on stdin. The process forks at once, before anything of the target is imported. The
parent half is the keeper: it waits for the worker, or for the lifeline (a pipe that ``ddplint.worker`` holds
the other end of) to break, ends all that the target started, and exits as the worker did. The child half is
the worker: it runs the engine and writes framed messages to the answer pipe, of which the last is the
answer, and those before say what it is doing, and what it has looked at. Only the engine imports torch.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from ddplint import inputs, stages
from ddplint.errors import DdplintError
from ddplint.request import Request

MARK = b"ddplint "  # a message is this, its length as eight bytes, then JSON
TOKEN = "DDPLINT_WORKER"  # an environment variable that all descendants of one worker share
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_leave = os._exit


def main() -> NoReturn:
    """Fork into keeper and worker. Never returns."""
    engine = sys.argv[1]
    answer, record, lifeline = (int(number) for number in sys.argv[2:5])
    message = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # a crash leaves no file
    worker = os.fork()
    if worker:
        os.close(answer)
        os.close(record)
        _keep(worker, lifeline)
    os.close(lifeline)
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # for when the keeper itself is killed
    # High numbers that no program it runs inherits: a target that closes "all files" opens its own low.
    high = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100) for number in (answer, record)]
    os.close(answer)
    os.close(record)
    _work(engine, message, len(sys.argv) > 5, *high)


def _keep(worker: int, lifeline: int) -> NoReturn:
    """Wait for the worker's end or the parent's, end what is left, and exit as the worker did."""
    with contextlib.suppress(PermissionError, ProcessLookupError):  # it did so itself, or is gone already
        os.setpgid(worker, worker)
    threading.Thread(target=_end_with_parent, args=(worker, lifeline), daemon=True).start()
    # The status stays unread until the group has been killed: until then no other process gets its number.
    os.waitid(os.P_PID, worker, os.WEXITED | os.WNOWAIT)
    _end(worker)
    code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    _leave(code)


def _end_with_parent(worker: int, lifeline: int) -> None:
    os.read(lifeline, 1)  # returns when the other end is closed, by hand or by its process's death
    _end(worker)


def _end(worker: int) -> None:
    """Kill the worker's process group, then whatever the target started that has left the group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    mark = f"{TOKEN}={os.environ[TOKEN]}".encode()
    deadline = time.monotonic() + 2
    while (strays := [p for p in _processes() if _is_stray(p, worker, mark)]) and time.monotonic() < deadline:
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)  # a killed process needs a moment to be gone


def _processes() -> list[int]:
    """The numbers of all processes, where the system lists them (Linux)."""
    with contextlib.suppress(FileNotFoundError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def _is_stray(pid: int, worker: int, mark: bytes) -> bool:
    if pid in (os.getpid(), worker):
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return mark in environment.read().split(b"\0")
    except OSError:  # another user's, or gone; a dead process that nobody has read yet has no environment either
        return False


def _work(engine: str, message: dict[str, Any], recorded: bool, answer: int, record: int) -> NoReturn:
    """Run the engine on the request and send what came of it. Never returns."""
    own, pipe = os.getpid(), os.fstat(answer)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)  # a target that asks for input gets none
    _record_last_place(record)
    sys.argv = ["ddplint"]  # a target that parses arguments sees none of ours
    sys.path.insert(0, os.getcwd())
    recorder = inputs.record() if recorded else None

    def listen(stage: str) -> None:
        if os.getpid() == own and os.path.samestat(os.fstat(answer), pipe):  # else the target forked, or closed it
            _send(answer, json.dumps({"stage": stage}))

    with stages.told_to(listen):
        outcome = _outcome(engine, message)
    if os.getpid() != own:
        _leave(0)  # the target forked, and this copy of the trace has nobody to answer to
    try:
        if not os.path.samestat(os.fstat(answer), pipe):
            _leave(os.EX_IOERR)  # the target closed the pipe, and a file of its own has the number now
        if recorder is not None:
            recorder.stop()
            _send(answer, json.dumps({"seen": recorder.seen()}))
        _send(answer, outcome)
    except OSError:
        _leave(os.EX_IOERR)
    atexit._run_exitfuncs()  # the target's clean-up, without waiting for its threads
    _leave(0)


def _record_last_place(record: int) -> None:
    """Have the Python stack written to ``record`` by a crash, by SIGUSR1 (the parent asks) and by
    ``os._exit``.

    Its first line is this process's number.
    """
    own = os.getpid()
    os.write(record, f"{own}\n".encode())
    faulthandler.enable(record)
    faulthandler.register(signal.SIGUSR1, record)
    faulthandler.register(signal.SIGTERM, record, chain=True)

    def recorded_exit(status: int) -> NoReturn:
        if os.getpid() == own:
            faulthandler.dump_traceback(record)
        _leave(status)

    os._exit = recorded_exit


def _outcome(engine: str, message: dict[str, Any]) -> str:
    """What came of the request, as JSON under one key: analysis, error, exit or bug."""
    try:
        return json.dumps({"analysis": _engine(engine)(Request.from_json(message)).to_json()})
    except DdplintError as error:
        return json.dumps({"error": {"what": error.what, "where": error.where, "fix": error.fix}})
    except Exception as error:
        return json.dumps({"bug": _description(error) | {"traceback": traceback.format_exc()}})
    except BaseException as error:  # SystemExit, KeyboardInterrupt, a test framework's own: the target left
        return json.dumps({"exit": _description(error)})


def _engine(name: str) -> Callable[[Request], Any]:
    module, _, function = name.partition(":")
    try:
        engine: Callable[[Request], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, OSError) as error:
        raise DdplintError(
            f"PyTorch, or what the trace needs beside it, can't be imported: {_one_line(error)}",
            where=sys.executable,
            fix="install ddplint and torch>=2.6 into the environment of your model, and run it from there",
        ) from error
    return engine


def _description(error: BaseException) -> dict[str, Any]:
    """The error in one line, and file, line and function of its frames, the innermost first."""
    frames = reversed(traceback.extract_tb(error.__traceback__, limit=-100))
    return {"error": _one_line(error), "frames": [[f.filename, f.lineno, f.name] for f in frames]}


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def _send(answer: int, outcome: str) -> None:
    text = outcome.encode()
    rest = memoryview(MARK + len(text).to_bytes(8) + text)
    while rest:
        rest = rest[os.write(answer, rest) :]
