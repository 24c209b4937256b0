from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddplint import worker
from ddplint.analysis import Analysis
from ddplint.errors import DdplintError
from ddplint.live import Live
from ddplint.request import Request
from ddplint.rules import TargetSpec, TensorSpec

TESTS = Path(__file__).parent
REQUEST = Request(TargetSpec("model.py:build"))


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.chdir(TESTS.parent)


def run(engine: str, **options: Any) -> Analysis:
    return worker.run(REQUEST, **{"engine": f"stub_engine:{engine}", "timeout": 60.0, **options})


def test_stages_and_prints_go_to_who_watches(capfd: pytest.CaptureFixture[str]) -> None:
    stages: list[str] = []
    read, write = os.pipe()
    answer = run("says_what_it_does", live=Live(stages.append, write))
    os.close(write)
    with open(read) as printed:
        assert printed.read() == "forward\n"
    assert stages == ["path 1", "größe 2"]
    assert answer.notices == ("done",)
    assert capfd.readouterr() == ("", "")


def test_stages_are_for_nobody_where_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("says_what_it_does").notices == ("done",)
    assert capfd.readouterr() == ("", "forward\n")


def test_a_fork_of_the_target_says_nothing() -> None:
    stages: list[str] = []
    run("forks_and_goes_on", live=Live(stages.append, 2))
    assert stages == ["the worker's own"]


