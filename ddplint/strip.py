"""``ddplint strip``: a checkpoint file without its dead tensors, written whole or not at all, once it is proven."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddplint import worker
from ddplint.analysis import Analysis, Parameter
from ddplint.checking import Options, Subject, analysed, refuse_missing_folder, request_for
from ddplint.checkpoint.model import Checkpoint
from ddplint.checkpoint.table import Row, Stored, in_order, stored, total
from ddplint.checks.base import Case
from ddplint.checks.wording import count, roots, short, size
from ddplint.errors import DdplintError
from ddplint.fields import shown
from ddplint.request import Strip
from ddplint.rules import RuleFile

ENGINE = "ddplint.strip_worker:strip"


@dataclass(frozen=True, slots=True)
class Stripped:
    """What was written and proven. ``undocumented``: dead parameters in the file that no rule names, and so were left."""

    output: Path
    rows: tuple[Row, ...]
    kept: int
    sizes: tuple[int, int]  # of the files, in bytes
    optimizers: tuple[tuple[int, int], ...]  # parameters of each before and after
    proof: dict[str, Any]
    undocumented: int

    def summary(self) -> str:
        """A few lines for a person."""
        before, after = self.sizes
        lines = [
            f"{shown(self.output)}: {count(len(self.rows), 'tensor')} less ({size(total(self.rows))}), {self.kept:,} kept; "
            f"{size(before)} -> {size(after)}"
        ]
        lines += [f"optimizer state: {was:,} -> {now:,} parameters, numbered anew" for was, now in self.optimizers]
        lines.append(
            f"proven: all that is kept is the same, bit for bit; the state dict lacks exactly what was to go; with NaN in "
            f"its place the model returns the same, bit for bit ({count(self.proof['outputs'], 'tensor')} of "
            f"{count(self.proof['runs'], 'run')})"
        )
        if self.undocumented:
            lines.append(f"left in: {count(self.undocumented, 'dead parameter')} that no rule names (DDP101)")
        return "".join(f"{line}\n" for line in lines)


def stripped(checkpoint: Checkpoint, subject: Subject, output: Path, *, force: bool, options: Options) -> Stripped:
    """Write ``checkpoint`` without what ``subject``'s rules document as never used to ``output``, once it is proven.

    Raises DdplintError where the rules and the trace do not agree, where the values are used, where the proof fails, or
    where the file can't be written; nothing is written then.
    """
    _refuse_places(checkpoint, output, force)
    if subject.rules is None:
        raise DdplintError("only what a rule file documents is stripped", where="--target", fix="name a type with --ckpt")
    analysis = analysed(subject, options)
    table = stored(checkpoint, analysis, subject.rules.rename)
    dead = _dead(analysis, subject.rules)
    rows = _gone(table, dead)
    names = {row.name for row in rows}
    optimizers = [_dead_numbers(checkpoint, number, analysis, dead) for number in range(len(checkpoint.optimizers))]
    left = [p for p in analysis.parameters if p.usage == "never" and p not in dead]
    filled = {row.name for row in table.dead}
    with _draft(output) as draft:
        asked = Strip(
            file=str(checkpoint.path.resolve()),
            draft=str(draft),
            format=checkpoint.format,
            place=checkpoint.place,
            keys=tuple(row.key for row in rows),
            names=tuple(sorted(names)),
            renamed=tuple((row.key, row.name) for row in table.of("loaded")),
            optimizers=tuple(zip((o.place for o in checkpoint.optimizers), optimizers, strict=True)),
        )
        request = request_for(subject, options, strip=asked)
        proof = worker.ask(request, timeout=options.timeout, quiet=options.quiet, live=options.live, engine=ENGINE)
        sizes = checkpoint.path.stat().st_size, draft.stat().st_size
        if not force and output.exists():
            raise DdplintError("was made meanwhile", where=shown(output), fix="choose another name")
        os.replace(draft, output.resolve())
    before = [len(optimizer.numbers) for optimizer in checkpoint.optimizers]
    return Stripped(
        output,
        rows,
        len([row for row in table.rows if row.key]) - len(rows),
        sizes,
        tuple((was, was - len(gone)) for was, gone in zip(before, optimizers, strict=True)),
        proof,
        len([p for p in left if not filled.isdisjoint((p.name, *p.aliases))]),
    )


def _refuse_places(checkpoint: Checkpoint, output: Path, force: bool) -> None:
    if len(checkpoint.files) > 1:
        raise DdplintError("is an index of several files", where=shown(checkpoint.path), fix="strip each of them by itself")
    refuse_missing_folder(output)
    try:
        output.lstat()
    except FileNotFoundError:
        return
    except OSError as error:
        raise DdplintError(f"can't be written: {error.strerror}", where=shown(output), fix="name another file") from None
    if output.is_dir():
        raise DdplintError("is a folder", where=shown(output), fix="name a file")
    if output.exists() and output.samefile(checkpoint.path):
        raise DdplintError("is the file itself", where=shown(output), fix="write to another: the input is never touched")
    if output.is_symlink() or (output.exists() and not output.is_file()):
        raise DdplintError("is no regular file", where=shown(output), fix="name a file")
    if output.exists() and not force:
        raise DdplintError("exists already", where=shown(output), fix="name another, or take --force")


def _dead(analysis: Analysis, rules: RuleFile) -> list[Parameter]:
    """The parameters that the rules document as never used. Raises DdplintError unless the trace is sure of each."""
    if not analysis.trace.complete:
        raise DdplintError("the path budget ended first (DDP901): what no path uses is not known", fix="raise --paths")
    case = Case(analysis, rules)
    unsure = {d.name for d in analysis.trace.disagreements}
    dead = []
    for parameter in analysis.parameters:
        entries = [e for e in rules.unused if e.when == "never" and parameter in case.covered(e)]
        if not entries:
            continue
        if parameter.usage != "never" or parameter.name in unsure:
            said = "unsure (DDP902)" if parameter.name in unsure else f"{parameter.usage or 'not known'} (DDP102)"
            raise DdplintError(
                f"`{parameter.name}` is documented as never used, and the trace says: {said}",
                where=f"{shown(rules.path)}:{entries[0].line}",
                fix="mend the entry: `ddplint check` says more",
            )
        dead.append(parameter)
    if not dead:
        raise DdplintError("it documents nothing as never used", where=shown(rules.path), fix="see `ddplint update`")
    valued = [p for p in dead if p.cause in ("severed", "output-only")]
    if valued:
        raise DdplintError(
            f"the values of {short(roots(valued, analysis))} are used, if not trained ({valued[0].cause}): the model "
            "computes something else without them",
            where=shown(rules.path),
            fix="freeze them, and let them stay",
        )
    return dead


def _gone(table: Stored, dead: list[Parameter]) -> tuple[Row, ...]:
    """The file's rows that are to go. Raises DdplintError where there is none, or one does not fit the model."""
    if table.of("mismatched"):
        row = table.of("mismatched")[0]
        raise DdplintError(
            f"`{row.key}` has the shape {list(row.shape)}, the model's is {list(row.wanted or ())}",
            where=table.file,
            fix="build the model for this file: `ddplint ckpt` lists what does not fit",
        )
    names = {name for p in dead for name in (p.name, *p.aliases)}
    rows = tuple(row for row in table.dead if row.name in names)
    if not rows:
        raise DdplintError(
            "has nothing of what the rules document as never used", where=table.file, fix="see `ddplint ckpt`"
        )
    return rows


