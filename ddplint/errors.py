"""The one exception a user sees: something could not be checked, said in one line."""

from __future__ import annotations

import os


class DdplintError(Exception):
    """An input that is wrong, or a target that could not be traced.

    The command line prints it as one line and exits 2. ``what`` says what is wrong, ``where`` names the file, key or
    option it is about, ``fix`` says what was expected or what to do.
    """

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(what, where, fix)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return printable(" ".join(f"{line}; {self.fix}".split()) if self.fix else " ".join(line.split()))


def printable(text: str) -> str:
    """``text`` with what a terminal would act on, or could not show, spelled as Python spells it: ``\\x1b``, ``\\ud800``."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def unwritten(error: OSError) -> DdplintError | None:
    """What is to be said when stdout fails. None if its reader has seen enough: that is no error."""
    # What is still in the buffer would fail once more when Python exits.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return None
    return DdplintError(f"can't be written: {error.strerror}", where="stdout")
