"""Source places: which frame of a call stack explains an operation to the user.

A frame is kept as its code object and line number; text is made only for what is reported.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import os
import random
import sys
import sysconfig
from dataclasses import dataclass, field
from types import CodeType, FrameType

import torch

from ddplint.analysis import Location

_INTERNAL, _LIBRARY, _USER, _BOUNDARY = 0, 1, 2, 3


def _folder(path: str) -> str:
    return os.path.join(os.path.realpath(path), "")


_DDPLINT = _folder(os.path.dirname(os.path.dirname(__file__)))
_REFERENCE = _folder(os.path.join(_DDPLINT, "reference"))  # a target like any other
# These call the target: what is above them on the stack is not the target's.
_CALLERS = tuple(os.path.join(_DDPLINT, *parts) for parts in (("trace", "run.py"), ("rehearse.py",), ("verify_rank.py",)))
_TORCH = _folder(os.path.dirname(torch.__file__))
_STDLIB = _folder(os.path.dirname(os.__file__))
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_LIBRARIES = (
    _STDLIB,
    *{_folder(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib", "platstdlib")},
)
_TRANSPARENT = tuple(os.path.realpath(str(module.__file__)) for module in (random, contextlib, functools))  # call for others
_NUMERIC = tuple(f"{os.sep}{name}{os.sep}" for name in ("numpy", "scipy"))  # draw and compute for others
_kinds: dict[CodeType, int] = {}


@functools.cache
def _kind_of_file(name: str) -> int:
    if name.startswith("<"):  # frozen modules, exec'd strings: no line to show
        return _INTERNAL
    path = os.path.realpath(name)
    if path.startswith(_REFERENCE):
        return _USER
    if path in _CALLERS:
        return _BOUNDARY
    if path.startswith((_DDPLINT, _TORCH)) or path in _TRANSPARENT:
        return _INTERNAL
    if path.startswith(_LIBRARIES) or any(part in path for part in _INSTALLED):
        return _INTERNAL if any(name in path for name in _NUMERIC) else _LIBRARY
    return _USER


def _kind(code: CodeType) -> int:
    return _kind_of_file(code.co_filename)


@dataclass(frozen=True, slots=True)
class Site:
    """Where an operation was called: ``code`` and ``line`` of the frame that explains it.

    ``inner`` is the innermost frame outside PyTorch where that is another one (a library that the user calls). ``at`` is the
    instruction in that frame (its offset in bytes, -1: not known), and ``caller`` the code and instruction that called it
    directly, which is kept where a value is read.
    """

    code: CodeType
    line: int
    inner: tuple[CodeType, int] | None = None
    at: int = field(default=-1, compare=False)
    caller: tuple[CodeType, int] | None = field(default=None, compare=False)

    def location(self) -> Location:
        """The place as plain data, with its source line, and its columns if ``at`` is in this frame."""
        return locate(self.code, self.line, self.at if self.inner is None else -1)

    def inner_text(self) -> str:
        """``file:line`` of the innermost library frame, or "" where the user's own line is the innermost."""
        if self.inner is None:
            return ""
        code, line = self.inner
        parts = code.co_filename.replace(os.sep, "/").split("/site-packages/")
        return f"{parts[-1]}:{line}"


def locate(code: CodeType, line: int, at: int = -1) -> Location:
    """The place ``line`` in ``code`` as plain data, with its source line, and the columns of the instruction ``at``."""
    source = linecache.getline(code.co_filename, line).rstrip()
    columns = _columns(code, line, at, source)
    return Location(file=code.co_filename, line=line, function=code.co_qualname, text=source.strip(), columns=columns)


