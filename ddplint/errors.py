"""The one exception a user sees: something could not be checked, said in one line."""

from __future__ import annotations


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
        return " ".join(f"{line}; {self.fix}".split()) if self.fix else " ".join(line.split())
