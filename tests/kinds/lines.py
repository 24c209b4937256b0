"""Lines of source code, found by the comment they end in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddplint.trace.values import Domain, Fork


def line_of(file: str, comment: str) -> int:
    """The number of the one line of ``file`` that ends in ``# comment``."""
    (number,) = (n for n, text in enumerate(Path(file).read_text().splitlines(), 1) if text.endswith(f"  # {comment}"))
    return number


def fork_of(function: Callable[..., Any], read: str, domain: Domain) -> Fork:
    """The fork at the one line of ``function`` that holds the expression ``read``, where that is read."""
    code = function.__code__
    lines = Path(code.co_filename).read_text().splitlines()[code.co_firstlineno - 1 :]
    number, text = next((n, text) for n, text in enumerate(lines) if read in text)
    first = text.index(read)
    return Fork(domain, code.co_filename, code.co_firstlineno + number, code.co_qualname, (first, first + len(read)))
