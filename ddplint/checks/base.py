"""What every check is made of: the case it is asked about, its findings, the examples that prove it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ddplint.analysis import Analysis, Location, Parameter, Usage
from ddplint.rules import RuleFile, UnusedRule, matches

Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Case:
    """One checkpoint type (or a bare target, ``rules`` None) with what the trace found about it."""

    analysis: Analysis
    rules: RuleFile | None = None

    @property
    def entries(self) -> tuple[UnusedRule, ...]:
        """The rule file's ``[[unused]]`` entries; none for a bare target."""
        return self.rules.unused if self.rules else ()

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that require grad, in the model's order."""
        return tuple(p for p in self.analysis.parameters if p.trainable)

    def covered(self, entry: UnusedRule) -> tuple[Parameter, ...]:
        """The parameters that a pattern of ``entry`` names, frozen ones too, in the model's order."""
        return tuple(p for p in self.analysis.parameters if covers(entry, p))

    def agrees(self, entry: UnusedRule, parameter: Parameter) -> bool:
        """Whether ``entry`` says of ``parameter`` (never used, used sometimes) what the trace found.

        A trace that ended early can have missed the path that uses it, so then ``when = "sometimes"`` is
        contradicted by an always used parameter alone.
        """
        if entry.when == "sometimes" and not self.analysis.trace.complete:
            return parameter.usage in ("never", "sometimes")
        return parameter.usage == entry.when

    def documented_by(self, parameter: Parameter) -> UnusedRule | None:
        """The first entry that covers ``parameter`` and says of it what the trace found."""
        for entry in self.entries:
            if covers(entry, parameter) and self.agrees(entry, parameter):
                return entry
        return None

    def undocumented(self, usage: Usage) -> tuple[Parameter, ...]:
        """The trainable parameters of ``usage`` of which no entry says so, in the model's order."""
        return tuple(p for p in self.trainable if p.usage == usage and self.documented_by(p) is None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One reported fault. ``code``, ``name`` and a default ``severity`` come from the check's module.

    ``message`` is one sentence; ``fix`` says what to do and may have several lines; ``parameters`` are first
    names.
    """

    code: str
    name: str
    severity: Severity
    message: str
    parameters: tuple[str, ...]
    location: Location | None
    fix: str


@dataclass(frozen=True, slots=True)
class Example:
    """A small target, as Python source with ``build``, ``inputs`` and ``loss``, and its rules (or none).

    ``rules`` is what a rule file has after ``[target]``: the ``[[unused]]`` entries and ``[ddp]``.
    """

    source: str
    rules: str | None = None


class Check(Protocol):
    """What a module in ``ddplint/checks/`` has to have (its docstring is its page)."""

    CODE: str
    NAME: str
    SEVERITY: Severity
    GOOD: tuple[Example, ...]
    BAD: tuple[Example, ...]
    __doc__: str | None

    def check(self, case: Case) -> Iterator[Finding]:
        """The findings about ``case``, in a stable order."""
        ...


def covers(entry: UnusedRule, parameter: Parameter) -> bool:
    """Whether a pattern of ``entry`` names ``parameter``, by its first name or by an alias."""
    return any(matches(pattern, name) for pattern in entry.params for name in (parameter.name, *parameter.aliases))


def by_place(parameters: Iterable[Parameter]) -> list[tuple[Parameter, ...]]:
    """``parameters`` grouped by the place that explains them, groups and members in the model's order."""
    groups: dict[tuple[str, str], list[Parameter]] = {}
    for parameter in parameters:
        groups.setdefault((parameter.cause or "", parameter.place or parameter.name), []).append(parameter)
    return [tuple(group) for group in groups.values()]
