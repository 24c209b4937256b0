"""Engines for ``tests/test_worker.py``: each takes a request and ends in its own way, or not. No torch."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import NoReturn

from ddplint.analysis import Analysis, TraceRecord
from ddplint.errors import DdplintError
from ddplint.request import Request
from ddplint.stages import say


def _answer(*notices: str) -> Analysis:
    trace = TraceRecord(device="meta", device_reason="", paths=1, ranks=1, nodes=0, seconds=0.0)
    return Analysis("stub", "2.13.0", parameters=(), trace=trace, notices=notices)


def echo(request: Request) -> Analysis:
    return _answer(json.dumps(request.to_json(), sort_keys=True))


def prints(request: Request) -> Analysis:
    sys.stdout.write("from Python\n")
    os.write(1, b"from os.write\n")
    sys.stderr.write("from stderr\n")
    subprocess.run(["echo", "from a program"], check=True)
    warnings.warn("from warnings", stacklevel=1)
    return _answer()


def says_what_it_does(request: Request) -> Analysis:
    say("path 1")
    sys.stdout.write("forward\n")
    say("größe 2")
    return _answer("done")


def forks_and_goes_on(request: Request) -> Analysis:
    child = os.fork()
    if not child:
        say("the fork's")
        os._exit(0)
    os.waitpid(child, 0)
    say("the worker's own")
    return _answer()


def process(request: Request) -> Analysis:
    return _answer(
        json.dumps({"env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv, "path": sys.path[0]}),
        sys.stdin.read(),
    )


def large(request: Request) -> Analysis:
    return _answer("x" * 5_000_000)


def hangs(request: Request) -> NoReturn:
    while True:
        time.sleep(0.01)


def hangs_in_c(request: Request) -> NoReturn:
    ctypes.PyDLL(None).sleep(1000)  # holds the interpreter's lock, as a stuck kernel may
    raise AssertionError("slept it out")


def exits_at_once(request: Request) -> NoReturn:
    os._exit(3)


def exits(request: Request) -> NoReturn:
    sys.exit("no licence found")


def interrupts(request: Request) -> NoReturn:
    raise KeyboardInterrupt


def segfaults(request: Request) -> NoReturn:
    ctypes.string_at(0)
    raise AssertionError("survived")


def dies(request: Request) -> NoReturn:
    os.kill(os.getpid(), getattr(signal, os.environ["STUB_SIGNAL"]))
    time.sleep(1000)
    raise AssertionError("survived")


def closes_all_files(request: Request) -> Analysis:
    os.closerange(3, 100)
    return _answer()


def closes_the_pipe_and_hangs(request: Request) -> NoReturn:
    os.close(100)
    hangs(request)


def writes_into_the_pipe(request: Request) -> Analysis:
    os.write(100, b"epoch 1\n")
    return _answer()


def takes_the_pipes_number(request: Request) -> Analysis:
    number = os.open(os.environ["STUB_FILE"], os.O_WRONLY | os.O_CREAT)
    os.dup2(number, 100)
    os.write(100, b"mine\n")
    return _answer()


def raises_for_the_user(request: Request) -> NoReturn:
    raise DdplintError("is not callable", where="model.py:build", fix="name a function")


def has_a_bug(request: Request) -> NoReturn:
    raise KeyError("no such node")


def answers_what_is_no_json(request: Request) -> Analysis:
    return _answer({"a", "set"})  # type: ignore[arg-type]  # the fault it is here for


def forks(request: Request) -> Analysis:
    os.fork()
    return _answer()


def leaves_processes(request: Request) -> Analysis:
    """One in the worker's group, one in its own session, one forked that holds every pipe, and a thread."""
    sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
    started = [subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
    forked = os.fork()
    if not forked:
        time.sleep(1000)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    pids = [os.getpid(), os.getppid(), *started, forked]
    if "STUB_FILE" in os.environ:
        file = Path(os.environ["STUB_FILE"])
        file.with_suffix(".new").write_text(json.dumps(pids))
        file.with_suffix(".new").rename(file)
        hangs(request)
    return _answer(json.dumps(pids))


def cleans_up(request: Request) -> Analysis:
    atexit.register(Path(os.environ["STUB_FILE"]).touch)
    return _answer()
