"""Unified diffs of what a command would write."""

from __future__ import annotations

import difflib
from pathlib import Path

from ddplint.fields import shown


def lines_of(text: str) -> list[str]:
    """The lines of ``text`` with their ends, as editors and TOML count them: other signs that Python takes for line ends,
    a form feed say, are part of a line.
    """
    *whole, last = text.split("\n")
    return [f"{line}\n" for line in whole] + [last] * bool(last)


def unified(path: Path, before: str, after: str) -> str:
    """The change of the file at ``path`` as a unified diff; "" if there is none."""
    name = Path(shown(path)).as_posix()
    found = difflib.unified_diff(lines_of(before), lines_of(after), f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)
