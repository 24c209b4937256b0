"""Reading TOML: where each key is, what is said about a file that can't be read, and writing values back."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddplint.errors import DdplintError
from ddplint.fields import (
    Anything,
    Either,
    Integer,
    Number,
    Text,
    did_you_mean,
    faults,
    key_lines,
    read_toml,
    shown,
    spelled,
    toml,
)

STEADY = settings(derandomize=True, deadline=None)


def said(path: Path) -> str:
    with pytest.raises(DdplintError) as raised:
        read_toml(path)
    return str(raised.value)


def test_lines_of_keys_and_headers() -> None:
    text = '''\
a = 1
"b c".d = 2  # [not.a.header]
text = """
[[unused]]
"quotes\\"""" # two more quotes close it
other = \'\'\'
x = 1\'\'\'
list = [
  [["unused"]], # ] in a comment
  "]", \']\', { e = "}" },
]
[table]
f = 1
["table".'sub']
g = 1
[[unused]]
h = 1
[[ unused ]]
[unused.inner]
i = 1
[[unused.deep]]
j = 1
'''
    assert tomllib.loads(text)["text"] == '[[unused]]\n"quotes"'
    lines = {spelled(place): line for place, line in key_lines(text).items()}
    assert lines == {
        "a": 1,
        '"b c"': 2,
        '"b c".d': 2,
        "text": 3,
        "other": 6,
        "list": 8,
        "table": 12,
        "table.f": 13,
        "table.sub": 14,
        "table.sub.g": 15,
        "unused": 16,
        "unused[0]": 16,
        "unused[0].h": 17,
        "unused[1]": 18,
        "unused[1].inner": 19,
        "unused[1].inner.i": 20,
        "unused[1].deep": 21,
        "unused[1].deep[0]": 21,
        "unused[1].deep[0].j": 22,
    }
    assert key_lines(text.replace("\n", "\r\n")) == key_lines(text)


def test_a_value_inside_an_inline_table_is_on_its_keys_line(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("\n\na = { b = [1, { c = 2 }] }\n")
    document = read_toml(path)
    assert document.line(("a", "b", 1, "c")) == 3
    assert document.line(("z",)) == 0


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"a = 1\nb = = 2\n", ":2", "broken TOML: Invalid value, column 5"),
        (b"a = 1\na = 2\n", ":2", "broken TOML: Cannot overwrite a value, column 6"),
        (b"a = [1,\n\n", ":1", "broken TOML: Invalid value, at the end of the file"),
        (b"a = 1\n\xff\n", ":2", "not UTF-8: byte 0xff; save the file as UTF-8"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "", "broken TOML: nested too deep"),
    ],
)
def test_what_is_said_about_a_broken_file(tmp_path: Path, content: bytes, where: str, what: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    assert said(path) == f"{path}{where}: {what}"


def test_an_integer_that_python_does_not_convert(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"a = {'9' * 5000}\n")
    assert said(path).startswith(f"{path}: broken TOML: Exceeds the limit")


def test_what_is_said_about_no_file(tmp_path: Path) -> None:
    assert said(tmp_path) == f"{tmp_path}: is a folder; expected a TOML file"
    assert said(tmp_path / "none.toml") == f"{tmp_path / 'none.toml'}: no such file"


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbfa = 1\n")
    assert read_toml(path).data == {"a": 1}


def test_paths_are_shown_relative_to_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert shown(inside / "a" / "b.toml") == "a/b.toml"
    assert shown("a.toml") == "a.toml"
    assert shown(tmp_path / "b.toml") == str(tmp_path / "b.toml")


def test_near_misses() -> None:
    assert did_you_mean("resson", ["params", "reason"]) == ', did you mean "reason"?'
    assert did_you_mean("xyz", ["params", "reason"]) == ""


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        (Integer(), True, "expected an integer, got true"),
        (Integer("a count", minimum=1), 0, "expected a count, got the integer 0"),
        (Integer(minimum=1), 10**30, ""),
        (Integer(minimum=1), -(10**30), "expected an integer, got an integer too large"),
        (Number(positive=True), math.nan, "expected a number, got the float nan"),
        (Number(positive=True), math.inf, "expected a number, got the float inf"),
        (Number(positive=True), 0, "expected a number, got the integer 0"),
        (Number(positive=True), 0.5, ""),
        (Number(), -1, ""),
        (Text(choices=("on", "off")), "of", 'expected one of "on", "off", got "of", did you mean "off"?'),
        (Text(), "x" * 100, ""),
        (Integer(), "x" * 100, f'expected an integer, got the string "{"x" * 77}..."'),
        (Either((Integer(), Text()), "a number or a word"), [], "expected a number or a word, got a list"),
        (Anything(), {"a": [1, {"b": "c"}]}, ""),
    ],
)
def test_one_value(kind: Any, value: Any, sentence: str) -> None:
    found = list(faults(kind, value))
    assert [fault.sentence for fault in found] == ([sentence] if sentence else [])


VALUES = st.recursive(
    st.none().map(lambda _: True)
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=10,
)


@STEADY
@given(VALUES)
def test_values_written_as_toml_are_read_back(value: Any) -> None:
    assert tomllib.loads(f"value = {toml(value)}")["value"] == value


@pytest.mark.parametrize("value", [None, object(), {1: 2}, [None], "\ud800"])
def test_what_toml_cannot_say(value: Any) -> None:
    with pytest.raises(DdplintError):
        toml(value)
