"""Where a project's rule files are, and its settings: ``[tool.ddplint]`` in pyproject.toml, or ddplint.toml.

Nothing here imports torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from ddplint.errors import DdplintError
from ddplint.fields import (
    Field,
    ListOf,
    Number,
    Place,
    Table,
    Text,
    did_you_mean,
    faults,
    quoted,
    read_toml,
    refuse,
    shown,
)
from ddplint.request import Device
from ddplint.rules import RuleFile, load_rule_file

Source = Literal["option", "pyproject", "folder", "embedded"]

CONFIG_FILES = ("pyproject.toml", "ddplint.toml")

_CODES = ListOf(
    Text("a rule code such as DDP101, or its beginning", pattern=r"DDP\d{0,3}"),
    "a list of rule codes",
    hint='write ["DDP101"]',
)
SETTINGS = Table(
    {
        "rules": Field(Text("a folder", pattern=r"[\s\S]+"), "The folder of the rule files."),
        "device": Field(Text("a device", choices=get_args(Device)), "As --device."),
        "timeout": Field(Number("a number of seconds above 0", positive=True), "As --timeout, in seconds."),
        "select": Field(_CODES, "As --select: the rule codes that are reported."),
        "ignore": Field(_CODES, "As --ignore: the rule codes that are not reported."),
    },
    says="a table [tool.ddplint]",
)


@dataclass(frozen=True, slots=True)
class Project:
    """Where ddplint looks, and with which settings.

    ``root`` is the project's folder, ``base`` the one that targets' relative paths start from (the root; with
    the embedded rule files the working folder). ``source`` says how ``rules_dir`` was found: --rules, the
    configuration's key ``rules``, a folder of that name, or ddplint's own. ``config`` is the file with the
    settings, if there is one, and ``given`` the keys that it has.
    """

    root: Path
    base: Path
    rules_dir: Path
    source: Source
    config: Path | None = None
    device: Device = "auto"
    timeout: float = 300.0
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    given: frozenset[str] = frozenset()


def find_project(working: Path, rules: Path | None = None) -> Project:
    """The project that the folder ``working`` is in; ``rules`` is the folder that --rules names.

    The configuration is the nearest one upward. Without one, a ``rules`` folder counts if it is in
    ``working`` or above, up to the nearest folder with pyproject.toml or .git. Raises DdplintError for a
    wrong configuration and for a rules folder that was named and is none.
    """
    working = working.absolute()
    found = _find_config(working)
    settings: Mapping[str, Any] = {}
    if found is not None:
        config, settings = found
        root = config.parent
    else:
        config, root = None, _find_root(working)

    source: Source
    if rules is not None:
        rules_dir, source = _named_folder(working / rules, where="--rules"), "option"
    elif config is not None and "rules" in settings:
        rules_dir, source = (
            _named_folder(root / settings["rules"], where=f"{shown(config)}: rules"),
            "pyproject",
        )
    elif (near := _find_rules_folder(root if config else working, root)) is not None:
        rules_dir, source, root = near, "folder", near.parent
    else:
        rules_dir, source = embedded_rules(), "embedded"
    return Project(
        root=root,
        base=working if source == "embedded" else root,
        rules_dir=rules_dir,
        source=source,
        config=config,
        device=settings.get("device", "auto"),
        timeout=float(settings.get("timeout", 300.0)),
        select=tuple(settings.get("select", ())),
        ignore=tuple(settings.get("ignore", ())),
        given=frozenset(settings),
    )


def _find_config(working: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The nearest configuration at or above ``working`` with its settings, known to be right."""
    for folder in (working, *working.parents):
        found = [
            (path, settings)
            for path in (folder / name for name in CONFIG_FILES)
            if (settings := _settings(path)) is not None
        ]
        if len(found) > 1:
            both = " and ".join(path.name for path, _ in found)
            raise DdplintError(f"{both} both configure ddplint", where=shown(folder), fix="keep one of them")
        if found:
            return found[0]
    return None


def _settings(path: Path) -> Mapping[str, Any] | None:
    """The settings in ``path``; None where the file is missing or, as pyproject.toml, has none."""
    place: Place = ()
    if not os.path.isfile(path):
        return None
    if path.name == "pyproject.toml":
        place = ("tool", "ddplint")
        # Other tools' pyproject.toml files are not ours to parse, and not ours to complain about.
        if b"ddplint" not in _bytes(path):
            return None
    document = read_toml(path)
    settings: Any = document.data
    for key in place:
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    if settings is None:
        return None
    refuse(document, faults(SETTINGS, settings, place))
    return cast("Mapping[str, Any]", settings)


