"""What every check is made of: the case it is asked about, its findings, the examples that prove it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol, TypeVar

from ddplint.analysis import Analysis, Location, Parameter, Usage
from ddplint.callsites.model import Wrap
from ddplint.checkpoint.table import Stored
from ddplint.rules import RuleFile, UnusedRule, matches, matching

Severity = Literal["error", "warning", "info"]
Flag = Literal["not-needed", "needed", "insufficient"]
T = TypeVar("T")

OFF, ON, STATIC = "find_unused_parameters=False", "find_unused_parameters=True", "static_graph=True"
"""How a model can be wrapped: the keys of ``Rehearsal.outcomes``."""


@dataclass(frozen=True, slots=True)
class Known:
    """A wrap that is known: OFF, ON or STATIC, None where its source does not settle that.

    ``wrap`` is None for what the rule file declares.
    """

    setting: str | None
    wrap: Wrap | None = None

    @property
    def location(self) -> Location | None:
        """Where the wrap is; None for what is declared."""
        return Location(self.wrap.file, self.wrap.line, text=self.wrap.text) if self.wrap else None


@dataclass(frozen=True, slots=True)
class Base:
    """What has changed since the revision ``rev``: parameters that are unused now, and such that no longer are."""

    rev: str
    commit: str
    stranded: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()


@dataclass(frozen=True)  # without slots: what is asked for often is kept
class Case:
    """One checkpoint type (or a bare target, ``rules`` None) with what the trace found about it.

    ``wraps`` are those that the project's source has for it, ``base`` what has changed since a revision, ``stored`` the
    checkpoint file that is looked at.
    """

    analysis: Analysis
    rules: RuleFile | None = None
    wraps: tuple[Wrap, ...] = ()
    base: Base | None = None
    stored: Stored | None = None

    @property
    def entries(self) -> tuple[UnusedRule, ...]:
        """The rule file's ``[[unused]]`` entries; none for a bare target."""
        return self.rules.unused if self.rules else ()

    @cached_property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that require grad, in the model's order."""
        return tuple(p for p in self.analysis.parameters if p.trainable)

    @cached_property
    def named(self) -> dict[str, Parameter]:
        """The parameters by their first names."""
        return {p.name: p for p in self.analysis.parameters}

    @property
    def declared(self) -> str | None:
        """How the rule file says that the project wraps the model (OFF, ON or STATIC); None if it does not."""
        if self.rules is None:
            return None
        if self.rules.ddp.static_graph:
            return STATIC  # whatever the other flag says: no search then (dynamic_graph_find_unused in reducer.hpp)
        return {None: None, False: OFF, True: ON}[self.rules.ddp.find_unused_parameters]

    @cached_property
    def known(self) -> tuple[Known, ...]:
        """How the project wraps the model: in its source, and as declared where no wrap in the source is like that."""
        found = tuple(Known(_setting(wrap), wrap) for wrap in self.wraps)
        if self.declared is None or any(known.setting == self.declared for known in found):
            return found
        return (Known(self.declared), *found)

    @property
    def static(self) -> bool:
        """Whether every path was traced, and all use the same parameters."""
        return self.analysis.trace.complete and all(p.usage != "sometimes" for p in self.trainable)

    @property
    def flag(self) -> Flag | None:
        """Whether DDP needs ``find_unused_parameters``, by the rehearsal; None if there was none."""
        off, on = self.outcome(OFF), self.outcome(ON)
        if off is None:
            return None
        return "not-needed" if off == "ok" else "needed" if on == "ok" else "insufficient"

    def outcome(self, setting: str | None) -> str | None:
        """What the rehearsal said of a wrap; None if there was none."""
        rehearsal = self.analysis.rehearsal
        return rehearsal.outcomes.get(setting) if rehearsal is not None and setting is not None else None

    @cached_property
    def _covering(self) -> dict[str, list[UnusedRule]]:
        """For each parameter's first name, the entries that cover it, in their order."""
        names = [name for p in self.analysis.parameters for name in (p.name, *p.aliases)]
        named = [(entry, set(matching(entry.params, names))) for entry in self.entries]
        return {
            p.name: [entry for entry, inside in named if not inside.isdisjoint((p.name, *p.aliases))]
            for p in self.analysis.parameters
        }

    def covered(self, entry: UnusedRule) -> tuple[Parameter, ...]:
        """The parameters that a pattern of ``entry`` names, frozen ones too, in the model's order."""
        return tuple(p for p in self.analysis.parameters if entry in self._covering[p.name])

    def covering(self, parameter: Parameter) -> UnusedRule | None:
        """The first entry that covers ``parameter``, whatever it says of it."""
        return next(iter(self._covering[parameter.name]), None)

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
        return next((entry for entry in self._covering[parameter.name] if self.agrees(entry, parameter)), None)

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

    ``rules`` is what a rule file has after ``[target]``: the ``[[unused]]`` entries and ``[ddp]``. ``paths`` is
    the budget of the trace, if not the usual one. ``before`` is the source at the revision that it is compared with.
    ``keys`` are the keys and shapes of the checkpoint file that it is held against, all of float32.
    """

    source: str
    rules: str | None = None
    paths: int | None = None
    before: str | None = None
    keys: Mapping[str, tuple[int, ...]] | None = None


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
    return grouped(parameters, lambda p: (p.cause or "", p.place or p.name))


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[tuple[T, ...]]:
    """``items`` in groups of one ``key``, groups and members in the order of ``items``."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return [tuple(group) for group in groups.values()]


def unseen_severity(case: Case) -> Severity:
    """How bad it is that DDP's search for unused parameters misses used ones: that depends on the wraps.

    Where one has the flag on it is an error, where all have it off (or a static graph) DDP does not search, and where
    none is known, or one does not settle it, a warning. What the rehearsal says of the wraps comes first.
    """
    settings = {known.setting for known in case.known} or {None}
    if ON in settings or any(case.outcome(setting or OFF) == "ready_twice" for setting in settings):
        return "error"
    return "warning" if None in settings else "info"


def _setting(wrap: Wrap) -> str | None:
    """How ``wrap`` wraps: OFF, ON or STATIC; None where its source does not settle it."""
    if wrap.static_graph.state == "on":
        return STATIC
    if wrap.static_graph.state != "off":
        return None
    return {"on": ON, "off": OFF}.get(wrap.find_unused_parameters.state)
