"""Random draws of Python's ``random`` and of ``numpy.random``: control flow forks on these as on a tensor's value.

A draw is forced to the low or the high end of what it can give, a choice among few to each of them. The wrappers are
put in place before the target is imported, so that names it imports from these modules are wrapped too; without a run
in progress they draw as always. scipy draws through ``numpy.random.mtrand._rand`` (scipy/_lib/_util.py,
``check_random_state``).
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from ddplint.trace.patching import patched
from ddplint.trace.values import Answer, Answers, Fork, ask_draw

_ALMOST_ONE = 1.0 - 2.0**-53
FEW = 8  # a choice among so many is tried one by one


def _python_random(plain: Callable[..., float]) -> Callable[..., float]:
    @functools.wraps(plain)
    def wrapper(*args: Any) -> float:
        answers, fork, answer = ask_draw("draw")
        value = plain(*args)
        if answer is not None:
            return 0.0 if answer == "low" else _ALMOST_ONE
        if answers is not None:
            answers.note(fork, value)
        return value

    return wrapper


def _python_below(plain: Callable[[Any, int], int]) -> Callable[[Any, int], int]:
    """``Random._randbelow(n)``, through which randint, choice, shuffle and sample draw (CPython, Lib/random.py)."""

    @functools.wraps(plain)
    def wrapper(self: Any, n: int) -> int:
        answers, fork, answer = ask_draw("choice", n if n <= FEW else 0)
        value = plain(self, n)
        if answer is not None:
            return _chosen(answer, n)
        if answers is not None:
            answers.note(fork, value)
        return value

    return wrapper


def _chosen(answer: Answer, n: int) -> int:
    if isinstance(answer, str):
        return 0 if answer == "low" else n - 1
    return min(int(answer), n - 1)


def _among(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
    """What a draw of ``numpy.random``'s method ``name`` is made among, if that is few things; else nothing."""
    if name in ("randint", "integers"):
        if kwargs or len(args) not in (1, 2) or not all(isinstance(a, int) for a in args):  # a size, an end that counts
            return ()
        low, high = (0, args[0]) if len(args) == 1 else args
        return range(low, high) if 0 < high - low <= FEW else ()
    if name in ("choice", "permutation", "shuffle"):
        given = args[0] if args else kwargs.get("a", kwargs.get("x"))
        things: Any = range(given) if isinstance(given, int) and name != "shuffle" else given
        if not hasattr(things, "__len__") or not 0 < len(things) <= FEW or kwargs.get("axis") or len(args) > 4:
            return ()
        weights = _argument("p", 3, args, kwargs) if name == "choice" else None
        return things if weights is None else [thing for thing, p in zip(things, weights, strict=False) if p > 0]
    return ()


def _argument(name: str, position: int, args: tuple[Any, ...], kwargs: dict[str, Any], default: Any = None) -> Any:
    return args[position] if len(args) > position else kwargs.get(name, default)


