"""What a recorder sees of what Python code does, each in a process of its own: a recorder stays for the whole of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from ddplint import fingerprints, inputs

ROOT = Path(__file__).resolve().parent.parent


def seen(folder: Path, *lines: str, **variables: str) -> dict[str, Any]:
    """What the recorder has after ``lines`` were run in ``folder``, and why it could not be kept."""
    code = f"""
import json
from ddplint import inputs
recorder = inputs.record()
{textwrap.dedent(chr(10).join(lines))}
recorder.stop()
recorder.changed()
print()
print(json.dumps(recorder.seen()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    return answer


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("open('a')", "files"),
        ("open('a', 'r+')", "files"),
        ("import os; os.open('a', os.O_RDONLY)", "files"),
        ("import io; io.FileIO('a')", "files"),
        ("import os; os.chdir('/'); os.open('a', os.O_RDONLY, dir_fd=os.open(FOLDER, 0))", "files"),
        ("import os; os.chdir('/'); os.stat('a', dir_fd=os.open(FOLDER, 0))", "files"),
        ("from pathlib import Path; Path('a').read_text()", "files"),
        ("import os; os.path.exists('a')", "files"),
        ("import os; os.access('a', os.R_OK)", "files"),
        ("from pathlib import Path; Path('a').is_file()", "files"),
        ("import sqlite3; sqlite3.connect('a')", "files"),
        ("import os; os.path.getmtime('a')", "times"),
        ("import os; os.stat('a')", "times"),
        ("from pathlib import Path; Path('a').stat()", "times"),
        ("import os; os.path.realpath('a')", "links"),
        ("import ctypes; ctypes.CDLL(None).fopen(b'a', b'r')", "files"),  # which no event tells of, but it is open
    ],
)
def test_a_file_that_is_looked_at(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "a").write_text("1")
    assert str(tmp_path / "a") in seen(tmp_path, line.replace("FOLDER", repr(str(tmp_path))))["tables"][kind]


@pytest.mark.parametrize("line", ["open('a')", "import os; os.stat('a')", "from pathlib import Path; Path('a').exists()"])
def test_a_file_that_is_not_there(tmp_path: Path, line: str) -> None:
    table = seen(tmp_path, "try:", f"    {line}", "except OSError:", "    print()")["tables"]["files"]
    assert table[str(tmp_path / "a")] == fingerprints.ABSENT


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("import os; os.listdir('folder')", "names"),
        ("import os; list(os.walk('folder'))", "names"),
        ("import os; os.listdir(os.open('folder', 0))", "names"),
        ("import os; list(os.fwalk('folder'))", "names"),
        ("import glob; glob.glob('folder/*')", "names"),
        ("from pathlib import Path; list(Path('folder').glob('*'))", "names"),
        ("from pathlib import Path; list(Path('folder').iterdir())", "names"),
        ("from importlib.machinery import PathFinder; PathFinder.find_spec('x', ['folder'])", "names"),
        ("import os; list(os.scandir('folder'))", "entries"),
    ],
)
def test_a_folder_that_is_listed(tmp_path: Path, line: str, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    assert str(tmp_path / "folder") in seen(tmp_path, line)["tables"][kind]


@pytest.mark.parametrize(
    "line",
    [
        "import missing",
        "__import__('missing')",
        "import importlib; importlib.import_module('missing')",
        "import importlib.util; assert importlib.util.find_spec('missing') is None; raise ImportError",
    ],
)
def test_a_module_that_is_looked_for(tmp_path: Path, line: str) -> None:
    searches = seen(tmp_path, "try:", f"    {line}", "except ImportError:", "    print()")["searches"]
    assert searches[str(tmp_path)]["missing"] == ""


def test_modules_that_are_gone_from_sys_modules_or_were_loaded_by_hand(tmp_path: Path) -> None:
    (tmp_path / "gone.py").write_text("")
    (tmp_path / "space").mkdir()
    (tmp_path / "space" / "inner.py").write_text("")
    (tmp_path / "hand.py").write_text("")
    lines = (
        "import gone, sys; del sys.modules['gone']",
        "import space.inner",
        "import importlib.util as u; spec = u.spec_from_file_location('x', 'hand.py')",
        "spec.loader.exec_module(u.module_from_spec(spec))",
    )
    for _ in range(2):  # the second time from their bytecode
        found = seen(tmp_path, *lines)
        for name in ("gone.py", "space/inner.py", "hand.py"):
            assert found["tables"]["files"][str(tmp_path / name)].startswith("b:")
        assert found["searches"][str(tmp_path)]["space"] == "space"
        assert found["searches"][str(tmp_path / "space")]["inner"] == "inner.py"


def test_environment_variables(tmp_path: Path) -> None:
    lines = (
        "import os",
        "os.getenv('BY_GETENV'); os.environ.get('BY_GET'); 'BY_IN' in os.environ; os.environb.get(b'BY_BYTES')",
        "os.environ['OWN'] = '1'; os.environ['OWN']; os.environ.pop('GONE', None)",
    )
    found = seen(tmp_path, *lines)
    assert {"BY_GETENV", "BY_GET", "BY_IN", "BY_BYTES", "GONE"} <= set(found["variables"])
    assert "OWN" not in found["variables"]
    assert not found["everything"]
    for line in ("dict(os.environ)", "list(os.environ.items())", "os.environ.copy()", "{**os.environ}"):
        assert seen(tmp_path, "import os", line)["everything"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("import subprocess; subprocess.run(['true'])", "the target starts a process"),
        ("import os; os.system('true')", "the target starts a process"),
        ("import os; os.fork() or os._exit(0)", "the target starts a process"),
        ("import os; os.posix_spawn('/bin/true', ['true'], {})", "the target starts a process"),
        ("import socket; socket.socket().connect_ex(('127.0.0.1', 9))", "the target uses the network"),
        ("import socket; socket.getaddrinfo('localhost', 1)", "the target uses the network"),
        ("import sys; sys.meta_path[:] = []", "the target replaces sys.meta_path: what it imports is not seen"),
        ("import sys; sys.modules['h5py'] = sys", "h5py is imported, which opens files that are not seen"),
        ("import sys; sys.modules['multiprocessing.popen_spawn_posix'] = sys", "the target starts a process"),
    ],
)
def test_what_leaves_the_process(tmp_path: Path, line: str, why: str) -> None:
    assert why in seen(tmp_path, line)["reasons"]


