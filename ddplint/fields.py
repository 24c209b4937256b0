"""Reading a TOML file against a table of its fields: every fault found, each with its line, said in one line.

The table of fields is plain data, so that validation (here) and the published JSON Schema
(``ddplint.schema``) can't drift apart. Nothing here imports torch.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddplint.errors import DdplintError

Place = tuple[str | int, ...]  # the way to a value: ("unused", 0, "action")

DEEPEST = 32  # nesting of free values; far more than anybody writes, far less than Python's recursion limit


@dataclass(frozen=True, slots=True)
class Text:
    """A string: one of ``choices``, or one that matches ``pattern`` as a whole.

    ``pattern`` is a regex that means the same in Python and in JSON Schema. ``fault`` says in words what is
    wrong with a string that does not match, None for one that does.
    """

    says: str = "a string"
    choices: tuple[str, ...] = ()
    pattern: str = ""
    fault: Callable[[str], str | None] | None = None


@dataclass(frozen=True, slots=True)
class Boolean:
    """``true`` or ``false``."""

    says: str = "true or false"


@dataclass(frozen=True, slots=True)
class Integer:
    """A whole number, at least ``minimum`` where that is given."""

    says: str = "an integer"
    minimum: int | None = None


@dataclass(frozen=True, slots=True)
class Number:
    """An integer or a float; with ``positive`` a finite one above zero."""

    says: str = "a number"
    positive: bool = False


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list of at least ``minimum`` items of one kind; ``hint`` tells those who wrote none how to."""

    item: Kind
    says: str
    minimum: int = 0
    hint: str = ""


@dataclass(frozen=True, slots=True)
class MapOf:
    """A table with keys of the user's choice (``key`` says which) and values of one kind."""

    value: Kind
    says: str
    key: Text = Text()


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a table: the kind of its value, what it is for, whether it has to be there."""

    kind: Kind
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table with known keys.

    ``fault`` finds what is wrong between the keys of a table whose values are right one by one, as
    (key, sentence); ``extra`` says the same in JSON Schema, as far as that can.
    """

    fields: Mapping[str, Field]
    says: str = "a table"
    fault: Callable[[Mapping[str, Any]], Iterator[tuple[str, str]]] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Either:
    """A value of the first kind that takes its TOML type."""

    kinds: tuple[Kind, ...]
    says: str


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value that JSON can carry: no dates, no times."""

    says: str = "a string, number, boolean, list or table"


Kind = Text | Boolean | Integer | Number | ListOf | MapOf | Table | Either | Anything

_TYPES: dict[type, tuple[type, ...]] = {
    Text: (str,),
    Boolean: (bool,),
    Integer: (int,),
    Number: (int, float),
    ListOf: (list,),
    MapOf: (dict,),
    Table: (dict,),
    Anything: (str, bool, int, float, list, dict),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the value at ``place``."""

    place: Place
    sentence: str


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed TOML file: its path, its data, and the line (from 1) of every key and table header."""

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[Place, int]

    def line(self, place: Place) -> int:
        """The line of ``place`` or of the nearest table or list around it; 0 if none of them has one."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 0)


def faults(kind: Kind, value: Any, place: Place = ()) -> Iterator[Fault]:
    """Everything that is wrong with ``value`` as a ``kind``; nothing for a right one."""
    if not _takes(kind, value):
        hint = f" ({kind.hint})" if isinstance(kind, ListOf) and kind.hint else ""
        yield Fault(place, f"expected {kind.says}, got {_described(value)}{hint}")
        return
    match kind:
        case Text():
            yield from _text_faults(kind, value, place)
        case Integer(minimum=int(minimum)) if value < minimum:
            yield Fault(place, f"expected {kind.says}, got {_described(value)}")
        case Number(positive=True) if not 0 < value < math.inf:
            yield Fault(place, f"expected {kind.says}, got {_described(value)}")
        case ListOf():
            if len(value) < kind.minimum:
                yield Fault(place, f"expected {kind.says}, got an empty list")
            for index, item in enumerate(value):
                yield from faults(kind.item, item, (*place, index))
        case MapOf():
            for key, item in value.items():
                yield from _text_faults(kind.key, key, (*place, key))
                yield from faults(kind.value, item, (*place, key))
        case Table():
            yield from _table_faults(kind, value, place)
        case Either():
            yield from faults(next(k for k in kind.kinds if _takes(k, value)), value, place)
        case Anything():
            yield from _free_faults(value, place, DEEPEST)


