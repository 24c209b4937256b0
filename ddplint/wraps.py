"""``ddplint wraps`` and ``ddplint fix``: the wraps in the source, held against verdicts; the flag turned off.

Nothing here prints; what ``fix`` writes is said in what it returns.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddplint import __version__
from ddplint.callsites.find import Found, find, source_of
from ddplint.callsites.model import Setting, Wrap
from ddplint.checking import Options, Subject, analysed, replace_file, source_files
from ddplint.checks import registry
from ddplint.checks.base import Case, Finding
from ddplint.checks.wording import as_json, count, told
from ddplint.diffs import unified
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.rules import DdpSettings

FORMATS = ("text", "json")
SCHEMA_VERSION = 1

_CODES = ("DDP301", "DDP302")


@dataclass(frozen=True, slots=True)
class Judged:
    """One type or target, with the wraps that are its own, and the findings about them."""

    title: str
    case: Case
    findings: tuple[Finding, ...]
    notices: tuple[str, ...]

    @property
    def objection(self) -> str:
        """Why the flag can't be called needless for it; "" where it is proven to be."""
        flag = self.case.flag
        if flag == "not-needed" and self.case.static:
            return ""
        if not self.case.analysis.trace.complete:
            return f"{self.title} is incomplete: not every path was traced"
        reasons = {"needed": "needs it", "insufficient": "fails with it on and off", None: "was not rehearsed"}
        return f"{self.title} {reasons.get(flag, 'uses other parameters on other paths')}"


@dataclass(frozen=True, slots=True)
class Fixed:
    """What ``fix`` made of one file: its bytes before and after."""

    path: Path
    before: bytes
    after: bytes
    wraps: tuple[Wrap, ...]


@dataclass(frozen=True, slots=True)
class Fix:
    """All that ``fix`` changes, and each wrap that it leaves on with the reason."""

    files: tuple[Fixed, ...]
    left: tuple[tuple[Wrap, str], ...]


def listed(paths: Sequence[Path], subjects: Sequence[Subject] = ()) -> Found:
    """The wraps in ``paths``; without any, in the files that all ``subjects`` name, else in the working folder.

    Raises DdplintError for a path that is not there.
    """
    if paths:
        return find(paths)
    sources = [source_files(subject) for subject in subjects]
    if sources and all(sources):
        return find([path for files in sources for path in files])
    return find([Path.cwd()])


def judged(found: Found, subject: Subject, options: Options) -> Judged:
    """The verdict about ``subject``, and what it says of its wraps: those in its ``[ddp] source``, if it names one.

    Raises DdplintError where the target can't be traced.
    """
    own = {str(path) for path in source_files(subject)}
    wraps = tuple(wrap for wrap in found.wraps if not own or wrap.file in own)
    analysis = analysed(subject, options, rehearse=True)
    # What the rule file declares is no wrap of the list.
    rules = replace(subject.rules, ddp=DdpSettings()) if subject.rules is not None else None
    case = Case(analysis, rules, wraps)
    return Judged(subject.title, case, registry.run(case, _CODES), analysis.notices)


def fixed(found: Found, verdicts: Sequence[Judged]) -> Fix:
    """The edits that turn the flag off where it is on, needless to all types whose wrap it is, and safe to edit.

    Raises DdplintError where a file has changed meanwhile.
    """
    left: list[tuple[Wrap, str]] = []
    taken: dict[str, list[Wrap]] = {}
    for wrap in found.wraps:
        if wrap.find_unused_parameters.state != "on":
            continue
        reason = _reason(wrap, verdicts)
        if reason:
            left.append((wrap, reason))
        else:
            taken.setdefault(wrap.file, []).append(wrap)
    return Fix(tuple(_fixed(Path(file), tuple(wraps)) for file, wraps in taken.items()), tuple(left))


def _reason(wrap: Wrap, verdicts: Sequence[Judged]) -> str:
    own = [verdict for verdict in verdicts if wrap in verdict.case.wraps]
    if not own:
        return "no verdict is about it"
    objections = [verdict.objection for verdict in own if verdict.objection]
    if objections:
        return "; ".join(objections)
    return "" if wrap.find_unused_parameters.edit is not None else wrap.find_unused_parameters.kept


def _fixed(path: Path, wraps: tuple[Wrap, ...]) -> Fixed:
    source = source_of(path)
    edits = {wrap.find_unused_parameters.edit for wrap in wraps}
    return Fixed(path, source.data, source.edited(tuple(edit for edit in edits if edit is not None)), wraps)


