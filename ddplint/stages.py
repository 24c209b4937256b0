"""What a worker says while it works: one line for each path that it begins, each setting that it rehearses.

Who listens is a matter of the process: the worker sends the lines to its parent, elsewhere nobody does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Say = Callable[[str], None]

_listener: ContextVar[Say | None] = ContextVar("listener", default=None)


def say(stage: str) -> None:
    """Tell the listener, if there is one, what begins now: "path 12 on rank 0"."""
    listener = _listener.get()
    if listener is not None:
        listener(stage)


@contextmanager
def told_to(listener: Say) -> Iterator[None]:
    """Inside the block, ``listener`` gets every stage."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
