"""Globs over qualified names: which are right, what they cover, which cover a set of names and no more."""

from __future__ import annotations

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ddplint.errors import DdplintError
from ddplint.fields import quoted

# A glob's character class: "[abc]", "[a-z]", "[!0-9]". It stays within one segment, so it holds no dot; a
# space stands nowhere else, for names such as those of nn.ModuleDict({"task 1": …}).
_CLASS = r"\[!?[^.][^\].]*\]"
_SEGMENT = rf"(?:\*\*|(?:[^\s.\[*]|\*(?!\*)|{_CLASS})+)"
GLOB_PATTERN = rf"{_SEGMENT}(?:\.{_SEGMENT})*"


def glob_fault(pattern: str) -> str | None:
    """What is wrong with ``pattern`` as a glob over qualified names, in words; None for a right one."""
    bare = re.sub(_CLASS, "x", pattern)
    segments = bare.split(".")
    if not pattern:
        wrong = "it is empty"
    elif re.search(r"\s", bare):
        wrong = "it holds whitespace (a name with a space is matched by [ ])"
    elif "[" in bare:
        wrong = "a [ is not closed within its segment"
    elif "" in segments:
        wrong = "it has an empty segment"
    elif any("**" in segment and segment != "**" for segment in segments):
        wrong = "** stands for whole segments and has to stand between dots"
    elif any(low > high for low, high in _ranges(pattern)):
        wrong = "a range in [ ] runs backwards"
    else:
        return None
    return f"bad glob {quoted(pattern)}: {wrong}"


def _ranges(pattern: str) -> Iterator[tuple[str, str]]:
    for part in re.findall(_CLASS, pattern):
        yield from re.findall(r"(.)-(.)", part[1:-1].removeprefix("!"), re.DOTALL)


def matches(pattern: str, name: str) -> bool:
    """Whether the glob ``pattern`` covers the qualified ``name``.

    ``*``, ``?`` and ``[…]`` stay within one segment between dots, ``**`` is any number of segments, or none.
    A pattern that matches a module covers everything in it. Raises DdplintError for a bad glob.
    """
    return _compiled(pattern).match(name + ".") is not None


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of ``names`` that any of the globs covers, in their order. Raises DdplintError for a bad glob."""
    sources = [_compiled(pattern).pattern for pattern in patterns]
    if not sources:
        return []
    match = re.compile("|".join(f"(?:{source})" for source in sources), re.DOTALL).match
    return [name for name in names if match(name + ".")]


_ANY_DEPTH = r"(?:[^.]+\.)*"


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """The regex for the start of ``name + "."``: each segment eats its dot, so a module's name is enough."""
    wrong = glob_fault(pattern)
    if wrong:
        raise DdplintError(wrong)
    source = ""
    for segment in pattern.split("."):
        if segment == "**":
            source = source.removesuffix(_ANY_DEPTH) + _ANY_DEPTH
        else:
            tokens = re.findall(rf"{_CLASS}|.", segment, re.DOTALL)
            source += "".join(_piece(token) for token in tokens) + r"\."
    return re.compile(source, re.DOTALL)


def _piece(token: str) -> str:
    if token == "*":
        return "[^.]*"
    if token == "?":
        return "[^.]"
    if len(token) == 1:
        return re.escape(token)
    inner = token[1:-1]
    negated = len(inner) > 1 and inner.startswith("!")
    members = re.sub(r"(.)-(.)|(.)", _member, inner[negated:], flags=re.DOTALL)
    return f"[^.{members}]" if negated else rf"(?!\.)[{members}]"


def _member(match: re.Match[str]) -> str:
    low, high, single = match.groups()
    return re.escape(single) if single else f"{re.escape(low)}-{re.escape(high)}"


def escaped(segment: str) -> str:
    """The glob that covers the one segment ``segment``, whatever signs are in it."""
    return re.sub(r"[\s*?\[]", lambda sign: f"[{sign[0]}]", segment)


