"""Bytes, text and offsets; edits that leave every other byte alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddplint.callsites import python
from ddplint.callsites.model import Edit
from ddplint.callsites.source import Source, python_source, read, utf8_source
from ddplint.errors import DdplintError

PATH = Path("train.py")
CALL = "import torch\nnet = torch.nn.parallel.DistributedDataParallel(net, find_unused_parameters={})  # {}\n"


def fixed(data: bytes) -> bytes:
    source = python_source(PATH, data)
    edits = [wrap.find_unused_parameters.edit for wrap in python.wraps(source, python.Modules())]
    return source.edited(tuple(edit for edit in edits if edit is not None))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("head", "encoding"),
    [
        ("", "utf-8"),
        ("\ufeff", "utf-8"),
        ("# -*- coding: latin-1 -*-\n", "latin-1"),
        ("# vim: set fileencoding=cp1252 :\n", "cp1252"),
        ("#!/usr/bin/env python\n# coding: euc-jp\n", "euc-jp"),
    ],
)
def test_newlines_marks_and_encodings_stay(newline: str, head: str, encoding: str) -> None:
    comment = "日本" if encoding == "euc-jp" else "é¾"[: 1 if encoding != "utf-8" else 2]
    text = f"{head}x = '{comment}'; {CALL}".replace("\n", newline)
    before, after = (text.format(flag, comment).encode(encoding) for flag in ("True", "False"))
    assert fixed(before) == after
    assert fixed(after) == after


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=20), max_size=6),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
    st.booleans(),
)
def test_every_other_byte_is_left_alone(comments: list[str], newline: str, mark: bool, last: bool) -> None:
    lines = ["import torch", *(f"# {comment}" for comment in comments)]
    lines += [f"'''{comment.replace(chr(39), '').replace(chr(92), '')}'''; x = 1" for comment in comments]
    lines.append("é = torch.nn.parallel.DistributedDataParallel(é, find_unused_parameters={})" + newline * last)
    text = newline.join(lines).replace("{", "{{").replace("}", "}}").replace("={{}}", "={}")
    before, after = (("\ufeff" * mark + text.format(flag)).encode() for flag in ("True", "False"))
    assert fixed(before) == after
    assert fixed(after) == after


def test_bytes_that_are_not_as_expected_are_refused() -> None:
    source = Source(PATH, b"x = True\n", "x = True\n")
    assert source.edited((Edit(4, 8, "True", "False"),)) == b"x = False\n"
    with pytest.raises(DdplintError, match=r"train\.py: line 1 can't be edited"):
        source.edited((Edit(3, 7, "True", "False"),))
    with pytest.raises(DdplintError, match="can't be edited"):
        source.edited((Edit(4, 8, "True", "False"), Edit(4, 8, "True", "None")))


def test_places_are_counted_in_characters() -> None:
    source = utf8_source(PATH, "é\r\nab\rc".encode())
    assert [source.place(offset) for offset in (0, 3, 4, 6)] == [(1, 1), (2, 1), (2, 2), (3, 1)]
    assert source.offset(1, 2) == 1
    assert [source.line(number) for number in (1, 2, 3)] == ["é", "ab", "c"]


@pytest.mark.parametrize("data", [b"# coding: nonsense\n", b"x = '\xff'\n", b"# coding: utf-8\n\xff\n"])
def test_what_is_not_in_its_encoding_is_one_line(data: bytes) -> None:
    with pytest.raises(DdplintError, match=r"train\.py: can't be decoded"):
        python_source(PATH, data)


def test_what_is_not_utf8_names_the_line() -> None:
    with pytest.raises(DdplintError, match=r"train\.py:2: not UTF-8: byte 0xff"):
        utf8_source(PATH, b"a\n\xff")


def test_what_cant_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DdplintError, match="can't be read: No such file"):
        read(tmp_path / "gone.py")