def _find_root(working: Path) -> Path:
    for folder in (working, *working.parents):
        if os.path.isfile(folder / "pyproject.toml") or os.path.exists(folder / ".git"):
            return folder
    return working


def _find_rules_folder(start: Path, root: Path) -> Path | None:
    """The nearest ``rules`` folder of ddplint's from ``start`` up to ``root``."""
    for folder in (start, *start.parents):
        if any(_is_rule_file(path) for path in _toml_files(folder / "rules")):
            return folder / "rules"
        if folder == root:
            break
    return None


def _is_rule_file(path: Path) -> bool:
    """Whether ``path`` means to be a rule file, even a faulty one: passing over it would hide the fault."""
    try:
        data = read_toml(path).data
    except DdplintError:
        return re.search(rb"^\s*\[?\s*checkpoint\b", _bytes(path), re.MULTILINE) is not None
    return "checkpoint" in data or "unused" in data


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _toml_files(folder: Path) -> list[Path]:
    """The TOML files in ``folder``, sorted, without the hidden ones of editors; none if it is no folder."""
    if not os.path.isdir(folder):
        return []
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise DdplintError(f"can't be read: {error.strerror}", where=shown(folder)) from None
    return [folder / name for name in names if name.endswith(".toml") and not name.startswith(".")]


def _named_folder(folder: Path, where: str) -> Path:
    """``folder``, which the user has named at ``where``: it must hold rule files."""
    if not os.path.exists(folder):
        raise DdplintError(f"no such folder: {shown(folder)}", where=where, fix="name the folder of the rule files")
    if not os.path.isdir(folder):
        raise DdplintError(f"not a folder: {shown(folder)}", where=where, fix="name the folder of the rule files")
    if not _toml_files(folder):
        raise DdplintError(f"no rule file (*.toml) in {shown(folder)}", where=where, fix="`ddplint init` writes one")
    return folder


def embedded_rules(package: Path = Path(__file__).parent) -> Path:
    """The folder of the rule files that come with ddplint.

    In a wheel they are package data, ``ddplint/_rules``; an editable install has the checkout's ``rules``.
    Raises DdplintError where neither is there.
    """
    checkout = package.parent
    if _toml_files(package / "_rules"):
        return package / "_rules"
    if os.path.isfile(checkout / "pyproject.toml") and _toml_files(checkout / "rules"):
        return checkout / "rules"
    raise DdplintError("ddplint's own rule files are missing", where=str(package), fix="install ddplint again")


def all_rule_files(project: Project) -> tuple[RuleFile, ...]:
    """The project's rule files, sorted by name.

    Raises DdplintError for the first that is wrong, and for two of one name.
    """
    files = [load_rule_file(path, project.base) for path in _toml_files(project.rules_dir)]
    _refuse_twins(project, [(file.name, Path(file.path)) for file in files])
    return tuple(sorted(files, key=lambda file: file.name))


def find_rule_file(project: Project, name: str) -> RuleFile:
    """The rule file of the checkpoint type ``name``.

    Raises DdplintError where there is none (with the nearest name and the list), where it is wrong, and where
    two files have one name. A fault in another file is no reason to refuse this one.
    """
    paths = _toml_files(project.rules_dir)
    named = [(known, path) for path in paths if (known := _name(path)) is not None]
    _refuse_twins(project, named)
    types = dict(named)
    if name in types:
        return load_rule_file(types[name], project.base)
    for path in paths:
        if path not in types.values():
            load_rule_file(path, project.base)  # a file without a name may be the one that is meant: its fault is said
    listed = f"there are: {', '.join(sorted(types))}" if types else "there are none"
    what = f"no checkpoint type {quoted(name)}{did_you_mean(name, types)} ({listed})"
    raise DdplintError(what, where=shown(project.rules_dir))


def _name(path: Path) -> str | None:
    """The checkpoint type that a rule file names, whatever else may be wrong with the file."""
    try:
        checkpoint = read_toml(path).data.get("checkpoint")
    except DdplintError:
        return None
    name = checkpoint.get("name") if isinstance(checkpoint, Mapping) else None
    return name if isinstance(name, str) else None


def _refuse_twins(project: Project, named: Iterable[tuple[str, Path]]) -> None:
    seen: dict[str, Path] = {}
    for name, path in named:
        other = seen.setdefault(name, path)
        if other != path:
            what = f"{other.name} and {path.name} both name the checkpoint type {quoted(name)}"
            raise DdplintError(what, where=shown(project.rules_dir), fix="give each its own [checkpoint] name")