class NameTree:
    """Qualified names by the modules they are in, made once and asked for the globs of many groups of them."""

    def __init__(self, names: Iterable[str]) -> None:
        self._inside: Counter[str] = Counter()  # how many of the names are at or below each prefix
        self._below: dict[str, dict[str, None]] = {}  # the segments that follow it
        for name in names:
            prefix = ""
            for segment in name.split("."):
                self._below.setdefault(prefix, {})[segment] = None
                prefix = f"{prefix}.{segment}" if prefix else segment
                self._inside[prefix] += 1

    def globs(self, wanted: Sequence[str], own: Iterable[str] = ()) -> tuple[str, ...]:
        """As ``exact_globs``: the others are the tree's names, each of which it has once, without those in ``own``."""
        others = _Others(self._inside, Counter(at for name in own for at in _prefixes(name.split("."))), self._below)
        if not any(others.below("")):
            return ("**",) if wanted else ()
        clusters: dict[object, dict[_Stem, None]] = {}
        for name in wanted:
            segments = tuple(name.split("."))
            stem = segments[: others.shared(segments) + 1]
            whole = len(stem) == len(segments)
            shape = tuple(None if segment.isdecimal() else segment for segment in stem)
            clusters.setdefault((shape, whole), {})[stem, whole] = None
        return tuple(
            ".".join(["*" if segment is None else escaped(segment) for segment in stem] + ["**"] * (not whole))
            for cluster in clusters.values()
            for stem, whole in _generalized(list(cluster), others)
        )


def exact_globs(wanted: Sequence[str], others: Iterable[str]) -> tuple[str, ...]:
    """Short globs that cover all names in ``wanted`` and none of ``others``, in the order of ``wanted``.

    A module of which ``others`` has nothing is covered as a whole; numbers (of layers, say) that make no
    difference become ``*``. No name may lie inside another one, as no parameter of a model does.
    """
    return NameTree(others).globs(wanted)


_Stem = tuple[tuple[str | None, ...], bool]  # segments, None for any; whether they are a whole name


@dataclass(frozen=True, slots=True)
class _Others:
    """The names of a tree without some of them: ``gone`` counts these as ``inside`` counts all."""

    inside: Counter[str]
    gone: Counter[str]
    all_below: dict[str, dict[str, None]]

    def below(self, prefix: str) -> Iterator[str]:
        """The prefixes one segment longer under which a name is left."""
        longer = (f"{prefix}.{segment}" if prefix else segment for segment in self.all_below.get(prefix, ()))
        return (at for at in longer if self.has(at))

    def has(self, prefix: str) -> bool:
        """Whether a name is left at or below ``prefix``."""
        return self.inside[prefix] > self.gone[prefix]

    def shared(self, segments: Sequence[str]) -> int:
        """How many of the first segments are also the way to another name."""
        return next((depth for depth, at in enumerate(_prefixes(segments)) if not self.has(at)), len(segments))

    def reached(self, stem: Sequence[str | None], prefix: str = "") -> bool:
        """Whether ``stem`` covers a name that is left."""
        if not stem:
            return True
        if stem[0] is None:
            return any(self.reached(stem[1:], at) for at in self.below(prefix))
        at = f"{prefix}.{stem[0]}" if prefix else stem[0]
        return self.has(at) and self.reached(stem[1:], at)


def _prefixes(segments: Sequence[str]) -> Iterator[str]:
    return itertools.accumulate(segments, "{}.{}".format)


def _generalized(cluster: list[_Stem], others: _Others) -> Iterator[_Stem]:
    """One stem for ``cluster``, whose numbers differ, if it reaches no other name; else several."""
    stems, whole = [stem for stem, _ in cluster], cluster[0][1]
    differing = [at for at, column in enumerate(zip(*stems, strict=True)) if len(set(column)) > 1]
    general = tuple(None if at in differing else segment for at, segment in enumerate(stems[0]))
    if not differing or not others.reached(general):
        yield general, whole
        return
    parts: dict[str | None, list[_Stem]] = {}
    for stem in cluster:
        parts.setdefault(stem[0][differing[0]], []).append(stem)
    for part in parts.values():
        yield from _generalized(part, others)
