"""What a change adds and removes: the same types, analysed as they were at a git revision.

The revision is checked out to a temporary worktree, which is removed again whatever happens; the project's own index and
files are not touched, and no hook of it runs. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddplint import checking
from ddplint.analysis import Analysis
from ddplint.checking import Options, Subject, analysed
from ddplint.checks import registry
from ddplint.checks.base import Base, Case, Finding
from ddplint.config import Project, find_project
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.report import Result
from ddplint.rules import RuleFile, matches

STRANDED, UNDOCUMENTED = "DDP107", "DDP101"  # what a change strands; what no entry documents


@dataclass(frozen=True, slots=True)
class Checkout:
    """A revision in a folder of its own. ``top`` is the project's repository, ``tree`` the revision's files.

    ``subjects`` are the checkpoint types that it has, or what is wrong with their rule files.
    """

    rev: str
    commit: str
    top: Path
    tree: Path
    working: Path
    subjects: tuple[Subject | DdplintError, ...]


@contextlib.contextmanager
def checkout(project: Project, working: Path, rules: Path | None, rev: str) -> Iterator[Checkout]:
    """``rev`` of the repository that ``working`` is in, while the block runs.

    Raises DdplintError where there is no git, no repository or no such revision, and for a wrong configuration in it.
    """
    top = Path(_git(working, "rev-parse", "--show-toplevel"))
    commit = _git(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{rev}^{{commit}}", rev=rev)
    folder = Path(tempfile.mkdtemp(prefix="ddplint-base-")).resolve()
    tree = folder / "tree"
    before = _terminating()
    try:
        _git(top, "worktree", "add", "--detach", "--force", str(tree), commit)
        there = _moved(working, top, tree)
        subjects: tuple[Subject | DdplintError, ...] = ()
        if there.is_dir():
            named = rules if rules is None or not rules.is_absolute() else _moved(rules, top, tree)
            with contextlib.chdir(there):
                old = find_project(there, named if named is None or (there / named).is_dir() else None)
                if (old.source == "embedded") == (project.source == "embedded"):
                    subjects = checking.all_of(old)
        yield Checkout(rev, commit, top, tree, there, subjects)
    finally:
        with contextlib.suppress(DdplintError):
            _git(top, "worktree", "remove", "--force", str(tree))
        shutil.rmtree(folder, ignore_errors=True)
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _terminating() -> Any:
    """Let SIGTERM end the process as an exit does, so that nothing is left behind. Returns what it did before; None where
    that can't be changed (another thread than the main one).
    """

    def leave(*_: object) -> None:
        sys.exit(128 + signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, leave)


@contextlib.contextmanager
def optional(project: Project, working: Path, rules: Path | None, rev: str | None) -> Iterator[Checkout | None]:
    """As ``checkout``; None where no revision is asked for."""
    if rev is None:
        yield None
        return
    with checkout(project, working, rules, rev) as old:
        yield old


def _git(folder: Path, *arguments: str, rev: str | None = None) -> str:
    """What git says, without its last newline. Variables of a hook that runs this are not for another worktree."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env={**own, "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"},
            check=False,
        )
    except FileNotFoundError:
        raise DdplintError("git is not installed", where="--base", fix="install it, or leave --base out") from None
    if done.returncode == 0:
        return done.stdout.removesuffix("\n")
    if rev is not None:
        raise DdplintError(
            f"no revision {rev!r} in {shown(folder)}",
            where="--base",
            fix="fetch it first: a shallow clone has the last commits only",
        )
    lines = done.stderr.strip().splitlines() or ["it said nothing"]
    if "not a git repository" in done.stderr:
        raise DdplintError("not a git repository", where=shown(folder), fix="--base compares with a git revision")
    raise DdplintError(f"git {arguments[0]} failed: {lines[-1]}", where=shown(folder))


def _moved(path: Path, top: Path, tree: Path) -> Path:
    """``path`` in the checkout, if it is in the repository."""
    absolute = path.absolute().resolve()
    return tree / absolute.relative_to(top) if absolute.is_relative_to(top) else path


def against(result: Result, subject: Subject, options: Options, old: Checkout) -> Result:
    """``result`` with what is new about it alone: parameters that the change strands, and findings that were not there.

    A type that the revision does not have is new as a whole. Raises DdplintError where the revision has it and can't be
    analysed.
    """
    before = _before(subject, old)
    if before is None:
        base = difference(result.analysis, None, result.rules, None, old.rev, old.commit)
        return _with(result, base, frozenset(), options)
    was = _analysis(before, options, old)
    base = difference(result.analysis, was, result.rules, before.rules, old.rev, old.commit)
    with contextlib.chdir(old.working):
        wraps, _ = checking.source_wraps(before)
    known = frozenset(map(_key, registry.run(Case(was, before.rules, wraps))))
    return _with(result, base, known, options)