def write(fix: Fix) -> None:
    """Write every changed file, each whole or not at all. Raises DdplintError where that can't be done."""
    for file in fix.files:
        replace_file(file.path, file.after)


def diff(fix: Fix) -> str:
    """The change as a unified diff, in the files' own line ends."""
    return "".join(_diff(file) for file in fix.files)


def _diff(file: Fixed) -> str:
    encoding = source_of(file.path).encoding
    return unified(file.path, file.before.decode(encoding), file.after.decode(encoding))


def said(fix: Fix) -> str:
    """What was changed, line by line."""
    lines = [f"{_at(wrap)}  {_change(wrap)}\n" for file in fix.files for wrap in file.wraps]
    return "".join(lines) or "nothing to turn off\n"


def reasons(fix: Fix) -> tuple[str, ...]:
    """Why each of the others was left on."""
    return tuple(f"{_at(wrap)} is left on: {reason}" for wrap, reason in fix.left)


def _change(wrap: Wrap) -> str:
    edit = wrap.find_unused_parameters.edit
    assert edit is not None  # only such wraps are taken
    return f"{edit.before or wrap.callee} -> {edit.after if edit.before else wrap.callee + edit.after}"


def render(format_: str, found: Found, verdicts: Sequence[Judged]) -> str:
    """The wraps, and under them the findings, in one of ``FORMATS``."""
    if format_ == "json":
        return json.dumps(_document(found, verdicts), indent=2) + "\n"
    return "".join(f"{line}\n" for line in _text(found, verdicts))


def fails(verdicts: Sequence[Judged]) -> bool:
    """Whether there are findings."""
    return any(verdict.findings for verdict in verdicts)


def _text(found: Found, verdicts: Sequence[Judged]) -> Iterator[str]:
    rows = [(_at(wrap), wrap.form, wrap.callee, _flag(wrap)) for wrap in found.wraps]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]])
    states = Counter(wrap.find_unused_parameters.state for wrap in found.wraps)
    parts = ", ".join(f"{states[state]} {state}" for state in ("on", "off", "conditional", "unknown") if states[state])
    yield f"{count(len(found.wraps), 'wrap')} in {count(found.files, 'file')}{f': {parts}' if parts else ''}"
    for verdict in verdicts:
        yield ""
        yield f"{verdict.title}: find_unused_parameters {verdict.case.flag or 'not rehearsed'}"
        for finding in verdict.findings:
            yield from told(finding)


def _flag(wrap: Wrap) -> str:
    static = wrap.static_graph
    text = _words(wrap.find_unused_parameters)
    return text if static.state == "off" else f"{text}; static_graph {_words(static)}"


def _words(setting: Setting) -> str:
    return f"{setting.state} ({setting.expression})" if setting.expression else setting.state


def _at(wrap: Wrap) -> str:
    return f"{shown(wrap.file)}:{wrap.line}:{wrap.column}"


def _document(found: Found, verdicts: Sequence[Judged]) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddplint", "version": __version__},
        "files": found.files,
        "wraps": [
            {
                "file": Path(shown(wrap.file)).as_posix(),
                "line": wrap.line,
                "column": wrap.column,
                "form": wrap.form,
                "callee": wrap.callee,
                "find_unused_parameters": _setting(wrap.find_unused_parameters),
                "static_graph": _setting(wrap.static_graph),
                "fixable": wrap.find_unused_parameters.edit is not None,
            }
            for wrap in found.wraps
        ],
        "notices": list(found.notices),
        "results": [
            {
                "ckpt": verdict.case.rules.name if verdict.case.rules else None,
                "target": verdict.case.analysis.target,
                "find_unused_parameters": verdict.case.flag,
                "findings": [as_json(finding) for finding in verdict.findings],
            }
            for verdict in verdicts
        ],
    }


def _setting(setting: Setting) -> dict[str, str]:
    return {"state": setting.state, "expression": setting.expression}


def with_source(subjects: Sequence[Subject | DdplintError], where: str) -> list[Subject]:
    """Those that name their wraps under ``[ddp] source``. Raises DdplintError where none does, or one is broken."""
    for subject in subjects:
        if isinstance(subject, DdplintError):
            raise subject
    named = [subject for subject in subjects if isinstance(subject, Subject) and subject.rules and subject.rules.ddp.source]
    if not named:
        fix = "name a type with --ckpt, take --all, name a target with --target, or name the files under [ddp] source"
        raise DdplintError("no verdict to go by: no rule file says where its model is wrapped", where=where, fix=fix)
    return named
