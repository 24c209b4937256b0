"""What the target's code raised, as one line that names the target's own last line."""

from __future__ import annotations

import os
import traceback

from ddplint.errors import DdplintError
from ddplint.trace.sites import call_site


def last_line(error: BaseException) -> str:
    """``file:line`` of the innermost frame of the target's own code that ``error`` came through, or ""."""
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        site = call_site(frame)
        if site is not None and site.code is frame.f_code:
            found = f"{os.path.relpath(frame.f_code.co_filename)}:{line}"
    return found


def said(error: BaseException) -> str:
    """An exception as one line: its type and the first line of its text."""
    text = str(error).strip().split("\n", 1)[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def blame(doing: str, error: BaseException, fix: str = "run it by itself to see the whole traceback") -> DdplintError:
    """The error that says what the target's code raised, and where."""
    return DdplintError(f"{doing} raised {said(error)}", where=last_line(error), fix=fix)