def failure(engine: str, **options: Any) -> str:
    with pytest.raises(DdplintError) as caught:
        run(engine, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def line_of(text: str) -> int:
    """The number of the one line of stub_engine.py that holds ``text``."""
    (number,) = (i for i, line in enumerate((TESTS / "stub_engine.py").read_text().splitlines(), 1) if text in line)
    return number


def wait_until_gone(pids: list[int]) -> list[int]:
    """Those of ``pids`` that still run after five seconds; a dead one that nobody has waited for is gone."""
    deadline = time.monotonic() + 5
    while (alive := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def is_running(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return state not in ("", "Z", "Z+", "Zs")


def test_the_request_arrives_and_the_answer_returns() -> None:
    target = TargetSpec("model.py:build", kwargs={"depth": 2}, inputs=(TensorSpec((2, 3)), 1), base="/some/folder")
    request = Request(target, documented=("head.*", "é"), device="cpu", explain="head.weight")
    analysis = worker.run(request, engine="stub_engine:echo")
    assert json.loads(analysis.notices[0]) == request.to_json()
    assert analysis.trace.device == "meta"


def test_an_answer_larger_than_a_pipe() -> None:
    assert run("large").notices == ("x" * 5_000_000,)


def test_what_the_target_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    run("prints")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["from Python", "from os.write", "from stderr", "from a program"]


def test_quiet_drops_what_the_target_prints(capfd: pytest.CaptureFixture[str]) -> None:
    run("prints", quiet=True)
    assert capfd.readouterr() == ("", "")


def test_verbose_lets_warnings_through(capfd: pytest.CaptureFixture[str]) -> None:
    run("prints", verbose=True)
    assert "UserWarning: from warnings" in capfd.readouterr().err


def test_a_closed_stderr_is_no_obstacle() -> None:
    code = f"import os; os.close(2); {started('echo')}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TESTS.parent)


def test_the_workers_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.chdir(tmp_path)
    surroundings, stdin = run("process").notices
    found = json.loads(surroundings)
    assert found["cwd"] == found["path"] == str(tmp_path)
    assert found["argv"] == ["ddplint"]
    assert stdin == ""
    expected = {
        "PYTORCH_JIT": "0",
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": str(TESTS),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
        "CUDA_VISIBLE_DEVICES": "",
    }
    assert expected.items() <= found["env"].items()


def test_the_users_number_of_threads_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert json.loads(run("process").notices[0])["env"]["OMP_NUM_THREADS"] == "3"


def test_files_of_the_working_folder_do_not_hide_the_standard_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("json", "signal", "ddplint"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')")
    assert run("large").target == "stub"


@pytest.mark.parametrize(
    ("engine", "text"), [("hangs", "time.sleep(0.01)"), ("hangs_in_c", "ctypes.PyDLL(None).sleep(1000)")]
)
def test_a_hang_is_ended_and_located(engine: str, text: str) -> None:
    start = time.monotonic()
    said = failure(engine, timeout=1.0)
    assert time.monotonic() - start < 5
    place = f"tests/stub_engine.py:{line_of(text)} in {engine} ({text}"
    assert said.startswith(f"model.py:build: no answer after 1 s at {place}")
    assert "--timeout" in said


def test_a_hang_before_the_worker_could_start_has_no_place() -> None:
    assert "no answer after 0.0001 s; " in failure("hangs", timeout=0.0001)


@pytest.mark.parametrize(
    ("engine", "message", "text"),
    [
        ("exits_at_once", "the target ended its process with exit code 3 at ", "os._exit(3)"),
        ("exits", "the target left with SystemExit: no licence found at ", 'sys.exit("no licence found")'),
        ("interrupts", "the target left with KeyboardInterrupt at ", "raise KeyboardInterrupt"),
        ("segfaults", "the target's process was ended by SIGSEGV at ", "ctypes.string_at(0)"),
    ],
)
def test_a_target_that_leaves_is_located(engine: str, message: str, text: str) -> None:
    place = f"tests/stub_engine.py:{line_of(text)} in {engine} ({text})"
    assert failure(engine) == f"model.py:build: {message}{place}; a target must return"


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGABRT", "SIGINT", "SIGHUP", "SIGRTMIN"])
def test_a_target_that_dies_by_a_signal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SIGNAL", name)
    said = failure("dies")
    if name == "SIGINT":  # Python makes an exception of it
        assert "the target left with KeyboardInterrupt at " in said
    else:
        assert f"the target's process was ended by {name}" in said
    assert ("memory is short" in said) == (name == "SIGKILL")
    assert (f"stub_engine.py:{line_of('STUB_SIGNAL')} in dies" in said) == (name in {"SIGTERM", "SIGABRT", "SIGINT"})


def test_a_target_that_closes_all_files_is_answered_still() -> None:
    assert run("closes_all_files").target == "stub"


def test_a_target_that_closes_the_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_GRACE", 0.3)
    assert "closed the pipe that ddplint's worker answers through; " in failure("closes_the_pipe_and_hangs")


def test_a_target_that_writes_into_the_pipe() -> None:
    assert "wrote into the pipe that ddplint's worker answers through; " in failure("writes_into_the_pipe")


def test_no_answer_is_written_into_a_file_that_took_the_pipes_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STUB_FILE", str(tmp_path / "file"))
    assert "closed the pipe" in failure("takes_the_pipes_number")
    assert (tmp_path / "file").read_text() == "mine\n"


def test_an_error_for_the_user_travels_as_it_is() -> None:
    assert failure("raises_for_the_user") == "model.py:build: is not callable; name a function"


@pytest.mark.parametrize(
    ("engine", "error"),
    [
        ("has_a_bug", "KeyError: 'no such node' (at tests/stub_engine.py:"),
        ("answers_what_is_no_json", "TypeError: "),
    ],
)
def test_a_bug_of_the_engine_is_called_one(engine: str, error: str) -> None:
    with pytest.raises(worker.EngineError) as caught:
        run(engine)
    assert str(caught.value).startswith(f"model.py:build: {error}")
    assert "bug of ddplint" in str(caught.value)
    assert caught.value.traceback.startswith("Traceback (most recent call last):")


def test_without_torch_the_environment_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "engine_without_torch.py").write_text("import torch_that_is_not_there\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(DdplintError) as caught:
        worker.run(REQUEST, engine="engine_without_torch:analyse")
    said = str(caught.value)
    assert said.startswith(f"{sys.executable}: PyTorch, or what the trace needs beside it, can't be imported: ")
    assert "No module named 'torch_that_is_not_there'" in said


def test_a_forked_copy_does_not_answer_too() -> None:
    assert run("forks").target == "stub"


def test_the_targets_clean_up_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STUB_FILE", str(tmp_path / "cleaned"))
    run("cleans_up")
    assert (tmp_path / "cleaned").exists()


def test_processes_and_threads_of_the_target_are_not_waited_for_nor_left() -> None:
    start = time.monotonic()
    pids = json.loads(run("leaves_processes").notices[0])
    assert time.monotonic() - start < 5
    assert len(pids) == 5
    assert wait_until_gone(pids) == []


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that waits for a hanging worker, and all that was started under it: worker, keeper, more."""
    monkeypatch.setenv("STUB_FILE", str(tmp_path / "pids"))
    process = subprocess.Popen(
        [sys.executable, "-c", started("leaves_processes")],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 20
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    pids = json.loads((tmp_path / "pids").read_text())
    yield process, pids
    process.kill()
    for pid in filter(is_running, pids):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def started(engine: str) -> str:
    """Code that runs a stub engine in a worker."""
    return (
        "from ddplint import worker; from ddplint.request import Request; "
        "from ddplint.rules import TargetSpec; "
        f"worker.run(Request(TargetSpec('model.py:build')), engine='stub_engine:{engine}')"
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_parent(number: int, parent: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, pids = parent
    assert all(is_running(pid) for pid in pids)
    process.send_signal(number)
    process.communicate(timeout=10)
    assert process.returncode == -number
    assert wait_until_gone(pids) == []


def test_the_worker_ends_with_its_keeper(parent: tuple[subprocess.Popen[str], list[int]]) -> None:
    process, (pid, keeper, *_) = parent
    os.kill(keeper, signal.SIGKILL)
    assert process.wait(10) == 1
    assert wait_until_gone([pid, keeper]) == []