def _with(result: Result, base: Base, known: frozenset[object], options: Options) -> Result:
    case = Case(result.analysis, result.rules, result.wraps, base)
    findings = registry.run(case, options.select, options.ignore)
    stranded = frozenset(base.stranded)
    kept = tuple(f for f in findings if f.code == STRANDED or (_key(f) not in known and not _same(f, stranded)))
    return replace(result, findings=kept, base=base)


def _key(finding: Finding) -> object:
    """What makes a finding the same one at another revision: lines move, messages count."""
    return finding.code, finding.parameters


def _same(finding: Finding, stranded: frozenset[str]) -> bool:
    """Whether ``finding`` says no more than that these parameters are stranded."""
    return finding.code == UNDOCUMENTED and stranded.issuperset(finding.parameters)


def _before(subject: Subject, old: Checkout) -> Subject | None:
    """``subject`` as the revision has it; None if it does not."""
    if subject.rules is None:
        spec = replace(subject.target, base=str(_moved(Path(subject.target.base), old.top, old.tree)))
        module, colon, factory = spec.factory.rpartition(":")
        if not module.endswith(".py"):
            return Subject(spec)
        file = _moved(Path(subject.target.base, module), old.top, old.tree)
        return Subject(replace(spec, factory=f"{file}{colon}{factory}")) if file.is_file() else None
    for known in old.subjects:
        if isinstance(known, Subject) and known.title == subject.title:
            return known
    broken = [known for known in old.subjects if isinstance(known, DdplintError)]
    if broken:
        raise DdplintError(broken[0].what, where=f"at {old.rev}: {broken[0].where}", fix=broken[0].fix)
    return None


def _analysis(before: Subject, options: Options, old: Checkout) -> Analysis:
    """What the trace finds at the revision, with its own code and no other."""
    paths = os.pathsep.join(dict.fromkeys(_search_path(old)))
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (paths, known)))
    try:
        was = analysed(before, options, rehearse=True)
    except DdplintError as error:
        raise DdplintError(error.what, where=f"at {old.rev}: {error.where}", fix=error.fix) from None
    finally:
        if known is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = known
    places = [Path(p.location.file) for p in was.parameters if p.location is not None]
    if strange := next((p for p in places if p.is_relative_to(old.top) and not p.is_relative_to(old.tree)), None):
        raise DdplintError(
            f"{shown(strange)} was imported from the working folder",
            where=f"at {old.rev}",
            fix="a package that is installed in editable mode hides it; name the target's file in the rule file instead",
        )
    return was


def _search_path(old: Checkout) -> Iterator[str]:
    """Where the revision's modules are: the folders of the repository that this Python imports from, in the checkout."""
    folders = [*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for finder in sys.meta_path:  # editable installs of setuptools: a finder with the folders in a table
        module = sys.modules.get(getattr(finder, "__module__", ""))
        mapping = getattr(module, "MAPPING", None)
        folders += [os.path.dirname(path) for path in mapping.values()] if isinstance(mapping, dict) else []
    for folder in folders:
        if folder and Path(folder).resolve().is_relative_to(old.top):
            yield str(_moved(Path(folder), old.top, old.tree))


def difference(
    now: Analysis, was: Analysis | None, rules: RuleFile | None, before: RuleFile | None, rev: str, commit: str
) -> Base:
    """What changed from ``was`` (None: there was nothing) to ``now``.

    *Stranded*: trainable parameters that are unused, or used on fewer paths, and were not so before. Not those that an
    entry covers by a pattern which this change writes for them and for nothing else that is unused: that is how it is
    agreed to. *Freed*: what was unused and is used on every path now, or gone.
    """
    known = {p.name: p for p in was.parameters} if was is not None else {}
    worse = []
    for p in now.unused():
        earlier = known.get(p.name)
        if earlier is None or not earlier.trainable or earlier.usage not in (p.usage, "never"):
            worse.append(p)
    old = {pattern for entry in before.unused for pattern in entry.params} if before is not None else set()
    written = [pattern for entry in rules.unused for pattern in entry.params if pattern not in old] if rules else []
    others = [name for p in now.unused() if p not in worse for name in (p.name, *p.aliases)]
    agreed = [pattern for pattern in written if was is None or not any(matches(pattern, name) for name in others)]
    stranded = [p.name for p in worse if not any(matches(g, name) for g in agreed for name in (p.name, *p.aliases))]
    freed: list[str] = []
    unused = {p.name for p in now.unused()}
    if was is not None:
        freed = [p.name for p in was.unused() if p.name not in unused]
    return Base(rev, commit, tuple(stranded), tuple(freed))


def freed(result: Result) -> tuple[str, ...]:
    """A sentence about what is used again, if anything is: good news is no finding."""
    if result.base is None or not result.base.freed:
        return ()
    number = len(result.base.freed)
    were = "1 parameter that was" if number == 1 else f"{number:,} parameters that were"
    return (f"{were} unused at {result.base.rev} {'is' if number == 1 else 'are'} used now, or gone",)
