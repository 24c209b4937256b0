"""A finding as a code host knows it: a place inside the repository, the way to it, and an identity that lasts.

Hosts resolve paths from the root of the repository, whatever the working folder was, and drop what lies outside of it:
so a finding about an installed package is shown at the nearest place that is the user's own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ddplint.analysis import Location, Parameter
from ddplint.checks.base import Case, Finding

_INSTALLED = frozenset({"site-packages", "dist-packages"})  # also where a virtual environment lies in the repository


@dataclass(frozen=True, slots=True)
class Repository:
    """The files that belong to the user: those under ``root``. ``folder``: where relative paths start."""

    root: str
    folder: str

    def relative(self, file: str) -> str | None:
        """``file`` from the root, with forward slashes; None for what is no file of the repository."""
        if not file or file.startswith("<"):
            return None
        path = Path(os.path.normpath(Path(self.folder, file)))
        for root in (Path(self.root), Path(self.root).resolve()):
            if path.is_relative_to(root):
                inside = path.relative_to(root)
                return None if _INSTALLED.intersection(inside.parts) else inside.as_posix()
        return None

    def own(self, location: Location | None) -> Location | None:
        """``location`` with its file from the root; None if it is not in the repository."""
        file = self.relative(location.file) if location is not None else None
        if location is None or file is None:
            return None
        return replace(location, file=file, line=max(location.line, 1))


@functools.lru_cache(maxsize=8)
def repository(folder: str) -> Repository:
    """The repository that holds ``folder``: the nearest folder with a ``.git`` above it, else ``folder`` alone."""
    working = Path(folder)
    root = next((at for at in (working, *working.parents) if (at / ".git").exists()), working)
    return Repository(str(root), folder)


def nearest(case: Case, finding: Finding, home: Repository) -> Location | None:
    """Where to show ``finding``: its own place, else the nearest that is in the repository; None if there is none.

    Nearest are, in this order: other places on the way of its parameters, the rule entry about them, the target's
    factory, the rule file as a whole.
    """
    candidates = _candidates(case, finding, home)
    return next((own for place in candidates if (own := home.own(place)) is not None), None)


def _candidates(case: Case, finding: Finding, home: Repository) -> Iterator[Location | None]:
    yield finding.location
    for parameter in about(case, finding):
        yield from (parameter.location, parameter.checkpoint, parameter.bypass, parameter.zeroed)
    yield entry_place(case, finding)
    yield factory(case, home)
    yield rule_place(case)


def about(case: Case, finding: Finding) -> Iterator[Parameter]:
    """The parameters that ``finding`` names, in its order."""
    return (case.named[name] for name in dict.fromkeys(finding.parameters) if name in case.named)


def rule_place(case: Case) -> Location | None:
    """The rule file; None for a bare target."""
    return Location(case.rules.path, 1) if case.rules else None


def entry_place(case: Case, finding: Finding) -> Location | None:
    """The entry of the rule file that covers the first parameter of ``finding`` that has one."""
    covering = (case.covering(parameter) for parameter in about(case, finding))
    entry = next((found for found in covering if found is not None), None)
    return Location(case.rules.path, entry.line) if case.rules and entry else None


def factory(case: Case, home: Repository) -> Location | None:
    """Where the target's factory is defined; None if that can't be found without importing it."""
    return _definition(case.rules.target.factory if case.rules else case.analysis.target, case, home)


def loss(case: Case, home: Repository) -> Location | None:
    """Where the target's loss or training step is defined; None if it is not known."""
    if case.rules is not None:
        named = case.rules.target.step or case.rules.target.loss or ""
        return _definition(named, case, home) if ":" in named else None
    module = case.analysis.target.rpartition(":")[0]
    found = (_definition(f"{module}:{name}", case, home) for name in ("step", "loss"))
    return next((place for place in found if place is not None and place.function), None)


def _definition(reference: str, case: Case, home: Repository) -> Location | None:
    """The place of "path/file.py:name" or "module:name"; its file's first line if ``name`` is not defined there."""
    module, _, name = reference.rpartition(":")
    base = (case.rules.target.base if case.rules else "") or home.folder
    path = module if module.endswith(".py") or "/" in module else module.replace(".", "/")
    for ending in ("", ".py", "/__init__.py"):
        file = Path(base, f"{path}{ending}")
        try:
            lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else None
        except (OSError, UnicodeDecodeError):
            continue
        if lines is not None:
            defined = re.compile(rf"(?:(?:async )?def|class) {re.escape(name)}\b|{re.escape(name)}\s*[:=]")
            for number, line in enumerate(lines, 1):
                if defined.match(line):
                    return Location(str(file), number, name, line.strip())
            return Location(str(file), 1)
    return None


def way(case: Case, finding: Finding, home: Repository) -> list[tuple[Location, str]]:
    """The places in the repository from the parameters' creation over the cut to the loss, each with a sentence.

    Empty if the place that leaves them unused, or hides them from DDP, is not in the repository.
    """
    found: dict[Location, str] = {}
    for parameter in about(case, finding):
        for place, sentence in _cuts(parameter):
            found.setdefault(place, sentence)
    cuts = {own: sentence for place, sentence in found.items() if (own := home.own(place)) is not None}
    if not cuts:
        return []
    steps = list(cuts.items())
    made, ends = home.own(factory(case, home)), home.own(loss(case, home))
    if made is not None and made.function and made not in cuts:
        steps.insert(0, (made, f"the model is made here, with `{finding.parameters[0]}`"))
    if ends is not None and ends.function and ends not in cuts:
        steps.append((ends, "the loss is made here"))
    return steps


def _cuts(parameter: Parameter) -> Iterator[tuple[Location, str]]:
    why = f": {parameter.why}" if parameter.why else ""
    told = (
        (parameter.location, f"`{parameter.name}` is {parameter.cause or 'left out'}{why}"),
        (parameter.checkpoint, f"a re-entrant checkpoint hides `{parameter.name}` from DDP's search"),
        (parameter.bypass, f"the loss uses `{parameter.name}` past the wrapped forward"),
        (parameter.zeroed, f"all that `{parameter.name}` adds to the loss is multiplied by zero"),
    )
    return ((place, sentence) for place, sentence in told if place is not None)


def fingerprints(title: str, findings: Sequence[Finding]) -> list[str]:
    """For each of ``findings``, an identity of 32 hexadecimal digits, unique among them.

    Made of the code, the checkpoint type (``title``) and the parameters, so it stays when lines move. A finding without
    parameters goes by its function and its words without numbers; those that are still alike go by their order.
    """
    seen: dict[str, int] = {}
    return [_numbered(_identity(title, finding), seen) for finding in findings]


def _identity(title: str, finding: Finding) -> str:
    what: Iterable[str] = sorted(finding.parameters)
    if not finding.parameters:
        what = (finding.location.function if finding.location else "", re.sub(r"\d[\d.,]*", "#", finding.message))
    return json.dumps([finding.code, title, *what])


def _numbered(identity: str, seen: dict[str, int]) -> str:
    seen[identity] = seen.get(identity, 0) + 1
    return hashlib.sha256(f"{identity} {seen[identity]}".encode()).hexdigest()[:32]
