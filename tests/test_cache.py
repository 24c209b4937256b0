"""Each kind of input, changed in turn, is a miss, and nothing else is; entries survive what processes do to them.

A lookup without a trace costs milliseconds, so one traced project serves for all kinds. The lookups run in a process started
as the traced one was, for the command line, ``sys.path`` and the streams are part of what an entry is found by.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddplint import cache, files, fingerprints, inputs

ROOT = Path(__file__).resolve().parent.parent
QUICK = ("--paths", "1", "--steps", "1", "--ranks", "1")

RUN = "from ddplint.front import main; main()"
LOOK = """
import sys
from ddplint import cache
place = cache.place(sys.argv[1:])
found = cache.find(place) if place is not None else "never kept"
print(found if isinstance(found, str) else "hit")
"""

NET = """
import json
import os

import torch
from torch import nn

import fakedist
from pkg.inner import WIDTH

try:
    import extra
except ImportError:
    extra = None


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(WIDTH, WIDTH)
        self.spare = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        import lazy

        return lazy.scaled(self.used(x))


def build():
    with open("data/sizes.json") as file:
        json.load(file)
    os.listdir("data")
    os.path.exists("optional.json")
    os.environ.get("NET_WIDTH")
    return Net()


def inputs():
    return (torch.zeros(2, WIDTH),), {}


def loss(output):
    return output.sum()
"""
RULES = """
[checkpoint]
name = "small"
[target]
factory = "net.py:build"
inputs = "net.py:inputs"
loss = "net.py:loss"
[ddp]
source = "launch/*.py"
[[unused]]
params = ["spare"]
reason = "for later"
action = "allow"
"""
WRAP = """
from torch.nn.parallel import DistributedDataParallel as DDP
def wrap(model):
    return DDP(model, find_unused_parameters=True)
