"""Where a process starts: answered from the cache if that can be, else by the command line, with a recorder beside it.

Imports nothing that a cached answer does not need.
"""

from __future__ import annotations

import io
import os
import sys

from ddplint import cache, files
from ddplint.errors import unwritten

TYPE_CHECKING = False  # as in typing, which would take longer than all of the rest
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run ddplint on ``sys.argv`` and exit."""
    arguments = sys.argv[1:]
    place = cache.place(arguments)
    if place is None:
        _command_line()
    verbose = "--verbose" in arguments
    found = cache.find(place)
    if isinstance(found, str):
        _recorded(place, verbose, found)
    try:
        for path, text in found.files:
            files.replace(path, text.encode("utf-8", errors="backslashreplace"))
    except OSError:
        _command_line()  # which says what is wrong with it
    _give(found, verbose)


def _command_line() -> NoReturn:
    from ddplint import cli

    cli.main()


def _give(answer: cache.Answer, verbose: bool) -> NoReturn:
    """Print what the run has printed, and exit as it did."""
    code = answer.code or 0
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as the command line does
    _say(answer.err)
    if verbose:
        _say("note: cache: nothing has changed; this is the answer of an earlier run\n")
    try:
        sys.stdout.write(answer.out)
        sys.stdout.flush()
    except OSError as error:
        failure = unwritten(error)
        if failure is not None:
            _say(f"error: {failure}\n")
            code = 2
    os._exit(code)  # nothing is left that would have to be cleaned up


def _say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _recorded(place: cache.Place, verbose: bool, why: str) -> NoReturn:
    """Run the command line, and keep its answer if it can be given again."""
    environment = dict(os.environ)
    from ddplint import inputs

    recorder = inputs.record()
    from ddplint import cli

    answer = cache.Answer()
    try:
        cli.main(answer=answer)
    finally:
        recorder.stop()
        if answer.code is not None:
            kept = cache.keep(place, answer, recorder, environment)
            if verbose:
                _say(f"note: cache: {why}; {f'the answer is not kept: {kept}' if kept else 'the answer is kept'}\n")
