"""The words of findings and reports: counts, shares, names in short, places, a rule entry to paste."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ddplint.analysis import Analysis, Cause, Disagreement, Location, Parameter, Rehearsal
from ddplint.checks.base import Finding
from ddplint.fields import shown, toml
from ddplint.globs import NameTree
from ddplint.rules import UnusedRule

_Item = tuple[tuple[str, ...], ...]  # of each component of a name, what can stand there

_SHOWN = 4  # module names listed before "and N more"
_LONGEST = 300  # signs of a name: one in a file may have millions

_CAUSES: dict[Cause, str] = {
    "uncalled": "no operation reads the value",
    "discarded": "nothing made of the value reaches the loss",
    "severed": "the value reaches the loss, but the gradient is cut",
    "output-only": "the value is in forward's output, and the loss leaves it out",
    "conditional": "some paths use the value, others do not",
}


def count(number: int, noun: str) -> str:
    """ "1 parameter", "14 parameters"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def amount(number: int) -> str:
    """A number of weights: exact up to a million, then "12.3 M" and "69.0 B"."""
    for factor, unit in ((10**9, " B"), (10**6, " M")):
        if number >= factor:
            return f"{number / factor:.1f}{unit}"
    return f"{number:,}"


def size(number: int) -> str:
    """A number of bytes in binary units: "512 B", "1.5 MiB"."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def percent(part: int, whole: int) -> str:
    """``part`` of ``whole``: "29 %", one decimal below ten, "under 0.1 %" rather than a false zero."""
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "under 0.1 %"
    return f"{share:.0f} %" if share >= 9.95 or share == 0 else f"{share:.1f} %"


def weights(parameters: Iterable[Parameter], analysis: Analysis) -> str:
    """ "1,234 weights, 29 % of the trainable ones"; the share only where all of them are trainable."""
    group = tuple(parameters)
    numel = sum(p.numel for p in group)
    text = "1 weight" if numel == 1 else f"{amount(numel)} weights"
    if all(p.trainable for p in group):
        text += f", {percent(numel, _known(_Parameters(analysis.parameters)).trainable)} of the trainable ones"
    return text


def short(names: Iterable[str]) -> str:
    """Qualified names in little space: ``encoder.{0,1}.output_proj``, ``layers.{0..47}``, "and 3 more"."""
    items = _merged(name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in names)
    texts = [f"`{'.'.join(_alternatives(part) for part in item)}`" for item in items]
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN - 1], f"{len(texts) - _SHOWN + 1} more"]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)


def _merged(names: Iterable[str]) -> list[_Item]:
    """Names that differ in one component as one item: for each position, the components that occur there."""
    items: list[_Item] = [tuple((part,) for part in name.split(".")) for name in dict.fromkeys(names)]
    for position in range(max((len(item) for item in items), default=0)):
        merged: dict[tuple[_Item, _Item | None], dict[str, None]] = {}
        for item in items:
            if position >= len(item) or len(item) == 1:
                merged[item, None] = {}  # stays as it is
            else:
                parts = merged.setdefault((item[:position], item[position + 1 :]), {})
                parts.update(dict.fromkeys(item[position]))
        items = [before if after is None else (*before, tuple(parts), *after) for (before, after), parts in merged.items()]
    return items


def _alternatives(parts: Sequence[str]) -> str:
    if len(parts) == 1:
        return parts[0]
    if all(part.isdecimal() for part in parts):
        numbers = sorted(int(part) for part in parts)
        if len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"{{{numbers[0]}..{numbers[-1]}}}"
        return f"{{{','.join(str(number) for number in numbers)}}}"
    return f"{{{','.join(parts)}}}"


def roots(parameters: Iterable[Parameter], analysis: Analysis) -> tuple[str, ...]:
    """The outermost modules that hold ``parameters`` and nothing else that was traced, else parameters."""
    group = names(parameters)
    inside = Counter(prefix for name in group for prefix in _prefixes(name))
    whole = _known(_Parameters(analysis.parameters)).traced
    found = (next((at for at in _prefixes(name) if inside[at] >= whole[at]), name) for name in group)
    return tuple(dict.fromkeys(found))


class _Parameters:
    """A model's parameters as a key: the same object is the same model, whatever is in it."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self.parameters = parameters

    def __hash__(self) -> int:
        return id(self.parameters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parameters) and self.parameters is other.parameters


@dataclass(frozen=True, slots=True)
class _Known:
    """What is asked about a whole model for each of its findings."""

    traced: Counter[str]  # how many of the parameters that were traced each module holds
    trainable: int  # weights
    names: NameTree


@functools.lru_cache(maxsize=2)
def _known(model: _Parameters) -> _Known:
    return _Known(
        traced=Counter(at for p in model.parameters if p.usage is not None for at in _prefixes(p.name)),
        trainable=sum(p.numel for p in model.parameters if p.trainable),
        names=NameTree(name for p in model.parameters for name in (p.name, *p.aliases)),
    )


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def subject(parameters: Sequence[Parameter], analysis: Analysis) -> str:
    """Who a finding is about: "7 parameters of `ffn` (1,234 weights, 29 % of the trainable ones)"."""
    return f"{who(parameters, analysis)} ({weights(parameters, analysis)})"


