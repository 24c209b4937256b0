"""A line on a terminal that says what is being traced, above which the target's own output scrolls past."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from ddplint.stages import Say

if TYPE_CHECKING:
    from rich.console import Console

_LAST_WORDS = 2.0  # seconds that what the target wrote last may take to appear


@dataclass(frozen=True, slots=True)
class Live:
    """Where a worker's news go: its stages to ``say``, what its target prints to the file descriptor ``output``."""

    say: Say
    output: int


def can_be_shown(stream: TextIO) -> bool:
    """Whether a line of ``stream`` can be written over: a terminal that is not dumb. FORCE_COLOR does not make one."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


@contextmanager
def shown(title: str, stream: TextIO) -> Iterator[Live]:
    """While the block runs, a line at the end of ``stream``: ``title`` and the last stage. It is gone afterwards."""
    from rich.console import Console
    from rich.text import Text

    def line(stage: str) -> Text:
        return Text.assemble((title, "bold"), (f"  {stage}" if stage else "", "dim"), no_wrap=True, overflow="ellipsis")

    console = Console(file=stream, highlight=False)
    read, write = os.pipe()
    relay = threading.Thread(target=_relay, args=(read, console), daemon=True)
    try:
        with console.status(line("starting")) as status:
            relay.start()
            try:
                yield Live(lambda stage: status.update(line(stage)), write)
            finally:
                os.close(write)
                relay.join(_LAST_WORDS)
    finally:
        console.show_cursor()


def _relay(read: int, console: Console) -> None:
    """Print what comes out of the pipe above the line, until all that can write into it is gone."""
    with open(read, errors="replace") as lines:
        for line in lines:
            console.out(line.rstrip("\n"), highlight=False)