def test_the_systems_own_questions_leave_nothing(tmp_path: Path) -> None:
    found = seen(tmp_path, "import platform, ctypes.util; platform.uname().processor; ctypes.util.find_library('c')")
    assert found["reasons"] == []


def test_a_project_that_names_a_library_which_reads_natively(tmp_path: Path) -> None:
    (tmp_path / "safetensors.py").write_text("")
    (tmp_path / "model.py").write_text("import safetensors\n")
    (reason,) = seen(tmp_path, "import model")["reasons"]
    assert reason == f"{tmp_path / 'model.py'} names safetensors, which opens files that are not seen"


def test_what_is_changed_under_the_run(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    lines = ("open('a').read()", "open('a', 'w').write('2')")
    assert f"{tmp_path / 'a'} was changed just now, or while it ran" in seen(tmp_path, *lines)["reasons"]
    lines = ("import os; os.path.exists('b')", "open('b', 'w')")
    assert f"{tmp_path / 'b'} was changed just now, or while it ran" in seen(tmp_path, *lines)["reasons"]
    lines = ("try: import later", "except ImportError: open('later.py', 'w')")
    assert f"{tmp_path / 'later'} was changed just now, or while it ran" in seen(tmp_path, *lines)["reasons"]


def test_what_is_written_and_put_back_is_still_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    lines = ("open('a').read()", "open('a', 'r+').write('2')", "open('a', 'r+').write('1')")
    assert f"{tmp_path / 'a'} was changed just now, or while it ran" in seen(tmp_path, *lines)["reasons"]


def test_an_installed_file_that_is_quite_new_is_not_trusted(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "new.py").write_text("")
    reasons = seen(tmp_path, "import new", PYTHONPATH=os.pathsep.join((str(ROOT), str(package))))["reasons"]
    assert f"{package / 'new.py'} was changed just now, or while it ran" in reasons


def test_what_the_run_made_is_no_input(tmp_path: Path) -> None:
    lines = (
        "import os, tempfile",
        "with tempfile.TemporaryDirectory(dir='.') as folder, tempfile.NamedTemporaryFile(dir=folder) as file:",
        "    file.write(b'1'); file.flush(); open(file.name).read(); os.listdir(folder); os.stat(file.name)",
        "open('draft', 'w').write('1'); os.rename('draft', 'whole'); open('whole').read()",
    )
    found = seen(tmp_path, *lines)
    assert found["reasons"] == []
    assert not [path for table in found["tables"].values() for path in table if path.startswith(f"{tmp_path}/")]


def test_an_exclusive_open_of_what_is_there_is_a_question(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    lines = ("try: open('a', 'x')", "except FileExistsError: open('a').read()")
    assert str(tmp_path / "a") in seen(tmp_path, *lines)["tables"]["files"]


def test_two_processes_that_saw_different_things() -> None:
    one, other = inputs.Recorder(), inputs.Recorder()
    one.tables["files"]["/no/such"] = "b:1"
    other.tables["files"]["/no/such"] = "b:2"
    other.searches["/no"] = {"module": ""}
    other.variables.add("NAME")
    one.take(other.seen())
    assert one.variables == {"NAME"}
    assert one.searches == {"/no": {"module": ""}}
    assert list(one.reasons) == ["/no/such was changed just now, or while it ran"]


def test_more_files_than_can_be_looked_at_again(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / str(number)).touch()
    found = seen(tmp_path, "recorder._left_to_read = 5", "for n in range(6): open(str(n))")
    assert any("it looks at more than" in reason for reason in found["reasons"])
