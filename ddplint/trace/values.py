"""Value reads: the calls that turn a tensor's value into Python, where control flow can fork, and the answers they get.

A *fork* is a source place, not an occurrence: forcing one answer for every read at a place makes the number of paths grow
with the places, not with the reads. ``Answers`` holds what is forced and notes what is asked; ``AnsweringMode`` sees the
reads of tensors, ``draws`` those of Python's and numpy's generators.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from ddplint.trace.devices import DeviceMode, TraceDevice, Twins, replaced, tensors_among
from ddplint.trace.sites import Site, draw_site, line_of, read_site, span

# Tensor methods and functions whose result is a Python value made from the tensor's data.
READS = frozenset(
    {
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__complex__",
        "item",
        "tolist",
        "numpy",
        "__array__",
        "is_nonzero",
        "equal",
        "allclose",
        "_local_scalar_dense",
    }
)
WHOLE = frozenset({"tolist", "numpy", "__array__", "equal", "allclose"})  # of these, those that take any number of elements
# Calls whose result's shape depends on a tensor's values; all of them turn a mask into positions.
SHAPES = frozenset({"nonzero", "argwhere", "masked_select", "nonzero_static"})
# Calls that take sizes and positions as numbers: C++ reads the value of a tensor given in their place, which no mode sees.
MAKERS = frozenset(
    {"zeros", "ones", "empty", "full", "rand", "randn", "arange", "linspace", "eye", "randperm", "randint"}  # have no self
)
NUMBERS = MAKERS | frozenset(
    {
        *("narrow", "narrow_copy", "select", "split", "unflatten", "view", "reshape", "expand", "repeat", "tile", "roll"),
        *("new_zeros", "new_ones", "new_empty", "new_full", "unfold", "topk", "chunk", "tensor_split", "resize_"),
    }
)
Domain = Literal["bool", "int", "float", "mask", "draw", "choice"]
Answer = bool | int | float | str
LARGE = 16.0  # a large value: what is compared with a threshold is mostly of the order of one
TURNS = 32  # the largest whole number of an answer that varies: it can be how often a loop turns
RELEASE_AFTER = 512  # reads at one place in one run: then a forced loop has to end


class NoValue(BaseException):
    """On meta: the run needs something that meta tensors cannot give, a value or a kernel.

    Not an ``Exception``, so that a target's own ``except Exception`` does not take another path because of it.
    """

    def __init__(self, need: str, site: Site | None) -> None:
        self.need, self.site = need, site
        super().__init__(need)


@dataclass(frozen=True, slots=True)
class Fork:
    """A place where control flow can fork: what kind of value is read there. The innermost place outside PyTorch.

    ``columns``: the first and last column of the expression (from 0, in bytes; -1: not known), for there can be several on
    a line. ``caller``: the place that called the function directly, "" where a module is called.
    """

    domain: Domain
    file: str
    line: int
    function: str
    columns: tuple[int, int] = (-1, -1)
    caller: str = ""
    choices: int = field(default=0, compare=False)  # of a draw among so many; a place that varies it is one place


@dataclass(slots=True)
class Asked:
    """What was asked at a fork in one run: where (the user's own line), how often, and the first answers it gave."""

    site: Site
    count: int = 0
    values: list[Any] = field(default_factory=list)
    length: int = 0  # of a read of many elements at once, along the first dimension
    expressions: list[tuple[int, bool]] = field(default_factory=list)  # what was read: its hash, and whether negated
    among: range | None = None  # what a whole number is drawn from
    free: bool = True  # the elements are example data as they came in, not computed from it
    held: frozenset[int] | None = frozenset()  # ids of the buffers that alone decide what is read; None: data does


@dataclass(frozen=True, slots=True)
class Plan:
    """One path: which inputs (an index into the target's), which seed, which forced answers, on which rank."""

    inputs: int = 0
    seed: int = 0
    answers: tuple[tuple[Fork, Answer], ...] = ()
    rank: int = 0
    after: int = 0  # steps that run before, with nothing forced


class Answers:
    """What reads and draws get in one run. ``default``: what an unforced read of a meta tensor gets; None refuses it."""

    def __init__(self, forced: Mapping[Fork, Answer], *, default: Mapping[str, Answer] | None = None) -> None:
        self.forced = dict(forced)
        self.default = default
        self.asked: dict[Fork, Asked] = {}

    def at(self, domain: Domain, site: Site | None, choices: int = 0) -> tuple[Fork | None, Answer | None]:
        """The fork at ``site`` and the answer that is forced there now, if any."""
        if site is None:
            return None, None
        code, line = site.inner or (site.code, site.line)
        fork = Fork(domain, code.co_filename, line, code.co_qualname, span(code, site.at), _caller(site), choices)
        asked = self.asked.get(fork)
        if asked is None:
            asked = self.asked[fork] = Asked(site)
        asked.count += 1
        if asked.count > RELEASE_AFTER:
            return fork, None
        answer = self.forced.get(fork)
        if domain in ("bool", "mask") and isinstance(answer, str):
            answer = bool(in_turn(answer, asked.count - 1))
        return fork, answer

    def unknown(self, domain: Domain, fork: Fork | None) -> Answer | None:
        """What a read gets whose value nobody knows; at last the other answer, so that a loop ends."""
        if self.default is None:
            return None
        answer = self.default[domain]
        if domain == "bool" and fork is not None and self.asked[fork].count > RELEASE_AFTER:
            return not self.forced.get(fork, answer)
        return answer

    def note(self, fork: Fork | None, value: Any) -> None:
        """Keep one of the first values that ``fork`` really gave."""
        if fork is not None and len(values := self.asked[fork].values) < 4 and isinstance(value, (bool, int, float)):
            values.append(value)


def in_turn(answer: str, number: int, most: int = RELEASE_AFTER) -> float:
    """What a read gets at its ``number``-th time, or for its ``number``-th element (from 0), by an answer that varies:
    "even" (zero there, else one), "odd", "rising" (up to ``most``), "falling" (from ``most``) or "at N" (large there, else
    zero).
    """
    if answer in ("even", "odd"):
        return float(number % 2 == (1 if answer == "even" else 0))
    if answer in ("rising", "falling"):
        return float(min(number + 1, most) if answer == "rising" else max(most - number, 0))
    return LARGE if number == int(answer.removeprefix("at ")) else 0.0


def _caller(site: Site) -> str:
    if site.caller is None:
        return ""
    code, at = site.caller
    first, last = span(code, at)
    return f"{code.co_filename}:{code.co_qualname}:{line_of(code, at)}:{first}-{last}"


def _domain(name: str, tensor: torch.Tensor) -> Domain:
    if name in ("__bool__", "is_nonzero", "equal", "allclose"):
        return "bool"
    if name in ("__int__", "__index__"):
        return "int"
    if name in ("__float__", "__complex__"):
        return "float"
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.dtype.is_floating_point or tensor.dtype.is_complex else "int"


def _shaped(name: str, tensor: torch.Tensor, answer: Answer) -> Any:
    """``answer`` as the value that ``tensor.name()`` gives."""
    if name in ("__bool__", "is_nonzero", "equal", "allclose"):
        return bool(answer)
    if name in ("__int__", "__index__"):
        return int(answer)
    if name == "__float__":
        return float(answer)
    if name == "__complex__":
        return complex(answer)
    with torch.no_grad():
        if isinstance(answer, str):  # along the first dimension
            most = RELEASE_AFTER if tensor.is_floating_point() else TURNS
            along = torch.tensor([in_turn(answer, number, most) for number in range(tensor.shape[0])]).to(tensor.dtype)
            filled = along.reshape(-1, *[1] * (tensor.dim() - 1)).expand(tensor.shape).clone()
        else:
            filled = torch.full(tuple(tensor.shape), answer, dtype=tensor.dtype, device="cpu")
        return filled.numpy() if name in ("numpy", "__array__") else filled.tolist() if name == "tolist" else filled.item()


class AnsweringMode(DeviceMode):
    """Devices mapped, and value reads answered: by what is forced, else by the tensor, else (on meta) refused."""

    def __init__(self, device: TraceDevice, answers: Answers, twins: Twins | None = None) -> None:
        super().__init__(device, twins)
        self.answers = answers

    def read(self, func: Any, name: str, args: Any, kwargs: Any, site: Site | None) -> Any:
        """The value of a read at ``site``. Raises NoValue for an unforced read of a meta tensor."""
        tensor = next((a for a in args if isinstance(a, torch.Tensor)), None)
        if tensor is None:
            return func(*args, **kwargs)
        domain = _domain(name, tensor)
        fork, answer = self.answers.at(domain, site)
        self._note_expression(fork, tensor)
        twin = self.twins.of(tensor)
        if fork is not None:
            asked = self.answers.asked[fork]
            self._note_held(asked, tensor)
            if domain == "int":
                asked.among = self.drawn_from(tensor)
            if name in ("tolist", "numpy", "__array__") and tensor.numel() > 1:
                asked.length, asked.free = tensor.shape[0], asked.free and self.is_free(tensor)
            if isinstance(answer, str) and tensor.numel() == 1:
                answer = in_turn(answer, asked.count - 1, TURNS if domain == "int" else RELEASE_AFTER)
        if answer is None and twin is None:
            answer = self.answers.unknown(domain, fork)
            if answer is None:
                raise NoValue(f"{name}() reads a tensor's value", site)
        if answer is not None and (tensor.numel() == 1 or name in WHOLE):  # else the read itself is the target's mistake
            return _shaped(name, tensor, answer)
        value = self._on_twins(func, args, kwargs) if twin is not None else func(*args, **kwargs)
        self.answers.note(fork, value)
        return value

    def _note_expression(self, fork: Fork | None, tensor: torch.Tensor) -> None:
        if fork is not None and len(known := self.answers.asked[fork].expressions) < RELEASE_AFTER:
            known.append(self.expression(tensor))

    def expression(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """A hash of what ``tensor`` was computed by, the same for the same computation, and whether that is negated."""
        return id(tensor), False

    def _note_held(self, asked: Asked, tensor: torch.Tensor) -> None:
        if asked.held is not None:
            known = not tensor.is_meta or self.twins.of(tensor) is not None
            held = self.held_by(tensor) if known else None
            asked.held = asked.held | held if held is not None else None

    def held_by(self, tensor: torch.Tensor) -> frozenset[int] | None:
        """The ids of the buffers and tensor attributes that ``tensor`` is made of; None if it is made of anything else."""
        return None

    def drawn_from(self, tensor: torch.Tensor) -> range | None:
        """The whole numbers among which ``tensor``'s one element was drawn, where that is known."""
        return None

    def is_free(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` is example data as it came in, so that any values can be in its place."""
        return True

    def mask(self, name: str, args: tuple[Any, ...], site: Site | None) -> tuple[Any, ...]:
        """The arguments of a call whose result's shape depends on a mask, with the mask that is forced, if one is."""
        if name in SHAPES:
            position = 1 if name == "masked_select" and len(args) > 1 else 0
            if isinstance(args[position], torch.Tensor):
                return (*args[:position], self._forced_mask(args[position], site), *args[position + 1 :])
        elif name == "where" and len(args) == 1:
            return self.mask("nonzero", args, site)
        elif name == "__getitem__":
            parts = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(_is_mask(part) for part in parts):
                forced = tuple(self._forced_mask(part, site) if _is_mask(part) else part for part in parts)
                return args[0], forced if isinstance(args[1], tuple) else forced[0]
        return args

    def _forced_mask(self, mask: torch.Tensor, site: Site | None) -> torch.Tensor:
        fork, answer = self.answers.at("mask", site)
        self._note_expression(fork, mask)
        if fork is not None:
            self._note_held(self.answers.asked[fork], mask)
        if answer is None and self.twins.of(mask) is None:
            answer = self.answers.unknown("mask", fork)
        return mask if answer is None else self._all_of(mask, bool(answer))

    def _all_of(self, mask: torch.Tensor, answer: bool) -> torch.Tensor:
        """A mask like ``mask`` that is ``answer`` everywhere."""
        full = torch.full(tuple(mask.shape), answer, dtype=mask.dtype)
        return full if not mask.is_meta else self._on_meta(full)

    def bounds(self, args: tuple[Any, ...], site: Site | None) -> tuple[Any, ...]:
        """The arguments of an indexing with tensors as slice bounds read first: the mode can't see C++ read them."""
        index = args[1]
        parts = index if isinstance(index, tuple) else (index,)
        if not any(type(p) is slice and _holds_tensor(p) for p in parts):
            return args

        def number(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return self.read(torch.Tensor.__index__, "__index__", (value,), {}, site)
            return value

        resolved = tuple(slice(number(p.start), number(p.stop), number(p.step)) if type(p) is slice else p for p in parts)
        return (args[0], resolved if isinstance(index, tuple) else resolved[0], *args[2:])

    def numbers(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], site: Site | None
    ) -> tuple[Any, dict[str, Any]]:
        """A call's arguments with whole numbers that are given as tensors read first, as in ``bounds``."""

        def number(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dim() or value.dtype.is_floating_point or value.dtype.is_complex:
                return value
            return self.read(torch.Tensor.__index__, "__index__", (value,), {}, site)

        first = args[:1] if name not in MAKERS and args and isinstance(args[0], torch.Tensor) else ()
        rest = args[len(first) :]
        if not any(t.dim() == 0 for t in tensors_among((rest, kwargs))):
            return args, kwargs
        return (*first, *replaced(rest, number)), replaced(kwargs, number)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in NUMBERS:
            args, kwargs = self.numbers(name, args, kwargs or {}, read_site(sys._getframe(1)))
        if name in READS:
            return self.read(func, name, args, kwargs or {}, read_site(sys._getframe(1)))
        if name in ("__getitem__", "__setitem__"):
            args = self.bounds(args, read_site(sys._getframe(1)))
        if name in SHAPES or name == "__getitem__" or (name == "where" and len(args) == 1):
            args = self.mask(name, args, read_site(sys._getframe(1)))
        return super().__torch_function__(func, types, args, kwargs)


def _is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype is torch.bool


def _holds_tensor(part: slice) -> bool:
    return any(isinstance(value, torch.Tensor) for value in (part.start, part.stop, part.step))


# ---------------------------------------------------------------------- draws of Python and numpy

_current: list[Answers] = []


@contextmanager
def answering(answers: Answers) -> Iterator[None]:
    """While the block runs, draws of ``random`` and ``numpy.random`` ask ``answers``."""
    _current.append(answers)
    try:
        yield
    finally:
        _current.pop()


def ask_draw(domain: Domain, choices: int = 0) -> tuple[Answers | None, Fork | None, Answer | None]:
    """What a draw called from here gets: the run's answers, the fork, the forced answer (None: draw really)."""
    if not _current:
        return None, None, None
    answers = _current[-1]
    fork, answer = answers.at(domain, draw_site(sys._getframe(2)), choices)
    if fork is not None:
        answers.asked[fork].held = None
    return answers, fork, answer
