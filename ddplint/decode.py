"""A DDP error text read back: which parameters it is about, and why they got no gradient.

DDP numbers the parameters that require grad, each once, in the order of ``named_parameters()``
(torch/nn/parallel/distributed.py, ``_build_params_for_reducer``), without those that the run told it to
ignore, of which nothing is known here. In the names it prints (with TORCH_DISTRIBUTED_DEBUG) a shared parameter
has its last name instead of its first, and one of the root module a dot in front
(``_build_debug_param_to_name_mapping``); they come in no particular order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ddplint.analysis import Analysis, Parameter
from ddplint.errors import DdplintError
from ddplint.fields import shown

Kind = Literal["unused", "ready-twice"]

_ELSE = "the run had another checkpoint type or froze other parameters"


@dataclass(frozen=True, slots=True)
class Report:
    """What one rank's error text lists: DDP's indices, names, or both. ``rank`` is None if it is not said."""

    kind: Kind
    rank: int | None
    indices: tuple[int, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decoded:
    """One listed parameter. ``index`` is None where only a name was listed.

    ``parameter`` is the model's, with its cause and place, None where the model has none such; ``note``
    says in one sentence what does not fit between the error text and the model, "" if all does.
    """

    kind: Kind
    ranks: tuple[int, ...]
    index: int | None
    name: str
    parameter: Parameter | None
    note: str = ""

    def __str__(self) -> str:
        """One line: index, ranks, name, cause, place, why, note."""
        head = [f"index {self.index}"] if self.index is not None else []
        if self.ranks:
            head.append(f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}")
        told = [self.name] if self.name else []
        if self.kind == "ready-twice":
            told.append("marked as ready twice")
        parameter = self.parameter
        if parameter is not None and parameter.cause:
            place = parameter.location
            told.append(f"{parameter.cause} ({shown(place.file)}:{place.line})" if place else parameter.cause)
            told += [parameter.why] if parameter.why else []
        told += [self.note] if self.note else []
        return f"{', '.join(head)}: {'; '.join(told)}" if head else "; ".join(told)


def indices(text: str) -> tuple[Report, ...]:
    """What the DDP errors in ``text`` list, one report for each kind and rank, in the order of the text.

    Understood are both errors of torch/csrc/distributed/c10d/reducer.cpp ("did not receive grad", "marked
    as ready twice"), with any TORCH_DISTRIBUTED_DEBUG, of several ranks, in logs with prefixes and wrapped
    lines. Raises DdplintError for a text with neither.
    """
    found: dict[tuple[Kind, int | None], tuple[dict[int, None], dict[str, None]]] = {}
    for rank, stream in _streams(text.replace("\\n", "\n")):
        for report in _listed(stream, rank):
            if not report.indices and not report.names:
                continue
            numbers, names = found.setdefault((report.kind, report.rank), ({}, {}))
            numbers.update(dict.fromkeys(report.indices))
            names.update(dict.fromkeys(report.names))
    if not found:
        if "finished reduction in the prior iteration" in text or "mark a variable ready only once" in text:
            raise DdplintError(
                "the text has DDP's error, but not the line that lists the parameters",
                fix='add "Parameter indices which did not receive grad for rank …" or "Parameter at index …"',
            )
        raise DdplintError(
            "no DDP error in the text",
            fix='expected a line such as "Parameter indices which did not receive grad for rank 0: 72 73"',
        )
    return tuple(Report(kind, rank, tuple(numbers), tuple(names)) for (kind, rank), (numbers, names) in found.items())


# What launchers put before each line: "[rank0]:", "[default0]:[rank0]:", "[1,0]<stderr>:", srun's "0: ".
_PREFIX = re.compile(r"\s*(?:(?:\[[\w,]*\d\](?:<\w+>)?:\s?)+|\d+:\s)")


def _streams(text: str) -> Iterator[tuple[int | None, str]]:
    """(rank, text) of each process in a log, without prefixes. A line with none belongs to the one above."""
    streams: dict[str, list[str]] = {}
    current = ""
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        match = _PREFIX.match(line)
        lines = streams.setdefault(current, [])
        # "0: 72 73" has no prefix where the line above ends in "for rank".
        wrapped = bool(lines) and lines[-1].endswith(" rank") and line[:1].isdigit()
        if match and not wrapped:
            current = match[0].strip()
            lines = streams.setdefault(current, [])
            line = line[match.end() :]
        lines.append(line.rstrip())
    for prefix, lines in streams.items():
        rank = re.search(r"rank(\d+)\]|^(\d+):$", prefix)
        yield (int(rank[1] or rank[2]) if rank else None), "\n".join(lines)


def _spaced(words: str) -> str:
    """A regex for ``words`` however the line is wrapped."""
    return words.replace(" ", r"\s+")


_NUMBER = r"\d{1,9}"
_INDICES = re.compile(_spaced(rf"Parameter indices which did not receive grad for rank ({_NUMBER})\s*:"))
_NAMES = re.compile(_spaced(rf"Parameters which did not receive grad for rank ({_NUMBER})\s*:"))
_LOGGED = re.compile(_spaced(rf"\[Rank ({_NUMBER})\] Parameter: (\S+) did not get gradient in backwards pass"))
_TWICE = re.compile(_spaced(rf"Parameter at index ({_NUMBER})(?: with name (\S+))? has been marked as ready twice"))


_LONGEST = 10**7  # characters of one list: far beyond any model's, and a bound on the work a long log makes


def _listed(stream: str, rank: int | None) -> Iterator[Report]:
    for match in _INDICES.finditer(stream):
        yield Report("unused", int(match[1]), indices=tuple(_numbers(_tail(stream, match))))
    for match in _NAMES.finditer(stream):
        yield Report("unused", int(match[1]), names=tuple(_names(_tail(stream, match))))
    for match in _LOGGED.finditer(stream):
        yield Report("unused", int(match[1]), names=(match[2].lstrip("."),))
    for match in _TWICE.finditer(stream):
        names = (match[2].lstrip("."),) if match[2] else ()
        yield Report("ready-twice", rank, indices=(int(match[1]),), names=names)


def _tail(stream: str, match: re.Match[str]) -> str:
    return stream[match.end() : match.end() + _LONGEST]


def _numbers(tail: str) -> Iterator[int]:
    """The rising indices at the start of ``tail``; a further line counts if it holds nothing else."""
    last = -1
    for at, line in enumerate(tail.split("\n")):
        leading = re.match(rf"(?:[\s,]*\b{_NUMBER}\b(?![.:/-]))*", line)
        rest = line[leading.end() :].strip(" ,.") if leading else line
        if at and rest and not rest.startswith("In addition"):
            return
        for number in re.findall(r"\d+", leading[0] if leading else ""):
            if int(number) <= last:
                return
            last = int(number)
            yield last
        if rest:
            return


def _names(tail: str) -> Iterator[str]:
    """The names at the start of ``tail``, split at commas; the list goes on where a line ends in one."""
    text = ""
    for line in re.split(r"Parameter\s+indices|In\s+addition", tail)[0].split("\n"):
        text += line.strip()
        if text and not text.endswith(","):
            break
    yield from (name for part in text.split(",") if (name := part.strip().lstrip(".")))


def decode(text: str, analysis: Analysis) -> tuple[Decoded, ...]:
    """The parameters that the DDP errors in ``text`` list, as the model of ``analysis`` has them, each once.

    An index beyond the model's trainable parameters, a name it does not have, and a parameter that is used on
    every traced path are decoded with a note. Raises DdplintError for a text without such an error.
    """
    trainable = [p for p in analysis.parameters if p.trainable]
    number = {p.name: index for index, p in enumerate(trainable)}
    known = {name: p for p in analysis.parameters for name in (p.name, *p.aliases)}
    ranks: dict[Decoded, list[int]] = {}
    for report in indices(text):
        for decoded in _decoded(report, trainable, number, known):
            ranks.setdefault(decoded, []).extend([] if report.rank is None else [report.rank])
    rows = [
        Decoded(row.kind, tuple(sorted(found)), row.index, row.name, row.parameter, row.note) for row, found in ranks.items()
    ]
    return tuple(sorted(rows, key=lambda row: (row.kind != "unused", row.index is None, row.index or 0, row.name)))


def _decoded(
    report: Report, trainable: list[Parameter], number: dict[str, int], known: dict[str, Parameter]
) -> Iterator[Decoded]:
    named = {name: _find(name, known) for name in report.names}
    names = {p.name for p in named.values() if p is not None}
    for index in report.indices:
        if index >= len(trainable):
            beyond = f"beyond the model's {len(trainable)} trainable parameters"
            yield Decoded(report.kind, (), index, "", None, f"{beyond}: {_ELSE}")
            continue
        parameter = trainable[index]
        note = _doubt(report.kind, parameter)
        if report.names and parameter.name not in names:
            note = f"the error text does not list this name: {_ELSE}"
        yield Decoded(report.kind, (), index, parameter.name, parameter, note)
    for name, found in named.items():
        if found is None:
            yield Decoded(report.kind, (), None, name, None, f"no parameter of the model has this name: {_ELSE}")
        elif number.get(found.name) not in report.indices:
            note = _doubt(report.kind, found)
            if found.name in number and report.indices:
                note = f"its index is {number[found.name]}, which the error text does not list: {_ELSE}"
            yield Decoded(report.kind, (), number.get(found.name), found.name, found, note)


def _find(name: str, known: dict[str, Parameter]) -> Parameter | None:
    """The parameter that DDP calls ``name``, also where the wrapped model was itself wrapped or compiled."""
    bare = name.replace("_orig_mod.", "")
    return known.get(name) or known.get(bare) or known.get(bare.removeprefix("module."))


def _doubt(kind: Kind, parameter: Parameter) -> str:
    if not parameter.trainable:
        return f"frozen in this model: {_ELSE}"
    if kind == "unused" and parameter.usage == "always":
        return f"used on every traced path: {_ELSE}, or took a path that was not traced"
    return ""
