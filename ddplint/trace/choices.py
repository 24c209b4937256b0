"""The answers to try: at one fork, and at several together."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ddplint.trace.draws import FEW
from ddplint.trace.values import LARGE, Answer, Asked, Fork

# Paths at most on which several forks are answered together, by the operations on a path: what these cost is waited for.
TOGETHER = ((100, 96), (400, 24), (4000, 12), (math.inf, 6))
THREES = 12  # forks, up to which any three of them are
CANDIDATES = 32  # selections of which the best is taken

T = TypeVar("T")


def answers_at(fork: Fork, asked: Asked) -> Sequence[Answer]:
    """The constant answers to try at ``fork``; integers go on from here while they bring something new."""
    if fork.domain in ("bool", "mask"):
        return (True, False)
    if fork.domain == "draw":
        return ("low", "high")
    if fork.domain == "choice":
        return tuple(range(fork.choices)) if 0 < fork.choices <= FEW else ("low", "high")
    if fork.domain == "int" and asked.among is not None:
        return asked.among if len(asked.among) <= FEW else (asked.among[0], asked.among[-1])
    counts = ("even", "odd") if asked.length and not asked.free else ()
    if fork.domain == "float":
        negative = counts or any(isinstance(v, (int, float)) and v < 0 for v in asked.values)
        return (*counts, -LARGE if negative else 0.0, LARGE)
    return counts or (0,)  # computed whole numbers are mostly counts: some of them zero, never all


def answers_in_turn(fork: Fork, asked: Asked) -> tuple[tuple[Answer, ...], tuple[Answer, ...]]:
    """Answers that vary from read to read (or along a list), for what picks the best of several: those to try first, and
    those to try if one of the first brought something new.
    """
    number = asked.length or asked.count
    if number < 2 or fork.domain in ("draw", "choice") or asked.among is not None:
        return (), ()
    middle = f"at {number // 2}"
    others = tuple(f"at {n}" for n in range(number) if n != number // 2) if number <= FEW else ()
    return (middle,) if fork.domain in ("bool", "mask") else ("rising", "falling", middle), others


def covering(options: Sequence[Sequence[T]], limit: int = TOGETHER[0][1]) -> list[tuple[T, ...]]:
    """Few selections, one choice of each of ``options`` in each, in which any three choices (where the options are many,
    any two) have met; all selections where these are at most ``limit``, and never more than ``limit``.

    Greedy: the next selection is the one of several random ones that brings the most new meetings. The same for the same
    options.
    """
    if len(options) < 2:
        return []
    if math.prod(len(choices) for choices in options) <= limit:
        return list(itertools.product(*options))
    size = 3 if 2 < len(options) <= THREES else 2
    numbers = [range(len(choices)) for choices in options]
    missing = {meeting for some in itertools.combinations(range(len(options)), size) for meeting in _meetings(numbers, some)}
    draw = random.Random(0)
    found: list[tuple[T, ...]] = []
    while missing and len(found) < limit:
        candidates = [tuple(draw.choice(choices) for choices in numbers) for _ in range(CANDIDATES)]
        met = [missing & set(itertools.combinations(enumerate(selection), size)) for selection in candidates]
        best = max(range(CANDIDATES), key=lambda number: len(met[number]))
        if met[best]:
            found.append(tuple(choices[number] for choices, number in zip(options, candidates[best], strict=True)))
            missing -= met[best]
    return found


def _meetings(numbers: Sequence[range], some: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], ...]]:
    for choices in itertools.product(*(numbers[index] for index in some)):
        yield tuple(zip(some, choices, strict=True))