"""


def write(folder: Path, contents: dict[str, str]) -> None:
    for name, text in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Project:
    """A folder with a model in it, and a cache of its own."""

    def __init__(self, folder: Path, cached: Path) -> None:
        self.folder, self.cached = folder, cached
        self.arguments = ["check", *QUICK]

    def environment(self, **others: str) -> dict[str, str]:
        own = {k: v for k, v in os.environ.items() if k != "DDPLINT_NO_CACHE"}
        path = os.pathsep.join((str(ROOT), str(self.folder / "site")))
        return {**own, "DDPLINT_CACHE_DIR": str(self.cached), "PYTHONPATH": path, **others}

    def python(self, code: str, *arguments: str, **others: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *(arguments or self.arguments)],
            cwd=self.folder,
            env=self.environment(**others),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str, **others: str) -> subprocess.CompletedProcess[str]:
        return self.python(RUN, *arguments, **others)

    def look(self, *arguments: str, **others: str) -> str:
        """ "hit", or why there is no answer."""
        done = self.python(LOOK, *arguments, **others)
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    def entries(self) -> list[Path]:
        return sorted(self.cached.glob("*.entry"))


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, subprocess.CompletedProcess[str]]:
    """A project, and the first run of its check."""
    project = Project(tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("cache") / "ddplint")
    write(
        project.folder,
        {
            "pyproject.toml": '[tool.ddplint]\nrules = "rules"\n',
            "net.py": NET,
            "lazy.py": "def scaled(x):\n    return x * 2\n",
            "pkg/__init__.py": "",
            "pkg/inner.py": "WIDTH = 3\n",
            "data/sizes.json": "[1]",
            "rules/small.toml": RULES,
            "launch/train.py": WRAP,
            "site/fakedist/__init__.py": "",
            "site/fakedist-1.0.dist-info/METADATA": "Name: fakedist\nVersion: 1.0\n",
        },
    )
    done = project.run()
    assert done.returncode in (0, 1), done.stderr
    assert project.look() == "hit", project.run("check", "--verbose", *QUICK).stderr
    return project, done


@pytest.fixture
def project(traced: tuple[Project, subprocess.CompletedProcess[str]]) -> Iterator[Project]:
    """The traced project; unchanged it is a hit before the test and after it."""
    found = traced[0]
    assert found.look() == "hit"
    yield found
    assert found.look() == "hit"


def test_the_same_bytes_and_exit_code_without_a_heavy_import(
    traced: tuple[Project, subprocess.CompletedProcess[str]],
) -> None:
    project, first = traced
    again = project.python(
        "import atexit, os, sys; plain = os._exit\n"
        "def leave(code):\n"
        "    heavy = {'torch', 'networkx', 'numpy', 'rich', 'click', 'yaml', 'tomlkit', 'dataclasses', 'ddplint.cli'}\n"
        "    print('imported', sorted(heavy & set(sys.modules)), file=sys.stderr, flush=True); plain(code)\n"
        "os._exit = leave\n" + RUN
    )
    assert (again.stdout, again.returncode) == (first.stdout, first.returncode)
    assert again.stderr == first.stderr + "imported []\n"


@pytest.mark.parametrize(
    "file",
    [
        "net.py",
        "pkg/__init__.py",
        "pkg/inner.py",
        "lazy.py",
        "rules/small.toml",
        "pyproject.toml",
        "data/sizes.json",
        "launch/train.py",
        "site/fakedist/__init__.py",
        "site/fakedist-1.0.dist-info/METADATA",
    ],
)
def test_one_byte_is_a_miss(project: Project, file: str) -> None:
    path = project.folder / file
    before, times = path.read_bytes(), path.stat()
    path.write_bytes(before[:-1] + b"#" if before else b"#")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its content counts, not what its times pretend
    assert project.look() == f"{path} has changed"
    path.write_bytes(before)
    os.utime(path)
    assert project.look() == "hit"


@pytest.mark.parametrize(
    "file",
    [
        "optional.json",  # looked for by the factory
        "data/more.json",  # in a folder that it lists
        "extra.py",  # imported where that can be
        "extra/__init__.py",
        "site/extra.py",
        "numpy.py",  # would be imported in the place of the installed one
        "pkg/inner/__init__.py",  # goes before pkg/inner.py
        "launch/second.py",  # a source that is scanned for wraps
        "ddplint.toml",  # a configuration beside the other one
        "rules/other.toml",
        "site/other-1.0.dist-info/METADATA",
    ],
)
def test_a_file_that_appears_is_a_miss(project: Project, file: str) -> None:
    path = project.folder / file
    made = path if path.parent.is_dir() else path.parent
    write(project.folder, {file: ""})
    assert "has changed" in (why := project.look()) or "has appeared" in why
    shutil.rmtree(made) if made.is_dir() else made.unlink()


@pytest.mark.parametrize("file", ["pkg/unrelated.py", "notes.txt", "net.py~", "site/unrelated/__init__.py"])
def test_a_file_that_nobody_looks_for_is_none(project: Project, file: str) -> None:
    path = project.folder / file
    made = path if path.parent.is_dir() else path.parent
    write(project.folder, {file: ""})
    assert project.look() == "hit"
    shutil.rmtree(made) if made.is_dir() else made.unlink()


def test_a_file_that_goes_is_a_miss(project: Project) -> None:
    for file in ("lazy.py", "launch/train.py", "data/sizes.json"):
        path = project.folder / file
        path.rename(project.folder / "away")
        assert "has changed" in project.look()
        (project.folder / "away").rename(path)


def test_an_installed_distribution_in_another_version_is_a_miss(project: Project) -> None:
    old, new = (project.folder / "site" / f"fakedist-{version}.dist-info" for version in ("1.0", "2.0"))
    old.rename(new)
    assert "has changed" in project.look()
    new.rename(old)


def test_environment_variables_that_were_read_count_and_no_others(project: Project) -> None:
    assert project.look(NET_WIDTH="4") == "the environment (NET_WIDTH) has changed"
    assert project.look(OMP_NUM_THREADS="7") == "the environment (OMP_*) has changed"
    assert "TORCH" in project.look(TORCH_SOMETHING_IN_C="1")
    assert project.look(NOBODY_READS_THIS="4", GIT_AUTHOR_DATE="1") == "hit"
    assert all(b"NET_WIDTH=" not in entry.read_bytes() for entry in project.entries())


def test_options_and_the_working_folder_count(project: Project) -> None:
    for more in (["--quiet"], ["--select", "DDP1"], ["--format", "json"], ["--device", "cpu"], ["--ranks", "3"]):
        assert project.look("check", *QUICK, *more) == "there is no entry"
    for never in ("--no-cache", "--base=HEAD", "--show-settings", "--help"):
        assert project.look("check", *QUICK, never) == "never kept"
    assert project.look("why", "spare.weight") == "never kept"
    assert project.look(DDPLINT_NO_CACHE="1") == "never kept"
    inner = Project(project.folder, project.cached)
    inner.folder = project.folder / "pkg"
    assert inner.look(PYTHONPATH=project.environment()["PYTHONPATH"]) == "there is no entry"


@pytest.mark.parametrize(
    "other",
    [
        "import ddplint; ddplint.__version__ = '9'",
        "import sys; sys.version = '3.99'",
        "import sys; sys.executable = '/usr/bin/python'",
        "import sys; sys.path.insert(0, '/elsewhere')",
        "import sys; sys.stdout.isatty = lambda: True",
    ],
)
def test_versions_search_path_and_terminal_count(project: Project, other: str) -> None:
    assert project.python(f"{other}\n{LOOK}").stdout.strip() == "there is no entry"


def test_torch_and_ddplint_itself_count(project: Project) -> None:
    (entry,) = [file for file in project.entries() if json.loads(file.read_bytes().partition(b"\n")[2])["answer"]["out"]][:1]
    whole = entry.read_bytes()
    body = json.loads(whole.partition(b"\n")[2])
    known = body["tables"]["files"]
    for end in ("/torch/version.py", "/torch/nn/modules/linear.py", "/ddplint/usage.py", "/ddplint/checks/registry.py"):
        (path,) = [path for path in known if path.endswith(end)]
        other = {**body, "tables": {**body["tables"], "files": {**known, path: "s:1:2:3:4"}}}
        _sealed(entry, other)
        assert project.look() == f"{path} has changed"
    entry.write_bytes(whole)


def _sealed(file: Path, body: object) -> None:
    data = json.dumps(body).encode()
    file.write_bytes(f"ddplint cache 1 {fingerprints.digest(data)}\n".encode() + data)


def test_a_damaged_entry_is_a_miss(project: Project) -> None:
    (entry,) = project.entries()
    whole = entry.read_bytes()
    middle = len(whole) // 2
    for data in (b"", whole[:30], whole[:middle], whole[:-1], whole[:middle] + b"\0" + whole[middle + 1 :], b"\xff" * 99):
        entry.write_bytes(data)
        assert project.look() == "the entry is damaged"
    bodies: tuple[object, ...] = ([], {}, {"key": json.loads(whole.partition(b"\n")[2])["key"]})
    for body in bodies:
        _sealed(entry, body)
        assert project.look() == "the entry is damaged"
    _sealed(entry, {"key": "of another command line with the same hash"})
    assert project.look() == "there is no entry"
    entry.write_bytes(whole)


def test_what_others_can_write_is_not_trusted(project: Project) -> None:
    (entry,) = project.entries()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    assert stat.S_IMODE(project.cached.stat().st_mode) == 0o700
    for path, mode in ((entry, 0o622), (project.cached, 0o722)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        assert project.look() == "there is no entry"
        path.chmod(before)
    moved = entry.rename(project.folder / "moved")
    entry.symlink_to(moved)
    assert project.look() == "there is no entry"
    moved.replace(entry)


def test_a_change_is_seen_and_answered(project: Project) -> None:
    """The whole way: another answer for another model, the first one again for the first model."""
    net = project.folder / "net.py"
    before = net.read_text()
    (entry,) = project.entries()
    kept = entry.read_bytes()
    first = project.run().stdout
    net.write_text(before.replace("return lazy.scaled(self.used(x))", "return lazy.scaled(self.spare(self.used(x)))"))
    changed = project.run()
    assert "DDP102" in changed.stdout
    assert changed.returncode == 1
    assert project.run().stdout == changed.stdout
    net.write_text(before)
    assert project.look() == f"{net} has changed"
    entry.write_bytes(kept)
    assert project.run().stdout == first


@pytest.fixture
def tiny(tmp_path: Path) -> Project:
    """A target that traces in no time, not traced yet."""
    project = Project(tmp_path / "tiny", tmp_path / "cache")
    project.arguments = ["check", "--target", "tiny.py", *QUICK]
    (tmp_path / "tiny").mkdir()
    _target(project)
    return project


def _target(project: Project, *lines: str) -> None:
    build = textwrap.indent("\n".join((*lines, "return torch.nn.Linear(2, 2)")), "    ")
    text = f"import torch\ndef build():\n{build}\ndef inputs():\n    return (torch.zeros(1, 2),), {{}}\n"
    write(project.folder, {"tiny.py": text})


def test_ten_at_once_all_answer_right(tiny: Project) -> None:
    def at_once() -> list[tuple[int, str]]:
        command = [sys.executable, "-c", RUN, *tiny.arguments]
        running = [
            subprocess.Popen(
                command, cwd=tiny.folder, env=tiny.environment(), stdin=subprocess.DEVNULL, stdout=-1, stderr=-1, text=True
            )
            for _ in range(11)
        ]
        time.sleep(0.3)
        running[5].send_signal(signal.SIGKILL)
        done = [(process.communicate()[0], process.returncode) for process in running]
        return [(code, out.split("traced on")[0]) for out, code in done[:5] + done[6:]]

    cold = at_once()
    assert len(set(cold)) == 1
    assert cold[0][0] == 0
    assert "tiny.py:build: ok" in cold[0][1]
    assert tiny.look() == "hit"
    assert at_once() == cold
    assert len(tiny.entries()) == 1
    assert not [name for name in os.listdir(tiny.cached) if name.endswith(".tmp")]


def test_what_can_not_be_given_again_is_not_kept(tiny: Project) -> None:
    _target(tiny, "import subprocess; subprocess.run(['true'])", "open(__file__, 'a').write('#')")
    done = tiny.run(*tiny.arguments, "--verbose")
    assert done.returncode == 0
    assert "the answer is not kept: the target starts a process; " in done.stderr
    assert "tiny.py was changed just now, or while it ran" in done.stderr
    _target(tiny, "raise ValueError")
    assert tiny.run().returncode == 2
    assert not tiny.entries()


def test_what_the_target_makes_for_itself_is_no_input(tiny: Project) -> None:
    _target(
        tiny,
        "import os, tempfile",
        "with tempfile.TemporaryDirectory() as folder:",
        "    open(os.path.join(folder, 'a'), 'w').write('1')",
        "    assert open(os.path.join(folder, 'a')).read() == '1' and os.listdir(folder)",
        "open('log.txt', 'a').write('built')",
        "os.environ['OWN'] = '1'; assert os.environ['OWN']",
    )
    (tiny.folder / "log.txt").touch()
    first = tiny.run()
    assert first.returncode == 0, first.stderr
    assert tiny.look(OWN="2") == "hit"


def test_the_report_in_a_file_is_written_again(tiny: Project) -> None:
    arguments = [*tiny.arguments, "--format", "json", "--output", "report.json"]
    report = tiny.folder / "report.json"
    assert tiny.run(*arguments).returncode == 0
    first = report.read_bytes()
    report.unlink()
    assert tiny.look(*arguments) == "hit"
    assert tiny.run(*arguments).returncode == 0
    assert report.read_bytes() == first
    report.write_text("something else")
    assert tiny.run(*arguments).returncode == 0
    assert report.read_bytes() == first
    report.unlink()
    report.mkdir()
    assert tiny.run(*arguments).returncode == 2  # said by the command line, as if nothing were kept


def test_without_a_place_for_it_nothing_is_kept_and_all_works(tiny: Project) -> None:
    write(tiny.folder, {"a-file": ""})
    done = tiny.run(*tiny.arguments, "--verbose", DDPLINT_CACHE_DIR=str(tiny.folder / "a-file" / "cache"))
    assert done.returncode == 0
    assert "the answer is not kept" in done.stderr
    assert tiny.run(*tiny.arguments, "--no-cache").returncode == 0
    assert not tiny.entries()


def test_a_full_disk_is_no_error(tiny: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPLINT_CACHE_DIR", str(tiny.cached))
    monkeypatch.delenv("DDPLINT_NO_CACHE", raising=False)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "replace", full)
    place = cache.place(["check"])
    assert place is not None
    assert cache.keep(place, cache.Answer("out", code=0), inputs.Recorder(), dict(os.environ)).endswith(
        "No space left on device"
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], cache.Place]:
    """Keeps an answer without inputs for the argument, in ``tmp_path``."""
    monkeypatch.setenv("DDPLINT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("DDPLINT_NO_CACHE", raising=False)

    def keep(argument: str, out: str) -> cache.Place:
        place = cache.place(["check", argument])
        assert place is not None
        assert cache.keep(place, cache.Answer(out, code=1), inputs.Recorder(), dict(os.environ)) == ""
        return place

    return keep


def test_the_entries_are_bounded_and_the_last_used_stay(
    kept: Callable[[str, str], cache.Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MOST", 3)
    places = []
    for number in range(3):
        places.append(kept(f"--{number}", "x"))
        os.utime(places[-1].file, (number, number))
    assert isinstance(cache.find(places[0]), cache.Answer)  # used now: it is not the oldest any more
    places.append(kept("--3", "x"))
    assert [isinstance(cache.find(place), cache.Answer) for place in places] == [True, False, True, True]
    monkeypatch.setattr(cache, "LARGEST", 2 * os.path.getsize(places[0].file))
    place = cache.place(["check", "--4"])
    assert place is not None
    reason = cache.keep(place, cache.Answer("x" * 10_000), inputs.Recorder(), dict(os.environ))
    assert reason == "the report is too large to be kept"
    monkeypatch.setattr(cache, "LARGEST", 8 * os.path.getsize(places[0].file))
    for number in range(20):
        kept(f"--{number}", "y" * 100)
    assert sum(length for _, length, _ in cache.entries(str(tmp_path / "cache"))) <= cache.LARGEST


def test_the_cache_command_shows_and_clears(kept: Callable[[str, str], cache.Place], tmp_path: Path, tiny: Project) -> None:
    place = kept("--quiet", "report")
    draft = Path(place.folder, ".0123456789abcdef.tmp")
    draft.touch()
    shown = tiny.run("cache", DDPLINT_CACHE_DIR=place.folder)
    assert shown.stdout == f"{place.folder}\n1 entry, 0.0 MiB of 64 MiB at most\n"
    assert tiny.run("cache", "clear", DDPLINT_CACHE_DIR=place.folder).stdout == f"deleted 1 entry from {place.folder}\n"
    assert os.listdir(place.folder) == []
    assert tiny.run("cache", DDPLINT_CACHE_DIR=str(tmp_path / "none")).stdout.endswith(
        "0 entries, 0.0 MiB of 64 MiB at most\n"
    )


def test_it_lives_where_the_platform_keeps_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache.folder({"DDPLINT_CACHE_DIR": "/named"}) == "/named"
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.folder({}) == "/home/somebody/.cache/ddplint"
    assert cache.folder({"XDG_CACHE_HOME": "/xdg"}) == "/xdg/ddplint"
    assert cache.folder({"XDG_CACHE_HOME": "relative"}) == "/home/somebody/.cache/ddplint"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.folder({}) == "/home/somebody/Library/Caches/ddplint"
    monkeypatch.setattr(sys, "platform", "win32")
    assert cache.folder({"LOCALAPPDATA": "/local"}) == "/local/ddplint"
    assert cache.folder({}) is None


def test_a_broken_pipe_is_as_without_the_cache(
    traced: tuple[Project, subprocess.CompletedProcess[str]], project: Project
) -> None:
    first = traced[1]
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", RUN, *project.arguments],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (first.returncode, first.stderr)
