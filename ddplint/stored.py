"""``ddplint ckpt``: a checkpoint file held against the model of its type, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddplint import __version__, checking
from ddplint.analysis import Analysis
from ddplint.checking import Options, Subject
from ddplint.checkpoint.model import Checkpoint
from ddplint.checkpoint.read import read
from ddplint.checkpoint.table import Row, Stored, detected, stored, total
from ddplint.checks import registry
from ddplint.checks.base import Case, Finding
from ddplint.checks.wording import as_json, count, percent, size, told
from ddplint.config import Project
from ddplint.errors import DdplintError, printable
from ddplint.fields import shown
from ddplint.report.json_ import SCHEMA_VERSION
from ddplint.rules import RuleFile

FORMATS = ("text", "json")
CODES = ("DDP401", "DDP402", "DDP403")
_LINE = 2000  # signs

_KINDS = {"safetensors": "safetensors", "zip": "torch.save", "legacy": "torch.save before 1.6"}


@dataclass(frozen=True, slots=True)
class Look:
    """A file, the type that it is held against (None for a bare target; ``found``: by its keys) and what came of it."""

    checkpoint: Checkpoint
    analysis: Analysis
    stored: Stored
    findings: tuple[Finding, ...]
    rules: RuleFile | None = None
    found: bool = False

    @property
    def fails(self) -> bool:
        """Whether a finding is an error or a warning."""
        return any(finding.severity != "info" for finding in self.findings)


def opened(
    path: Path, key: str | None, project: Project, ckpt: str | None, target: str | None
) -> tuple[Checkpoint, Subject, bool]:
    """The checkpoint in ``path``, what it is to be held against, and whether that was found by its keys.

    Raises DdplintError where the file can't be read, or its type can't be told.
    """
    if target is not None and ckpt is not None:
        raise DdplintError("--ckpt and --target exclude each other", fix="give one of them")
    checkpoint = read(path, key)
    if target is not None:
        return checkpoint, Subject(checking.bare_target(target, Path.cwd())), False
    if ckpt is not None:
        return checkpoint, checking.only(checking.chosen(project, [ckpt], every=False)), False
    types = [s.rules for s in checking.all_of(project) if isinstance(s, Subject) and s.rules is not None]
    rules = detected(checkpoint, types)
    return checkpoint, Subject(rules.target, rules), True


def look(checkpoint: Checkpoint, subject: Subject, found: bool, options: Options) -> Look:
    """What becomes of the file's tensors in the subject's model. Raises DdplintError as the trace does."""
    analysis = checking.analysed(subject, options)
    table = stored(checkpoint, analysis, subject.rules.rename if subject.rules else {})
    case = Case(analysis, subject.rules, stored=table)
    select = [code for code in CODES if code in registry.chosen(options.select, options.ignore)]
    findings = registry.run(case, tuple(select)) if select else ()
    return Look(checkpoint, analysis, table, findings, subject.rules, found)


def render(format_: str, seen: Look) -> str:
    """``seen`` in one of ``FORMATS``."""
    if format_ == "json":
        return json.dumps(_document(seen), indent=2) + "\n"
    return "".join(f"{_cut(printable(line))}\n" for line in _text(seen))


def _cut(line: str) -> str:
    """``line``, or the most of it: a file's names may have any length."""
    return line if len(line) <= _LINE else f"{line[:_LINE]}…"


def _text(seen: Look) -> Iterator[str]:
    held = [row for row in seen.stored.rows if row.key]
    kind = _KINDS[seen.checkpoint.format]
    files = f" in {count(len(seen.checkpoint.files) - 1, 'file')}" if len(seen.checkpoint.files) > 1 else ""
    place = ".".join(map(str, seen.checkpoint.place))
    at = f" at {place}" if place else ""
    yield f"{seen.stored.file}: {kind}{files}, {count(len(held), 'tensor')}{at}, {size(total(held))}"
    if seen.rules is not None:
        yield f"checkpoint type: {seen.rules.name}{' (by its keys)' if seen.found else ''}"
    else:
        yield f"target: {seen.analysis.target}"
    if seen.stored.prefix:
        yield f"every key begins with `{seen.stored.prefix}`, which is left out"
    yield ""
    loaded = seen.stored.of("loaded")
    rows: list[tuple[str, Sequence[Row]]] = [
        ("loaded", loaded),
        ("  renamed", [row for row in loaded if seen.stored.prefix + row.name != row.key]),
        ("  dead", seen.stored.dead),
        ("dropped", seen.stored.of("dropped")),
        ("mismatched", seen.stored.of("mismatched")),
        ("fresh", seen.stored.of("fresh")),
    ]
    yield f"{'':12}  {'tensors':>9}  {'size':>10}"
    for name, group in rows:
        yield f"{name:12}  {len(group):>9,}  {size(total(group)) if group else '-':>10}"
    yield from _costs(seen, total(held))
    for finding in seen.findings:
        yield ""
        yield from told(finding)


def _costs(seen: Look, whole: int) -> Iterator[str]:
    """What the dead weights cost beside their place in the file."""
    dead = seen.stored.dead
    if not dead:
        return
    moments, reduced = costs(seen)
    yield ""
    yield f"the dead are {size(total(dead))}, {percent(total(dead), whole)} of the file's weights"
    if seen.stored.state_bytes is not None:
        yield f"  optimizer state in the file: {size(seen.stored.state_bytes)} for them"
    elif seen.stored.optimizers:
        yield "  optimizer state in the file: of other parameters than the model's, not counted"
    yield f"  AdamW's two moments: {size(moments)}, if they ever get a gradient, zeros too (with .grad None it makes none)"
    yield f"  DDP's all-reduce: {size(reduced)} of zeros a step, as long as they require grad"


def costs(seen: Look) -> tuple[int, int]:
    """Bytes of AdamW's two moments for the dead parameters, and of what DDP reduces for them a step; in their own types."""
    names = {row.name for row in seen.stored.dead}
    dead = [p for p in seen.analysis.parameters if not names.isdisjoint((p.name, *p.aliases))]
    return 2 * sum(p.bytes for p in dead), sum(p.bytes for p in dead if p.trainable)


def _document(seen: Look) -> dict[str, Any]:
    moments, reduced = costs(seen)
    groups: dict[str, Sequence[Row]] = {
        "loaded": seen.stored.of("loaded"),
        "renamed": [row for row in seen.stored.of("loaded") if seen.stored.prefix + row.name != row.key],
        "dead": seen.stored.dead,
        "dropped": seen.stored.of("dropped"),
        "mismatched": seen.stored.of("mismatched"),
        "fresh": seen.stored.of("fresh"),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "ddplint", "version": __version__, "torch": seen.analysis.torch_version},
        "checkpoint": {
            "file": seen.stored.file,
            "format": seen.checkpoint.format,
            "place": list(seen.checkpoint.place),
            "prefix": seen.stored.prefix,
            "files": [shown(file) for file in seen.checkpoint.files],
            "totals": {name: {"tensors": len(group), "bytes": total(group)} for name, group in groups.items()},
            "optimizers": seen.stored.optimizers,
            "dead_state_bytes": seen.stored.state_bytes,
            "dead_moments_bytes": moments,
            "dead_reduced_bytes": reduced,
            "tensors": [asdict(row) for row in seen.stored.rows],
        },
        "results": [
            {
                "ckpt": seen.rules.name if seen.rules else None,
                "detected": seen.found,
                "target": seen.analysis.target,
                "findings": [as_json(finding) for finding in seen.findings],
            }
        ],
    }