def _takes(kind: Kind, value: Any) -> bool:
    if isinstance(kind, Either):
        return any(_takes(k, value) for k in kind.kinds)
    return type(value) in _TYPES[type(kind)]


def _text_faults(kind: Text, value: str, place: Place) -> Iterator[Fault]:
    if kind.choices and value not in kind.choices:
        listed = ", ".join(quoted(choice) for choice in kind.choices)
        yield Fault(place, f"expected one of {listed}, got {quoted(value)}{did_you_mean(value, kind.choices)}")
    elif kind.fault is not None:
        sentence = kind.fault(value)
        if sentence:
            yield Fault(place, sentence)
    elif kind.pattern and not re.fullmatch(kind.pattern, value):
        yield Fault(place, f"expected {kind.says}, got {quoted(value)}")


def _table_faults(kind: Table, value: Mapping[str, Any], place: Place) -> Iterator[Fault]:
    before = 0
    for key, item in value.items():
        if key in kind.fields:
            for fault in faults(kind.fields[key].kind, item, (*place, key)):
                before += 1
                yield fault
        else:
            before += 1
            allowed = ", ".join(kind.fields)
            yield Fault((*place, key), f"unknown key{did_you_mean(key, kind.fields)} (allowed: {allowed})")
    for key, known in kind.fields.items():
        if known.required and key not in value:
            before += 1
            yield Fault((*place, key), f"missing (expected {known.kind.says})")
    if not before and kind.fault is not None:
        for key, sentence in kind.fault(value):
            yield Fault((*place, key), sentence)


def _free_faults(value: Any, place: Place, depth: int) -> Iterator[Fault]:
    if not _takes(Anything(), value):
        yield Fault(place, f"expected {Anything().says}, got {_described(value)}")
    elif isinstance(value, dict | list):
        if not depth:
            yield Fault(place, f"nested more than {DEEPEST} deep")
            return
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from _free_faults(item, (*place, key), depth - 1)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """``, did you mean "reason"?`` for the nearest of ``words``; "" where none is near."""
    near = difflib.get_close_matches(word, list(words), n=1)
    return f", did you mean {quoted(near[0])}?" if near else ""


def quoted(text: str) -> str:
    """``text`` in double quotes on one line, cut where it is long."""
    return json.dumps(text if len(text) <= 80 else text[:77] + "...", ensure_ascii=False)


