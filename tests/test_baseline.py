"""What a change adds and removes, in scratch git repositories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ddplint import baseline
from ddplint.analysis import Parameter
from ddplint.config import find_project
from ddplint.errors import DdplintError
from tests.made import analysis, entry, frozen, rules, unused, used

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.heads = nn.ModuleDict({"spare": nn.Linear(4, 4), "extra": nn.Linear(4, 4)})

    def forward(self, x):
        return self.used(x) + self.heads["extra"](x)


def build():
    return Net()


def inputs():
    return (torch.ones(2, 4),), {}


def loss(output):
    return output.sum()
"""
STRANDED = MODEL.replace('self.heads["extra"](x)', 'self.heads["extra"](x).detach()')
RULES = """\
[checkpoint]
name = "one"

[target]
factory = "{place}:build"
inputs = "{place}:inputs"
loss = "{place}:loss"

[[unused]]
params = ["heads.**"]
reason = "heads of other tasks"
action = "allow"
"""


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=ddplint", "-c", "user.email=tests@localhost", "-c", "init.defaultBranch=main"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(["git", *who, *arguments], cwd=folder, env=own, capture_output=True, text=True, check=True)
    return done.stdout


def commit(folder: Path, files: dict[str, str], message: str = "change") -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def check(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``ddplint check``, in a process of its own."""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "ddplint", "check", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def stranding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose last commit strands a layer behind a broad glob."""
    folder = tmp_path_factory.mktemp("repository")
    commit(folder, {"net.py": MODEL, "rules/one.toml": RULES.format(place="net.py").replace("heads.**", "heads.spare.**")})
    commit(folder, {"rules/one.toml": RULES.format(place="net.py")}, "A broad glob")
    commit(folder, {"net.py": STRANDED}, "Strand a layer")
    return folder


@needs_git
def test_a_layer_that_the_last_commit_strands_behind_a_broad_glob(stranding: Path) -> None:
    assert check(stranding, "--ckpt", "one", "--base", "HEAD")[0] == 0
    code, out, _ = check(stranding, "--ckpt", "one", "--base", "HEAD~1")
    assert code == 1
    assert "this change strands 2 parameters of `heads.extra`" in out
    assert "under one" in out
    assert "net.py:12" in out
    assert 'self.heads["extra"](x).detach()' in out
    assert "spare" not in out.partition("DDP107")[2].partition("trainable parameters")[0]


@needs_git
def test_the_json_report_has_what_changed_and_nothing_of_git_is_left(stranding: Path) -> None:
    before = git(stranding, "status", "--porcelain"), git(stranding, "worktree", "list")
    code, out, _ = check(stranding, "--ckpt", "one", "--base", "HEAD~1", "--format", "json")
    (result,) = json.loads(out)["results"]
    assert (code, [finding["code"] for finding in result["findings"]]) == (1, ["DDP107"])
    assert result["findings"][0]["location"] == {"file": "net.py", "line": 12}
    revision = git(stranding, "rev-parse", "HEAD~1").strip()
    assert result["base"] == {
        "rev": "HEAD~1",
        "commit": revision,
        "stranded": ["heads.extra.weight", "heads.extra.bias"],
        "freed": [],
    }
    assert (git(stranding, "status", "--porcelain"), git(stranding, "worktree", "list")) == before


@needs_git
def test_the_working_folder_counts_not_the_last_commit(stranding: Path, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(stranding), str(folder))
    (folder / "net.py").write_text(MODEL)  # mended, not committed
    code, out, err = check(folder, "--ckpt", "one", "--base", "HEAD")
    assert (code, "DDP107" in out, "DDP102" in out) == (1, False, True)  # and the broad glob is stale now
    assert "2 parameters that were unused at HEAD are used now, or gone" in err


@needs_git
def test_a_package_in_a_subfolder_is_imported_from_the_revision(tmp_path: Path) -> None:
    """Also where the folder of the user's package is on Python's path, as an editable install puts it."""
    files = {
        "app/src/nets/__init__.py": "",
        "app/src/nets/one.py": MODEL,
        "app/rules/one.toml": RULES.format(place="nets.one"),
    }
    commit(tmp_path, {**files, "app/pyproject.toml": ""})
    commit(tmp_path, {"app/src/nets/one.py": STRANDED})
    root = Path(__file__).parents[1]
    path = os.pathsep.join([str(root), str(tmp_path / "app" / "src")])
    done = subprocess.run(
        [sys.executable, "-m", "ddplint", "check", "--ckpt", "one", "--base", "HEAD~1"],
        cwd=tmp_path / "app",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "strands 2 parameters of `heads.extra`" in done.stdout


@needs_git
def test_a_type_that_the_revision_does_not_have_is_new_as_a_whole(tmp_path: Path) -> None:
    commit(tmp_path, {"net.py": MODEL})
    commit(tmp_path, {"net.py": STRANDED, "rules/one.toml": RULES.format(place="net.py")})
    code, out, _ = check(tmp_path, "--ckpt", "one", "--base", "HEAD~1")
    assert (code, "DDP107" in out) == (0, False)  # and what its own entries say is agreed to
    code, out, _ = check(tmp_path, "--target", "net.py", "--base", "HEAD~1", "--format", "json")
    assert json.loads(out)["results"][0]["base"]["stranded"] == ["heads.extra.weight", "heads.extra.bias"]
    assert code == 1


@needs_git
@pytest.mark.parametrize("hook", [False, True])
def test_no_hook_runs_and_the_variables_of_one_do_no_harm(hook: bool, stranding: Path, tmp_path: Path) -> None:
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(stranding), str(folder))
    trap = folder / ".git" / "hooks" / "post-checkout"
    trap.parent.mkdir(exist_ok=True)
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    trap.chmod(0o755)
    project = find_project(folder)
    with pytest.MonkeyPatch.context() as patch:
        if hook:
            patch.setenv("GIT_DIR", str(folder / ".git"))
            patch.setenv("GIT_INDEX_FILE", str(folder / ".git" / "index"))
        with baseline.checkout(project, folder, None, "HEAD~1") as old:
            assert "detach" not in (old.tree / "net.py").read_text()
            assert [getattr(subject, "title", None) for subject in old.subjects] == ["one"]
    assert not old.tree.exists()
    assert not (tmp_path / "ran").exists()


@needs_git
def test_what_fails_inside_leaves_nothing(stranding: Path) -> None:
    with pytest.raises(KeyboardInterrupt), baseline.checkout(find_project(stranding), stranding, None, "HEAD") as old:
        raise KeyboardInterrupt
    assert not old.tree.exists()
    assert len(git(stranding, "worktree", "list").splitlines()) == 1


@needs_git
def test_a_signal_leaves_nothing(stranding: Path) -> None:
    script = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom ddplint import baseline\n"
        "from ddplint.config import find_project\nhere = Path.cwd()\n"
        "with baseline.checkout(find_project(here), here, None, 'HEAD') as old:\n"
        "    print(old.tree, flush=True)\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=stranding,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 143
    assert not Path(done.stdout.strip()).exists()
    assert len(git(stranding, "worktree", "list").splitlines()) == 1


@needs_git
def test_wrong_revisions_and_folders_are_a_line(stranding: Path, tmp_path: Path) -> None:
    for rev in ("nowhere", "--help", ""):
        code, out, err = check(stranding, "--ckpt", "one", f"--base={rev}")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "no revision" in err
    (tmp_path / "net.py").write_text(MODEL)
    code, _, err = check(tmp_path, "--target", "net.py", "--base", "HEAD")
    assert (code, "not a git repository" in err) == (2, True)


@needs_git
def test_a_revision_that_can_not_be_analysed_is_a_line(tmp_path: Path) -> None:
    commit(
        tmp_path,
        {"net.py": MODEL.replace("return Net()", "raise ValueError('old')"), "rules/one.toml": RULES.format(place="net.py")},
    )
    commit(tmp_path, {"net.py": MODEL})
    code, _, err = check(tmp_path, "--ckpt", "one", "--base", "HEAD~1")
    assert code == 2
    assert err.startswith("error: at HEAD~1: ")
    assert err.count("\n") == 1


def test_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(DdplintError, match="git is not installed"),
        baseline.checkout(find_project(tmp_path), tmp_path, None, "HEAD"),
    ):
        pass