def _dead_numbers(checkpoint: Checkpoint, position: int, analysis: Analysis, dead: list[Parameter]) -> tuple[int, ...]:
    """The numbers of the dead in the file's optimizer at ``position``. Raises DdplintError where they can't be told."""
    optimizer = checkpoint.optimizers[position]
    order = in_order(optimizer, analysis.parameters)
    if order is None:
        trainable = sum(p.trainable for p in analysis.parameters)
        groups = f" in {len(optimizer.groups)} groups" if len(optimizer.groups) > 1 else ""
        raise DdplintError(
            f"the optimizer's state at {'.'.join(map(str, optimizer.place)) or 'the top'} is of {len(optimizer.numbers)} "
            f"parameters{groups}, the model has {len(analysis.parameters)}, {trainable} of them trainable: "
            "which is which is open",
            where=shown(checkpoint.path),
            fix="give the optimizer model.named_parameters() (it then saves their names), or strip a file without its state",
        )
    gone = {p.name for p in dead}
    return tuple(number for number, p in zip(optimizer.numbers, order, strict=True) if p.name in gone)


@contextlib.contextmanager
def _draft(output: Path) -> Iterator[Path]:
    """A name beside ``output`` that is gone after the block, also if a SIGTERM or SIGHUP ends it."""
    draft = output.resolve().with_name(f".{secrets.token_hex(8)}.tmp")

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield draft
    except OSError as error:
        raise DdplintError(f"can't be written: {error.strerror}", where=shown(output), fix="name another file") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        draft.unlink(missing_ok=True)