def who(parameters: Sequence[Parameter], analysis: Analysis) -> str:
    """The same without the weights: "7 parameters of `ffn`"."""
    where = roots(parameters, analysis)
    if set(where) != {p.name for p in parameters}:
        return f"{count(len(parameters), 'parameter')} of {short(where)}"
    return f"{count(len(parameters), 'parameter')} {short(where)}" if len(parameters) > 1 else short(where)


def names(parameters: Iterable[Parameter | Disagreement]) -> tuple[str, ...]:
    """The parameters' names, for ``Finding.parameters``."""
    return tuple(parameter.name for parameter in parameters)


def verb(parameters: Sequence[object], singular: str, plural: str) -> str:
    """The verb's form that goes with ``subject``."""
    return singular if len(parameters) == 1 else plural


def place(location: Location) -> str:
    """ "model.py:88"; the whole path is in the finding's location."""
    return f"{PurePath(location.file).name}:{location.line}"


def line(location: Location) -> str:
    """A place with its source: "model.py:88 `if scores.sum() > 0`"."""
    text = location.text.removesuffix(":")
    return f"{place(location)} `{text}`" if text else place(location)


def outcomes(rehearsal: Rehearsal) -> str:
    """What DDP did: "find_unused_parameters=False reduction_error; =True ok; static_graph ok"."""
    told, before = [], ""
    for setting, outcome in rehearsal.outcomes.items():
        flag, _, value = setting.partition("=")
        told.append(f"{'' if flag == before else flag}={value} {outcome}" if flag != "static_graph" else f"{flag} {outcome}")
        before = flag
    return "; ".join(told)


def rehearsed(analysis: Analysis) -> str:
    """The same in brackets after a sentence; "" if there was no rehearsal."""
    return f" (rehearsed: {outcomes(analysis.rehearsal)})" if analysis.rehearsal else ""


def details(analysis: Analysis, setting: str) -> str:
    """Which rank raises what and which waits, in the words of the rehearsal; "" if all went well."""
    return analysis.rehearsal.details.get(setting, "") if analysis.rehearsal else ""


def because(parameters: Sequence[Parameter]) -> str:
    """The group's cause, place and reason: "uncalled at model.py:41: `spare` is created here and …"."""
    first = parameters[0]
    if first.cause is None:
        return "for a reason that the trace does not know"
    reasons = {p.why for p in parameters}
    words = first.why if len(reasons) == 1 and first.why else _CAUSES[first.cause]
    where = f" at {place(first.location)}" if first.location else ""
    return f"{first.cause}{where}: {words}"


def freeze(parameters: Sequence[Parameter], analysis: Analysis) -> str:
    """How to freeze ``parameters``: a line of Python for up to two modules, words for more."""
    where = roots(parameters, analysis)
    if len(where) > 2:
        return f"requires_grad_(False) on {short(where)}"
    single = names(parameters)
    calls = [f"model.{'get_parameter' if root in single else 'get_submodule'}({json.dumps(root)})" for root in where]
    return f"`{'; '.join(f'{call}.requires_grad_(False)' for call in calls)}`"


def rule_location(path: str, entry: UnusedRule) -> Location:
    """The place of a rule entry."""
    return Location(file=path, line=entry.line)


def quoted(patterns: Iterable[str]) -> str:
    """Patterns as a list in a sentence."""
    return ", ".join(f"`{pattern}`" for pattern in patterns)


def toml_entry(parameters: Sequence[Parameter], analysis: Analysis) -> str:
    """The ``[[unused]]`` entry that documents exactly ``parameters``, complete but for its reason."""
    own = (name for p in parameters for name in (p.name, *p.aliases))
    globs = toml(_known(_Parameters(analysis.parameters)).names.globs(names(parameters), own))
    when = '\nwhen = "sometimes"' if parameters[0].usage == "sometimes" else ""
    return f'[[unused]]\nparams = {globs}\nreason = "why they are unused"\naction = "allow"{when}'


def told(finding: Finding) -> Iterator[str]:
    """A finding in lines of plain text, for commands other than ``check``."""
    where = f"{shown(finding.location.file)}:{finding.location.line}: " if finding.location else ""
    yield f"{where}{finding.code} {finding.name} ({finding.severity})"
    yield f"  {finding.message}"
    yield f"  fix: {finding.fix}"


def as_json(finding: Finding) -> dict[str, Any]:
    """The same for programs, as the JSON report has it."""
    at = finding.location
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "message": finding.message,
        "parameters": list(finding.parameters),
        "location": {"file": Path(shown(at.file)).as_posix(), "line": at.line} if at else None,
        "fix": finding.fix,
    }
