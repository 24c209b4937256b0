"""What every report is made of: one result a checkpoint type, and what all formats ask of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal

from ddplint.analysis import Analysis, Parameter
from ddplint.callsites.model import Wrap
from ddplint.checks.base import Base, Case, Finding, Flag
from ddplint.rules import RuleFile

Verdict = Literal["static", "dynamic", "incomplete"]


@dataclass(frozen=True, slots=True)
class View:
    """How much a person wants to read. ``quiet``: what fails, and no more; ``statistics``: numbers in place of findings."""

    quiet: bool = False
    verbose: bool = False
    statistics: bool = False


EVERYTHING = View()
"""The report as it is without a word of the user's."""


@dataclass(frozen=True)  # without slots: what is asked for often is kept
class Result:
    """One checkpoint type, or a bare target (``rules`` None), with its trace and the findings about it.

    ``base``: what has changed since a revision, where that was asked for; the findings are then what is new.
    ``codes`` are those of the checks that were asked; None: all.
    """

    analysis: Analysis
    findings: tuple[Finding, ...] = ()
    rules: RuleFile | None = None
    wraps: tuple[Wrap, ...] = ()
    base: Base | None = None
    codes: tuple[str, ...] | None = None

    @property
    def ckpt(self) -> str | None:
        """The checkpoint type's name; None for a bare target."""
        return self.rules.name if self.rules else None

    @cached_property
    def case(self) -> Case:
        """What the checks were asked about."""
        return Case(self.analysis, self.rules, self.wraps, self.base)

    @property
    def usage(self) -> Verdict:
        """``incomplete`` if the path budget ended first, ``dynamic`` if some parameter is used sometimes."""
        if not self.analysis.trace.complete:
            return "incomplete"
        return "dynamic" if self.with_usage("sometimes") else "static"

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters with ``requires_grad``, in the model's order."""
        return self.case.trainable

    def with_usage(self, usage: Literal["always", "sometimes", "never"]) -> tuple[Parameter, ...]:
        """The trainable parameters of this usage, in the model's order."""
        return tuple(p for p in self.trainable if p.usage == usage)

    @property
    def flag(self) -> Flag | None:
        """Whether DDP needs ``find_unused_parameters``, by the rehearsal; None if there was none."""
        return self.case.flag

    @property
    def frozen(self) -> str | None:
        """What DDP did with the flag off once what no path uses was frozen; None if that was not rehearsed."""
        return self.analysis.rehearsal.frozen if self.analysis.rehearsal is not None else None

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are errors or warnings."""
        return tuple(finding for finding in self.findings if finding.severity != "info")

    @property
    def fails(self) -> bool:
        """Whether a finding is an error or a warning (exit 1)."""
        return bool(self.faults)


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A checkpoint type or target that could not be checked, with the sentence that says why."""

    title: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """All results of one run. ``folder`` is the working folder that paths are made relative to."""

    results: tuple[Result, ...]
    folder: str = field(default_factory=os.getcwd)
    unchecked: tuple[Unchecked, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether the run exits 1: some finding is an error or a warning."""
        return any(result.fails for result in self.results)

    def relative(self, file: str) -> str:
        """``file`` relative to the working folder where it is inside, else as it is; forward slashes."""
        return _relative(file, self.folder)

    def target(self, result: Result) -> str:
        """The result's target, "module:factory" or "path/file.py:factory" with the path made relative."""
        file, colon, factory = result.analysis.target.rpartition(":")
        return f"{self.relative(file)}:{factory}" if colon and "/" in file else result.analysis.target

    def title(self, result: Result) -> str:
        """How a person calls it: the checkpoint type, else the target."""
        return result.ckpt or self.target(result)


@lru_cache(maxsize=256)
def _relative(file: str, working: str) -> str:
    path = Path(file)
    if path.is_absolute():
        for folder in (Path(working), Path(working).resolve()):
            if path.is_relative_to(folder):
                path = path.relative_to(folder)
                break
    return path.as_posix()
