"""Which files are looked at, in which order, and what is said of those that can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddplint.callsites.find import find, matching
from ddplint.errors import DdplintError

WRAP = "from torch.nn.parallel import DistributedDataParallel as DDP\nDDP(m, find_unused_parameters=True)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, text: str = WRAP) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_is_searched_for_the_projects_own_files(project: Path) -> None:
    for name in ("b.py", "a/z.py", "a/b/c.py"):
        write(project, name)
    for name in (".git/x.py", "venv/x.py", "a/node_modules/x.py", "env/lib/site-packages/x.py", "a/__pycache__/x.py"):
        write(project, name)
    write(project, "mine/pyvenv.cfg", "")
    write(project, "mine/x.py")
    write(project, ".hidden.py")
    write(project, "notes.txt")
    found = find([project])
    assert [Path(wrap.file).relative_to(project).as_posix() for wrap in found.wraps] == ["a/b/c.py", "a/z.py", "b.py"]
    assert (found.files, found.notices, found.failed) == (3, (), False)


def test_a_file_in_two_paths_is_read_once(project: Path) -> None:
    path = write(project, "a/train.py")
    assert len(find([project, path, project / "a", Path("a")]).wraps) == 1


def test_all_languages_are_read_by_name_and_first_line(project: Path) -> None:
    write(project, "train.py")
    write(project, "config.yaml", "strategy: ddp_find_unused_parameters_true\n")
    write(project, "run.sh", "python x.py --ddp_find_unused_parameters True\n")
    script = write(project, "launch", "#!/bin/bash\npython x.py --ddp_find_unused_parameters True\n")
    script.chmod(0o755)
    write(project, "tool", f"#!/usr/bin/env python3\n{WRAP}").chmod(0o755)
    forms = {Path(wrap.file).name: wrap.form for wrap in find([project]).wraps}
    assert forms == {
        "train.py": "call",
        "config.yaml": "strategy-name",
        "run.sh": "shell",
        "launch": "shell",
        "tool": "call",
    }


def test_what_cant_be_read_is_a_notice_and_the_rest_is_found(project: Path) -> None:
    write(project, "broken.py", f"{WRAP}(")
    write(project, "broken.yaml", "a: [DDPStrategy\n")
    write(project, "train.py")
    found = find([project])
    assert len(found.wraps) == 1
    assert [notice.partition(" ")[0] for notice in found.notices] == ["broken.py:3:", "broken.yaml:2:"]
    assert not found.failed
    assert find([project / "broken.py"]).failed


def test_a_broken_file_without_a_sign_of_ddp_is_not_parsed(project: Path) -> None:
    write(project, "broken.py", "print 'Python 2'\n")
    assert find([project]).notices == ()


def test_a_path_that_is_none_or_no_source(project: Path) -> None:
    with pytest.raises(DdplintError, match="gone: no such file or folder"):
        find([project / "gone"])
    found = find([write(project, "notes.txt")])
    assert found.failed
    assert found.notices == ("notes.txt: not Python, YAML or a shell script",)


def test_patterns_are_files_and_globs_from_the_folder(project: Path) -> None:
    for name in ("train.py", "scripts/b.sh", "scripts/a.sh"):
        write(project, name)
    assert matching(["train.py", "scripts/*.sh"], project, "rules/x.toml") == [
        project / "train.py",
        project / "scripts" / "a.sh",
        project / "scripts" / "b.sh",
    ]
    with pytest.raises(DdplintError, match=r"rules/x.toml: ddp.source: no such file: 'trian.py'"):
        matching(["trian.py"], project, "rules/x.toml")