# ---------------------------------------------------------------------- what counts as a change


def stranded(
    now: Sequence[Parameter], was: Sequence[Parameter], *, entries: Sequence[Any] = (), before: Sequence[Any] = ()
) -> tuple[list[str], list[str]]:
    found = baseline.difference(analysis(*now), analysis(*was), rules(*entries), rules(*before), "main", "abc")
    return list(found.stranded), list(found.freed)


def test_what_was_used_or_was_not_there_or_was_frozen_is_stranded() -> None:
    now = [unused("a"), unused("b"), unused("c"), unused("d")]
    assert stranded(now, [used("a"), frozen("c"), unused("d")]) == (["a", "b", "c"], [])


def test_fewer_paths_are_stranded_and_more_are_not() -> None:
    some: dict[str, Any] = {"usage": "sometimes", "cause": "conditional"}
    assert stranded([unused("a")], [unused("a", **some)]) == (["a"], [])
    assert stranded([unused("a", **some)], [unused("a")]) == ([], [])
    assert stranded([unused("a", **some)], [used("a")]) == (["a"], [])


def test_what_is_used_again_or_gone_is_freed() -> None:
    assert stranded([used("a")], [unused("a"), unused("b")]) == ([], ["a", "b"])


def test_only_a_pattern_that_the_change_writes_agrees_to_it() -> None:
    broad, exact = entry("heads.**"), entry("heads.a.**")
    now, was = [unused("heads.a.w")], [used("heads.a.w")]
    assert stranded(now, was, entries=[broad], before=[broad]) == (["heads.a.w"], [])
    assert stranded(now, was, entries=[broad, exact], before=[broad]) == ([], [])
    assert stranded(now, was, entries=[exact], before=[broad]) == ([], [])


def test_a_pattern_that_is_made_wider_agrees_to_nothing() -> None:
    now, was = [unused("heads.a.w"), unused("heads.b.w")], [used("heads.a.w"), unused("heads.b.w")]
    assert stranded(now, was, entries=[entry("heads.**")], before=[entry("heads.b.**")]) == (["heads.a.w"], [])
