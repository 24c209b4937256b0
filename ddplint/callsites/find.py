"""Which files are looked at, and everything that is found in them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddplint.callsites import python, shell, yaml_
from ddplint.callsites.model import Wrap
from ddplint.callsites.source import Source, python_source, read, utf8_source
from ddplint.errors import DdplintError
from ddplint.fields import shown

PYTHON, YAML = (".py", ".pyw"), (".yaml", ".yml")
SHELL = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")

_FOREIGN_FOLDERS = ("__pycache__", "node_modules", "site-packages", "dist-packages", "venv")


@dataclass(frozen=True, slots=True)
class Found:
    """All wraps, by file and place; ``files`` were read; ``notices`` are about those that could not be.

    ``failed``: one of these was named itself, not just in a folder.
    """

    wraps: tuple[Wrap, ...]
    files: int
    notices: tuple[str, ...] = ()
    failed: bool = False


def find(paths: Sequence[Path]) -> Found:
    """The wraps in ``paths``: files, and folders with all that is in them but what is hidden or not the project's own.

    Raises DdplintError for a path that is not there.
    """
    named = {path.absolute() for path in paths if not path.is_dir()}
    modules = python.Modules()
    found: list[Wrap] = []
    notices: list[str] = []
    files, failed = 0, False
    for path in sorted({file for place in paths for file in _files(place)}):
        try:
            data = read(path)
            if path in named and _language(path, data) is None:
                raise DdplintError("not Python, YAML or a shell script", where=shown(path))
            found += _wraps(path, data, modules)
            files += 1
        except DdplintError as error:
            notices.append(str(error))
            failed = failed or path in named
    return Found(tuple(sorted(found, key=lambda w: (w.file, w.line, w.column))), files, tuple(notices), failed)


def matching(patterns: Iterable[str], folder: Path, where: str) -> list[Path]:
    """The files that ``patterns``, paths or globs in ``folder``, name; ``where`` they are given.

    Raises DdplintError for one that names no file.
    """
    files: list[Path] = []
    for pattern in patterns:
        try:
            named = sorted(path for path in folder.glob(pattern) if path.is_file())
        except (ValueError, NotImplementedError) as error:
            raise DdplintError(f"not a path or glob: {pattern!r} ({error})", where=f"{where}: ddp.source") from None
        if not named:
            fix = "name files or globs from the project's folder"
            raise DdplintError(f"no such file: {pattern!r} in {shown(folder)}", where=f"{where}: ddp.source", fix=fix)
        files += named
    return files


def source_of(path: Path) -> Source:
    """The file ``path`` as ``find`` reads it. Raises DdplintError where it can't be read."""
    data = read(path)
    return python_source(path, data) if _language(path, data) == "python" else utf8_source(path, data)


def _wraps(path: Path, data: bytes, modules: python.Modules) -> list[Wrap]:
    language = _language(path, data)
    if language == "python" and python.MARKS.search(data):
        return python.wraps(python_source(path, data), modules)
    if language == "yaml" and yaml_.MARKS.search(data):
        return yaml_.wraps(utf8_source(path, data))
    if language == "shell" and shell.MARKS.search(data):
        return shell.wraps(utf8_source(path, data))
    return []


def _language(path: Path, data: bytes) -> str | None:
    """By the file's name, else by its first line."""
    for language, suffixes in (("python", PYTHON), ("yaml", YAML), ("shell", SHELL)):
        if path.suffix in suffixes:
            return language
    first = data[:200].split(b"\n", 1)[0]
    if path.suffix or not first.startswith(b"#!"):
        return None
    return "python" if b"python" in first else "shell" if first.rstrip().endswith((b"sh", b"sh -e")) else None


def _files(path: Path) -> Iterator[Path]:
    path = path.absolute()
    if not path.exists():
        raise DdplintError("no such file or folder", where=shown(path))
    if not path.is_dir():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if _own(Path(folder, name)))
        for name in names:
            file = Path(folder, name)
            wanted = file.suffix in (*PYTHON, *YAML, *SHELL) or ("." not in name and os.access(file, os.X_OK))
            if wanted and not name.startswith(".") and file.is_file():
                yield file


def _own(folder: Path) -> bool:
    """Whether a folder can hold the project's own source."""
    hidden = folder.name.startswith(".") or folder.name in _FOREIGN_FOLDERS
    return not hidden and not (folder / "pyvenv.cfg").exists()