def _columns(code: CodeType, line: int, at: int, source: str) -> tuple[int, int] | None:
    """Where in ``source``, which is ``line`` of ``code``, the expression of the instruction ``at`` is; None if not there.

    Of an expression that goes on in further lines, what is on this one.
    """
    if at < 0:
        return None
    start, end, first, last = next(itertools.islice(code.co_positions(), at // 2, None), (None, None, None, None))
    if start != line or end is None or first is None or last is None:
        return None
    text = source.encode()
    columns = len(text[:first].decode(errors="replace")), len(text[: last if end == line else None].decode(errors="replace"))
    return columns if columns[0] < columns[1] else None


@functools.cache
def span(code: CodeType, at: int) -> tuple[int, int]:
    """First and last column (from 0, in bytes) of the expression whose instruction is ``at``; (-1, -1) if not known.

    An instruction that the compiler wrote twice (a ``while``'s condition) stands for one place, by its columns.
    """
    if at < 0:
        return -1, -1
    _, _, first, last = next(itertools.islice(code.co_positions(), at // 2, None), (None, None, None, None))
    return -1 if first is None else first, -1 if last is None else last


def line_of(code: CodeType, at: int) -> int:
    """The line of the instruction ``at`` of ``code``."""
    line, *_ = next(itertools.islice(code.co_positions(), at // 2, None), (None,))
    return line or code.co_firstlineno


def _direct_caller(frame: FrameType) -> tuple[CodeType, int] | None:
    """What called ``frame``, if that is the user's or a library's code itself (not a module through PyTorch)."""
    back = frame.f_back
    if back is None or _kinds.setdefault(back.f_code, _kind(back.f_code)) not in (_LIBRARY, _USER):
        return None
    return back.f_code, back.f_lasti


def read_site(frame: FrameType | None) -> Site | None:
    """``call_site`` of a value read or a draw, with the caller of the function that reads: a helper is as many places as
    there are calls of it.
    """
    return call_site(frame, callers=True)


def call_site(frame: FrameType | None = None, *, callers: bool = False) -> Site | None:
    """The place that explains what is being called now: the innermost frame of the user's code.

    Where no frame is the user's (all the code is installed), the innermost outside PyTorch. None when there is none.
    """
    current = frame if frame is not None else sys._getframe(1)
    inner: tuple[CodeType, int] | None = None
    at, caller = -1, None
    kinds = _kinds
    while current is not None:
        code = current.f_code
        kind = kinds.get(code)
        if kind is None:
            kind = kinds[code] = _kind(code)
        if kind >= _LIBRARY and inner is None and kind != _BOUNDARY:
            at, caller = current.f_lasti, _direct_caller(current) if callers else None
        if kind == _USER:
            return Site(code, current.f_lineno or code.co_firstlineno, inner, at, caller)
        if kind == _BOUNDARY:
            break
        if kind == _LIBRARY and inner is None:
            inner = (code, current.f_lineno or code.co_firstlineno)
        current = current.f_back  # type: ignore[assignment]  # ends in None
    return Site(*inner, None, at, caller) if inner is not None else None


def draw_site(frame: FrameType | None) -> Site | None:
    """The place of a random draw, or None where no model draws: an import, or the standard library on its own behalf."""
    current = frame
    innermost = ""
    while current is not None:
        code = current.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return None
        kind = _kinds.setdefault(code, _kind(code))
        if kind == _BOUNDARY:
            break
        if kind in (_LIBRARY, _USER) and not innermost:
            innermost = os.path.realpath(code.co_filename)
            if innermost.startswith(_STDLIB) and not any(part in innermost for part in _INSTALLED):
                return None
        current = current.f_back
    return read_site(frame)


def decorated_site(frame: FrameType | None) -> Site | None:
    """The function that a context manager decorates (``@torch.no_grad()``), if it is being entered that way.

    ``torch/utils/_contextlib.py`` (``context_decorator``) runs the function inside ``decorate_context``, whose closure
    holds it as ``func``.
    """
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("decorate_context", "generator_context") and code.co_filename.endswith("_contextlib.py"):
            function = frame.f_locals.get("func")
            inner = getattr(function, "__code__", None)
            if inner is None or _kinds.setdefault(inner, _kind(inner)) == _INTERNAL:
                return None  # a method of PyTorch's: the place that calls it says more
            return Site(inner, inner.co_firstlineno)
        if _kinds.setdefault(code, _kind(code)) != _INTERNAL:
            return None
        frame = frame.f_back
    return None