def _taken(name: str, among: Sequence[Any], number: int, drawn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A draw of ``name`` that begins with the ``number``-th of ``among``; ``drawn`` is one as it came."""
    import numpy as np

    if name == "shuffle":  # in place
        order = [*among]
        args[0][:] = [*order[number:], *order[:number]]
        return None
    if name in ("randint", "integers") or (name == "choice" and not np.shape(drawn)):
        one = among[number]
        return type(drawn)(one) if isinstance(drawn, (int, float)) or hasattr(drawn, "dtype") else one
    rotated = np.roll(np.asarray(among, dtype=np.asarray(drawn).dtype), -number, axis=0)
    if name == "choice" and _argument("replace", 2, args, kwargs, True):
        return np.broadcast_to(rotated[0], np.shape(drawn)).copy()
    return rotated[: len(drawn)] if np.ndim(drawn) == np.ndim(rotated) else drawn


def _ends(name: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], answer: Answer) -> Any:
    """What ``numpy.random``'s method ``name`` gives at the end of its range that ``answer`` names, of the drawn shape."""
    import numpy as np

    drawn = plain(*args, **kwargs)
    if name in ("permutation", "bytes") or drawn is None:  # shuffles in place, or has no low and high
        return drawn
    high = answer == "high"
    if name in ("random", "random_sample", "rand", "ranf", "sample"):
        end: Any = _ALMOST_ONE if high else 0.0
    elif name == "uniform":
        low, top = (
            kwargs.get(key, args[i] if len(args) > i else default)
            for i, (key, default) in enumerate((("low", 0.0), ("high", 1.0)))
        )
        end = np.nextafter(top, low) if high else low
    else:  # the end of what many draws give, for any other distribution
        many = [plain(*args, **kwargs) for _ in range(256)]
        try:
            end = np.max(many, axis=0) if high else np.min(many, axis=0)
        except TypeError:  # a choice among things that have no order
            return many[-1 if high else 0]
    if not isinstance(drawn, np.ndarray):
        return type(drawn)(end)
    return np.broadcast_to(np.asarray(end, dtype=np.asarray(drawn).dtype), np.shape(drawn)).copy()


_drawing_now: list[None] = []


@contextmanager
def _within_a_draw() -> Iterator[None]:
    _drawing_now.append(None)
    try:
        yield
    finally:
        _drawing_now.pop()


def _numpy_method(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if _drawing_now:  # numpy draws a choice by other draws of its own
            return plain(*args, **kwargs)
        among = _among(name, args, kwargs)
        few = len(among) > 0
        answers, fork, answer = ask_draw("choice", len(among)) if few else ask_draw("draw")
        with _within_a_draw():
            return drawn(among if few else None, answers, fork, answer, args, kwargs)

    def drawn(
        among: Sequence[Any] | None,
        answers: Answers | None,
        fork: Fork | None,
        answer: Answer | None,
        args: Any,
        kwargs: Any,
    ) -> Any:
        if answer is not None and among is not None:
            things = list(copy.copy(among))  # before a shuffle
            drawn = plain(*args, **kwargs)  # the generator goes on as it would
            return _taken(name, things, _chosen(answer, len(things)), drawn, args, kwargs)
        if answer is not None:
            return _ends(name, plain, args, kwargs, answer)
        value = plain(*args, **kwargs)
        if answers is not None:
            answers.note(fork, float(value) if isinstance(value, float) else value)
        return value

    return wrapper


_NO_DRAW = frozenset(
    {"seed", "get_state", "set_state", "spawn", "bit_generator", "get_bit_generator", "set_bit_generator", "test"}
)


class _AsBase(type):
    """A generator that was made before the wrappers were in place is an instance all the same."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])


@functools.cache
def _drawing(base: type) -> type:
    """A subclass of numpy's ``base`` generator whose every drawing method asks first."""

    def method(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _numpy_method(name, functools.partial(plain, self))(*args, **kwargs)

        return functools.wraps(plain)(call)

    names = [n for n in dir(base) if not n.startswith("_") and n not in _NO_DRAW and callable(getattr(base, n))]
    return _AsBase(base.__name__, (base,), {name: method(name, getattr(base, name)) for name in names})


@contextmanager
def draws_watched() -> Iterator[None]:
    """While the block runs, draws of ``random`` and (if it is imported or can be) ``numpy.random`` can be forced."""
    with ExitStack() as stack:
        stack.enter_context(patched(random, random=_python_random(random.random)))
        stack.enter_context(
            patched(
                random.Random,
                random=_python_random(random.Random.random),
                _randbelow=_python_below(vars(random.Random)["_randbelow"]),
            )
        )
        try:
            import numpy as np
        except ImportError:
            yield
            return
        legacy = np.random.mtrand._rand
        functions = {
            name: _numpy_method(name, value)
            for name, value in vars(np.random).items()
            if getattr(value, "__self__", None) is legacy and name not in _NO_DRAW
        }
        state, generator = _drawing(np.random.RandomState), _drawing(np.random.Generator)

        plain, plain_generator = np.random.default_rng, np.random.Generator

        def default_rng(seed: Any = None) -> Any:
            return seed if isinstance(seed, plain_generator) else generator(plain(seed).bit_generator)

        watched = state(legacy._bit_generator)

        def seed(seed: Any = None) -> None:
            """Both, for each keeps the second of a pair of normal draws (``_reset_gauss`` in numpy/random/mtrand.pyx)."""
            legacy.seed(seed)
            watched.seed(seed)

        functions["seed"] = seed
        stack.enter_context(patched(np.random, RandomState=state, Generator=generator, default_rng=default_rng, **functions))
        stack.enter_context(patched(np.random.mtrand, _rand=watched))
        yield
