"""A source file as bytes and as text, and the way from one's offsets to the other's."""

from __future__ import annotations

import bisect
import io
import re
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ddplint.callsites.model import Edit
from ddplint.errors import DdplintError
from ddplint.fields import shown

_BOM = b"\xef\xbb\xbf"
_NEWLINE = re.compile(r"\r\n|\r|\n")  # Python's own; str.splitlines knows more


@dataclass(frozen=True)  # without slots: what is asked for often is kept
class Source:
    """A file that was read. ``encoding`` is that of the bytes after a byte-order mark."""

    path: Path
    data: bytes
    text: str
    encoding: str = "utf-8"

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The offset in ``text`` at which each line starts."""
        return (0, *(found.end() for found in _NEWLINE.finditer(self.text)))

    def place(self, offset: int) -> tuple[int, int]:
        """Line and column, from 1, of a character."""
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The line ``number``, from 1, stripped."""
        ends = (*self.starts[1:], len(self.text))
        return self.text[self.starts[number - 1] : ends[number - 1]].strip()

    def offset(self, line: int, column: int) -> int:
        """The offset in ``text`` of ast's place: a line from 1, a column in bytes of UTF-8 from 0."""
        start = self.starts[line - 1]
        return start + len(self.text[start : start + column].encode()[:column].decode(errors="ignore"))

    def edited(self, edits: tuple[Edit, ...]) -> bytes:
        """The file's bytes with ``edits`` made and no other byte changed.

        Raises DdplintError where the bytes at a place are not those that the edit is about.
        """
        mark = len(_BOM) if self.data.startswith(_BOM) else 0
        parts, done = [], 0
        for edit in sorted(edits, key=lambda edit: edit.start):
            start = mark + len(self.text[: edit.start].encode(self.encoding))
            before = edit.before.encode(self.encoding)
            if self.data[start : start + len(before)] != before or start < done:
                raise DdplintError(
                    f"line {self.place(edit.start)[0]} can't be edited in its encoding ({self.encoding})",
                    where=shown(self.path),
                    fix="change it by hand",
                )
            parts += [self.data[done:start], edit.after.encode(self.encoding)]
            done = start + len(before)
        return b"".join([*parts, self.data[done:]])


def read(path: Path) -> bytes:
    """The bytes of the file ``path``. Raises DdplintError where it can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DdplintError(f"can't be read: {error.strerror}", where=shown(path)) from None


def python_source(path: Path, data: bytes) -> Source:
    """Python source, in the encoding that its first lines name. Raises DdplintError where it is not in that."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        what = error.msg if isinstance(error, SyntaxError) else error
        raise DdplintError(f"can't be decoded: {what}", where=shown(path)) from None
    return Source(path, data, text, "utf-8" if encoding == "utf-8-sig" else encoding)


def utf8_source(path: Path, data: bytes) -> Source:
    """Any other source. Raises DdplintError where it is not UTF-8."""
    try:
        return Source(path, data, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DdplintError(f"not UTF-8: byte 0x{data[error.start]:02x}", where=f"{shown(path)}:{line}") from None
