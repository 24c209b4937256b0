"""A rule file brought to what the trace found: what is new is added, what is stale goes, all else stays as it is.

Entries are edited one by one, each as its own piece of text, so that every other byte of the file is left alone.
"""

from __future__ import annotations

import tomllib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ddplint.analysis import Analysis, Parameter
from ddplint.checking import Options, Subject, analysed, replace_file
from ddplint.checks.base import Case
from ddplint.config import Project
from ddplint.diffs import lines_of, unified
from ddplint.errors import DdplintError
from ddplint.fields import Place, key_lines, parse_toml, read_text, shown
from ddplint.globs import exact_globs, matches
from ddplint.rules import TODO, RuleFile, UnusedRule, rule_file
from ddplint.starter import entry_of, groups


@dataclass(frozen=True, slots=True)
class Update:
    """What one rule file becomes. ``added``, ``narrowed`` and ``removed`` count entries."""

    path: Path
    before: str
    after: str
    added: int = 0
    narrowed: int = 0
    removed: int = 0

    @property
    def changes(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    def summary(self) -> str:
        """One line for a person."""
        if not self.changes:
            return f"{shown(self.path)}: as the trace found it, nothing to do"
        parts = [(self.added, "added"), (self.narrowed, "narrowed"), (self.removed, "removed")]
        said = ", ".join(f"{number} {'entry' if number == 1 else 'entries'} {word}" for number, word in parts if number)
        todo = f'; put the reason where it says "{TODO}"' if self.added else ""
        return f"{shown(self.path)}: {said}{todo}"

    def diff(self) -> str:
        """The change as a unified diff; "" if there is none."""
        return unified(self.path, self.before, self.after)


def prepared(project: Project, subjects: Sequence[Subject], options: Options) -> list[Update]:
    """The updates of the rule files of ``subjects``, not written. Raises DdplintError for the first that can't be."""
    if project.source == "embedded":
        raise DdplintError(
            "the project has no rule files of its own",
            where=shown(project.root),
            fix="write one with `ddplint init --target …`; the ones that come with ddplint are not to be changed",
        )
    return [updated(subject.rules, analysed(subject, options)) for subject in subjects if subject.rules is not None]


def write(updates: Sequence[Update]) -> None:
    """Write what changes. Raises DdplintError where a file can't be written; each is whole or untouched."""
    for update in updates:
        if update.changes:
            replace_file(update.path, update.after)


def updated(rules: RuleFile, analysis: Analysis) -> Update:
    """``rules``' file with exactly what ``analysis`` found documented.

    A pattern that covers nothing else than it should stays as it is written, one that covers some parameters rightly is
    narrowed to these, any other goes, and with the last one its entry. Comments stay, also what was said above an entry that
    went. Entries of action ``strip`` and optional ones may name what is not there. What no entry covers gets new ones, with
    the reason "TODO".

    Raises DdplintError where the trace can't be relied on, or the file can't be edited.
    """
    _refuse_unsure(rules, analysis)
    path = Path(rules.path)
    text = read_text(path)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = lines_of(text)
    blocks = _blocks(text, len(rules.unused), path)
    case = Case(analysis, rules)
    kept: list[UnusedRule] = []
    narrowed = removed = 0
    gone: list[tuple[int, int, list[str]]] = []  # from line, to line (from 0, without the last), what comes in their place
    for entry, (start, end) in zip(rules.unused, blocks, strict=True):
        params = _right(entry, case)
        if params == entry.params:
            kept.append(entry)
        elif not params:
            removed += 1
            gone.append((start, end, []))
        else:
            narrowed += 1
            kept.append(replace(entry, params=params))
            block = _narrowed("".join(lines[start:end]), entry.params, params)
            gone.append((start, end, lines_of(block)))
    for first, last, instead in reversed(gone):
        lines[first:last] = instead
    new = _missing(Case(analysis, replace(rules, unused=tuple(kept))))
    body = "".join(lines).rstrip("\r\n")
    for group in new:
        added = newline.join(entry_of(group, analysis, reason=TODO))
        body = f"{body}{newline}{newline}{added}"
    after = text if not gone and not new else f"{body}{newline}"
    _refuse_untrue(after, rules, analysis)
    if path.read_bytes().startswith(BOM_UTF8):
        text, after = f"\ufeff{text}", f"\ufeff{after}"
    return Update(path, text, after, len(new), narrowed, removed)


def _refuse_unsure(rules: RuleFile, analysis: Analysis) -> None:
    where = shown(rules.path)
    if not analysis.trace.complete:
        raise DdplintError(
            "the path budget ended before every path was traced", where=where, fix="raise --paths; nothing is written"
        )
    if analysis.trace.disagreements:
        name = analysis.trace.disagreements[0].name
        raise DdplintError(f"the answers about {name} differ (DDP902)", where=where, fix="report it; nothing is written")


def _blocks(text: str, number: int, path: Path) -> list[tuple[int, int]]:
    """For each ``[[unused]]`` entry its lines, from 0: its header's, and the line behind it. A comment above is no part."""
    places = key_lines(text)
    lines = lines_of(text)
    found = []
    for index in range(number):
        start = places.get(("unused", index))
        if start is None:
            raise DdplintError(
                "its entries are an inline array", where=shown(path), fix="write each as a table, under [[unused]]"
            )
        others = (line for place, line in places.items() if line > start and not _within(place, ("unused", index)))
        behind = min(others, default=len(lines) + 1)
        found.append((start - 1, _above(lines, behind - 1)))
    return found


def _within(place: Place, whole: Place) -> bool:
    return place[: len(whole)] == whole or place == whole[:1]


def _above(lines: Sequence[str], line: int) -> int:
    """The first line of the comment right above ``line``; ``line`` if there is none."""
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
    return line


def _right(entry: UnusedRule, case: Case) -> tuple[str, ...]:
    """The patterns of ``entry`` without what they say wrongly."""
    every = [(name, p) for p in case.analysis.parameters for name in (p.name, *p.aliases)]
    found: list[str] = []
    for pattern in entry.params:
        covered = [(name, p) for name, p in every if matches(pattern, name)]
        right = {p.name for _, p in covered if case.agrees(entry, p)}
        keep: tuple[str, ...] = (pattern,)
        if not covered:
            keep = keep if entry.optional or entry.action == "strip" else ()
        elif len(right) < len({p.name for _, p in covered}):
            names = [name for name, p in covered if p.name in right]
            keep = exact_globs(names, (name for name, p in every if p.name not in right)) if names else ()
        found += (glob for glob in keep if glob not in found)
    return tuple(found)


def _narrowed(block: str, before: Sequence[str], after: Sequence[str]) -> str:
    """The entry's text with other patterns; comments in and around the array are kept."""
    import tomlkit

    document: Any = tomlkit.parse(block)
    params = document["unused"][0]["params"]
    for pattern in before:
        if pattern not in after:
            params.remove(pattern)
    for position, pattern in enumerate(after):
        if pattern not in before:
            params.insert(position, pattern)
    text = tomlkit.dumps(document)
    if list(tomllib.loads(text)["unused"][0]["params"]) != list(after):
        table = document["unused"][0]
        table["params"] = list(after)  # in an order that edits one by one don't give
        text = tomlkit.dumps(document)
    return text


def _missing(case: Case) -> list[Sequence[Parameter]]:
    """The unused parameters that no entry rightly covers, by place."""
    lacking = {p.name for usage in ("never", "sometimes") for p in case.undocumented(usage)}
    return [part for group in groups(case.analysis) if (part := [p for p in group if p.name in lacking])]


def _refuse_untrue(text: str, rules: RuleFile, analysis: Analysis) -> None:
    """Raise what would be a fault of ddplint's own: the new ``text`` must load, and say what the trace found."""
    path = Path(rules.path)
    wrong = [*_wrong(Case(analysis, rule_file(parse_toml(text, path), rules.target.base)))]
    if wrong:
        raise DdplintError(
            f"the update would not say what the trace found of {', '.join(wrong[:3])}",
            where=shown(path),
            fix="report it; nothing is written",
        )


def _wrong(case: Case) -> Iterator[str]:
    yield from (p.name for usage in ("never", "sometimes") for p in case.undocumented(usage))
    yield from (p.name for entry in case.entries for p in case.covered(entry) if not case.agrees(entry, p))
