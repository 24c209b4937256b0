"""Lines of source code, found by the comment they end in."""

from __future__ import annotations

from pathlib import Path


def line_of(file: str, comment: str) -> int:
    """The number of the one line of ``file`` that ends in ``# comment``."""
    (number,) = (n for n, text in enumerate(Path(file).read_text().splitlines(), 1) if text.endswith(f"  # {comment}"))
    return number