def _described(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return f"the string {quoted(value)}"
        case int():
            return f"the integer {value}" if abs(value) < 10**20 else "an integer too large"
        case float():
            return f"the float {value}"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"a {type(value).__name__}"


def spelled(place: Place) -> str:
    """``unused[0].action`` for ("unused", 0, "action"); keys that are not bare are quoted."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = part if re.fullmatch(r"[\w-]+", part) else quoted(part)
            text += f".{bare}" if text else bare
    return text


def shown(path: Path | str) -> str:
    """``path`` as messages name it: relative to the working folder where it lies inside."""
    absolute = Path(path).absolute()
    here = Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(absolute)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file (a byte-order mark is dropped), newlines as they are.

    Raises DdplintError where it is missing, no file, unreadable or not UTF-8.
    """
    where = shown(path)
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise DdplintError("no such file", where=where) from None
    except IsADirectoryError:
        raise DdplintError("is a folder", where=where, fix="expected a TOML file") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        what = f"not UTF-8: byte 0x{error.object[error.start]:02x}"
        raise DdplintError(what, where=f"{where}:{line}", fix="save the file as UTF-8") from None
    except OSError as error:
        raise DdplintError(f"can't be read: {error.strerror}", where=where) from None


def read_toml(path: Path) -> Document:
    """The TOML file at ``path``. Raises DdplintError with file and line where it is unreadable or broken."""
    return parse_toml(read_text(path), path)


def parse_toml(text: str, path: Path) -> Document:
    """``text`` as the TOML of the file at ``path``. Raises as ``read_toml`` does where it is broken."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = re.sub(r" \(at (line \d+, column \d+|end of document)\)$", "", str(error))
        found = re.search(r"\(at line (\d+), column (\d+)\)$", str(error))
        line = found[1] if found else str(text.rstrip().count("\n") + 1)
        at = f", column {found[2]}" if found else ", at the end of the file"
        raise DdplintError(f"broken TOML: {message}{at}", where=f"{shown(path)}:{line}") from None
    except RecursionError:
        raise DdplintError("broken TOML: nested too deep", where=shown(path)) from None
    except ValueError as error:  # e.g. an integer of more digits than Python converts
        raise DdplintError(f"broken TOML: {error}", where=shown(path)) from None
    return Document(path, data, key_lines(text))


def refuse(document: Document, found: Iterable[Fault]) -> None:
    """Raise one DdplintError with all faults, sorted by their place in the file; return if there are none."""
    placed = sorted((document.line(fault.place), spelled(fault.place), fault.sentence) for fault in found)
    if not placed:
        return
    sentences = [f"{key}: {sentence}" if key else sentence for _, key, sentence in placed]
    first = placed[0][0]
    later = [f"line {line}: {s}" if line else s for (line, _, _), s in zip(placed[1:], sentences[1:], strict=True)]
    where = f"{shown(document.path)}:{first}" if first else shown(document.path)
    raise DdplintError("; ".join([sentences[0], *later]), where=where)


# Multi-line strings may end in up to two quotes of their own before the closing three.
_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r'"(?:\\.|[^"\\\n])*"|' + r"'[^'\n]*'|"
    r"\#[^\n]*|\n|[\[\]{}=]|[^\"'\#\n\[\]{}=]+",
    re.DOTALL,
)


def key_lines(text: str) -> dict[Place, int]:
    """The line (from 1) of each key and table header in ``text``, which must be valid TOML.

    Keys inside inline tables are not listed: they share the line of the key that holds them.
    """
    lines: dict[Place, int] = {}
    header: Place = ()
    counts: dict[Place, int] = {}
    for number, head in _statements(text):
        if head.startswith("["):
            path = _keys(head)
            place = _placed(path[:-1], counts)
            if head.startswith("[["):
                array = (*place, path[-1])
                index = counts[array] = counts.get(array, -1) + 1
                lines.setdefault(array, number)
                header = (*array, index)
            else:
                header = (*place, path[-1])
            lines.setdefault(header, number)
        else:
            path = _keys(head + "= 0")
            for end in range(1, len(path) + 1):
                lines.setdefault((*header, *path[:end]), number)
    return lines


def _placed(path: tuple[str, ...], counts: Mapping[Place, int]) -> Place:
    """``path`` with the index of the array's last table after each name that is an array of tables."""
    place: Place = ()
    for name in path:
        place = (*place, name)
        if place in counts:
            place = (*place, counts[place])
    return place


def _keys(head: str) -> tuple[str, ...]:
    """The keys of one header or one ``key = 0``; tomllib itself knows all ways to quote them."""
    keys: list[str] = []
    value: Any = tomllib.loads(head)
    while value:
        value = value[0] if isinstance(value, list) else value
        if not value:
            break
        [(key, value)] = value.items()
        keys.append(key)
    return tuple(keys)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, header or the text before "=") of each statement at the top level of the file."""
    number, start, depth = 1, 1, 0
    head, done = "", False
    for match in _TOKEN.finditer(text.replace("\r\n", "\n") + "\n"):
        token = match[0]
        if token == "\n" and not depth:
            if head.strip():
                yield start, head.strip()
            head, done = "", False
        elif not done and token == "=" and not depth:
            done = True
        elif not done and not token.startswith("#"):
            start = start if head.strip() else number
            head += token
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        number += token.count("\n")


def toml(value: Any) -> str:
    """``value`` as TOML on one line. Raises DdplintError for what TOML can't say (None, an object)."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            if not value.isascii() and value != value.encode(errors="replace").decode():
                raise DdplintError(f"not Unicode text: {value!r}")
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float():
            return repr(value)
        case list() | tuple():
            return f"[{', '.join(toml(item) for item in value)}]"
        case Mapping():
            if not value:
                return "{}"
            return f"{{ {', '.join(f'{_toml_key(key)} = {toml(item)}' for key, item in value.items())} }}"
        case _:
            raise DdplintError(f"{type(value).__name__} has no form in TOML: {value!r}")


def _toml_key(key: object) -> str:
    if not isinstance(key, str):
        raise DdplintError(f"a key of a TOML table is a string, not {key!r}")
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml(key)
