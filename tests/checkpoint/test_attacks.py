"""Files made to do harm: each is refused in one line, or read for what it is, in no time and little memory."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import struct
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from ddplint import strip_worker
from ddplint.analysis import Parameter, Usage
from ddplint.checkpoint import pickles, read, safetensors, table
from ddplint.checkpoint.model import Checkpoint
from ddplint.checks.wording import short
from ddplint.errors import DdplintError, printable
from ddplint.request import Strip
from tests.checkpoint import files
from tests.checkpoint.test_read import said, zipped

STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0" + b"0X\x03\0\0\0cpuK\x04tQ\x94"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n(h\0K\0K\x04\x85K\x01\x85tR"
MAPPING = b"ccollections\nOrderedDict\n\x94"


def holding(path: Path, data: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    """A file as torch.save makes it, of the pickle ``data`` and one storage of four floats."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/data/0", b"\0" * 16)
    return path


def text(value: str) -> bytes:
    """The opcode that puts ``value`` on the stack."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def named(path: Path, key: str) -> Path:
    """A state dict of one tensor, called ``key``."""
    return holding(path, b"\x80\x04" + STORAGE + b"}(" + text(key) + TENSOR + b"u.")


def test_a_name_that_is_no_text_is_not_hashed(tmp_path: Path) -> None:
    doubled = b")\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    for value in (b"]", doubled, b")" + b"\x85" * 300_000):  # not hashable, for ever, deeper than the C stack
        assert "a name that is no text" in said(zipped(tmp_path / "a.pt", b"\x80\x04" + value + b"\x8c\x01a\x93."))


def test_a_storage_whose_key_is_a_nest_of_tuples_is_not_spelled(tmp_path: Path) -> None:
    doubled = b")\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    reference = b"(X\x07\0\0\0storagectorch\nFloatStorage\nh\x3cX\x03\0\0\0cpuK\x04tQ."
    assert "a storage whose key is no text" in said(zipped(tmp_path / "a.pt", b"\x80\x04" + doubled + reference))


def test_calls_that_copy_count_as_what_they_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles.load, "__defaults__", (20_000,))
    big = b"\x80\x04}(" + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(1000)) + b"u\x94" + MAPPING
    assert "more of a pickle than any" in said(zipped(tmp_path / "a.pt", big + b"h\x01h\0\x85R0" * 100 + b"h\0."))
    inside = b"ctorch._tensor\n_rebuild_from_type_v2\n(h\x01Nh\0\x85NtR0" * 3
    assert "made of no tensor" in said(zipped(tmp_path / "b.pt", big + inside + b"h\0."))
    many = b"\x80\x04(" + b"N" * 1000 + b"t\x94ctorch\ndevice\nh\0R."
    assert "a call of what is no function" in said(zipped(tmp_path / "c.pt", many))


def test_a_long_pickle_ends_at_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles.load, "__defaults__", (20_000,))
    assert "more of a pickle than any" in said(zipped(tmp_path / "a.pt", b"\x80\x04" + b"]" * 30_000 + b"."))


def test_numbers_and_dimensions_that_no_tensor_has(tmp_path: Path) -> None:
    huge = b"\x8b" + struct.pack("<i", 5000) + b"\x7f" * 5000
    assert "a number that no checkpoint has" in said(zipped(tmp_path / "a.pt", b"\x80\x04}" + huge + b"Ns."))
    shape = b"(" + b"K\x02" * 65 + b"t" + b"(" + b"K\0" * 65 + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(h\0K\0" + shape + b"tR"
    data = b"\x80\x04" + STORAGE + b"}(" + text("a") + tensor + b"u."
    assert "sizes" in said(holding(tmp_path / "b.pt", data))
    entry = {"a": {"dtype": "F32", "shape": [2**61] * 65 + [0], "data_offsets": [0, 0]}}
    assert "that can't be" in said(header(tmp_path / "c.safetensors", json.dumps(entry).encode()))


def test_keys_of_one_hash_do_not_meet(tmp_path: Path) -> None:
    def number(n: int) -> bytes:
        data = (n * (2**61 - 1)).to_bytes(16, "little")
        return b"\x8a" + bytes([len(data)]) + data + b"N"

    pickle = b"\x80\x04}(" + b"".join(number(n) for n in range(1, 2000)) + b"u."
    loaded = pickles.load(io.BytesIO(pickle))
    assert len(loaded.value) == 1999
    assert not any(isinstance(key, int) for key in loaded.value)


def test_parts_that_are_there_a_thousand_times_are_looked_at_once(tmp_path: Path) -> None:
    empty = b"}(" + text("state") + b"}" + text("param_groups") + b"]u\x94"
    many = b"\x80\x04" + STORAGE + empty + b"](" + b"h\x01" * 20_000 + b"e\x94}(" + text("o") + b"h\x02"
    data = many + text("model") + b"}(" + text("w") + TENSOR + b"uu."
    assert len(read.read(holding(tmp_path / "a.pt", data)).optimizers) == 20_000
    twice = b"}(" + text("state") + b"}" + text("param_groups") + b"](}(" + text("params") + b"](K\0K\0eueu."
    assert "in its optimizer twice" in said(zipped(tmp_path / "b.pt", b"\x80\x04" + twice))


def test_a_storage_is_counted_wherever_it_is(tmp_path: Path) -> None:
    deep: Any = torch.ones(7)
    for name in "abcdefgh":
        deep = {name: deep}
    value = {"model": files.state(), "deep": deep, "args": argparse.Namespace(held=torch.ones(9))}
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    assert len(read.read(tmp_path / "a.pt").tensors) == len(files.state())


def rewritten(path: Path, first: tuple[str, bytes] | None, last: tuple[str, bytes] | None, compression: int) -> Path:
    """``files.state()`` in a zip archive with one more entry."""
    saved = io.BytesIO()
    torch.save(files.state(), saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(path, "w", compression) as target:
        if first:
            target.writestr(*first)
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
        if last:
            target.writestr(*last)
    return path


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_two_readers_read_in_two_ways(tmp_path: Path) -> None:
    evil = b"cposix\nsystem\n(S'touch gone'\ntR."
    folder = "archive"
    for name in (f"{folder}/data.pkl", f"{folder}/DATA.PKL"):
        path = rewritten(tmp_path / "a.pt", None, (name, evil), zipfile.ZIP_STORED)
        assert "two entries of its zip archive have one name" in said(path)
    path = rewritten(tmp_path / "b.pt", ("other/data.pkl", evil), None, zipfile.ZIP_STORED)
    assert "with one data.pkl" in said(path)


def test_compressed_archives_are_refused(tmp_path: Path) -> None:
    for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert "compressed or encrypted" in said(rewritten(tmp_path / "a.pt", None, None, method))


def test_an_archive_that_lists_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "LARGEST_LIST", 500)
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        for number in range(20):
            archive.writestr(f"archive/data/{number}", b"")
    assert "larger than any checkpoint's" in said(tmp_path / "a.pt")


def test_a_legacy_file_that_says_it_is_larger_than_can_be_sought(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(4)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.pt").read_bytes()
    for count in (b"\xff" * 8, b"\xff" * 7 + b"\x0f"):
        (tmp_path / "a.pt").write_bytes(data[:-24] + count + data[-16:])
        assert "it was cut off" in said(tmp_path / "a.pt")


def header(path: Path, data: bytes) -> Path:
    """A safetensors file with this header and four bytes."""
    path.write_bytes(len(data).to_bytes(8, "little") + data + b"\0" * 4)
    return path


def test_headers_that_python_reads_and_the_format_does_not_allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rest = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    path = tmp_path / "a.safetensors"
    assert "can't be" in said(header(path, b'{"a":{"dtype":["F32"],"shape":[1],"data_offsets":[0,4]}}'))
    assert "no JSON object" in said(header(path, f'{{"a":{rest}}}'.encode("utf-16-le")))
    assert "no Unicode text" in said(header(path, f'{{"\\ud800":{rest}}}'.encode()))
    assert len(said(header(path, ('{"' + "k" * 100_000 + '":{}}').encode()))) < 500
    monkeypatch.setattr(safetensors, "LONGEST", 100)
    assert "longer than any checkpoint's" in said(header(path, b'{"a":[' + b"[]," * 100 + b"0]}"))


def test_an_index_names_files_of_weights_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a.index.json"
    for name, wanted in (
        ("a.index.json", "is an index itself"),
        ("x\0y", "no file beside it"),
        ("x\ud800y", "no file beside it"),
        ("x\x1b[31m", "no file beside it"),
    ):
        path.write_text(json.dumps({"weight_map": {"w": name}}))
        assert wanted in said(path)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors", "a.index.json"])
def test_what_is_no_regular_file_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    assert "is no regular file; copy it to one" in said(tmp_path / name)
    (tmp_path / "zero").symlink_to("/dev/zero")
    assert "is no regular file" in said(tmp_path / "zero")


def test_no_name_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    key = "a\x1b]0;t\x07\x1b[2J\x9b\u202e\ud800"
    (tensor,) = read.read(named(tmp_path / "a.pt", key)).tensors
    assert tensor.key == key
    assert printable(key) == r"a\x1b]0;t\x07\x1b[2J\x9b\u202e\ud800"
    assert str(DdplintError(key, where="x\x1b", fix="ü\udcff")) == rf"x\x1b: {printable(key)}; ü\udcff"


def test_prefixes_of_no_key_or_of_a_million(tmp_path: Path) -> None:
    assert table._prefix(Checkpoint(tmp_path, "safetensors", (), (), (), ()), ()) == ""
    found = read.read(named(tmp_path / "a.pt", "module." * 300_000 + "a"))
    assert table._prefix(found, ()) == "module." * 4


def test_a_name_of_a_million_parts_is_cut_in_a_report() -> None:
    assert short(["module." * 300_000 + "a"]) == f"`{('module.' * 43)[:300]}…`"


def parameters() -> tuple[Parameter, ...]:
    """Three of one model; nothing uses the second."""
    shapes = {"a.weight": (4, 4), "dead.weight": (3, 4), "a.bias": (4,)}
    made = []
    for name, shape in shapes.items():
        usage: Usage = "never" if name.startswith("dead") else "always"
        numel = torch.Size(shape).numel()
        fields = {"aliases": (), "trainable": True, "usage": usage, "shape": shape, "dtype": "float32"}
        made.append(SimpleNamespace(name=name, numel=numel, bytes=4 * numel, **fields))
    return cast(tuple[Parameter, ...], tuple(made))


@pytest.mark.parametrize(
    ("way", "wanted"),
    [
        ("plain", ["a.weight", "dead.weight", "a.bias"]),
        ("frozen", ["a.weight", "a.bias"]),
        ("named groups", ["a.weight", "a.bias", "dead.weight"]),
        ("named, wrapped", ["a.weight", "dead.weight", "a.bias"]),
        ("groups", None),
        ("reversed", None),
    ],
)
def test_which_state_is_which_parameters_is_known_or_open(way: str, wanted: list[str] | None, tmp_path: Path) -> None:
    model = {p.name: torch.nn.Parameter(torch.ones(p.shape)) for p in parameters()}
    weight, dead, bias = model.items()
    given: Any = {
        "plain": list(model.values()),
        "frozen": [weight[1], bias[1]],
        "named groups": [{"params": [weight, bias]}, {"params": [dead], "lr": 1.0}],
        "named, wrapped": [(f"module._orig_mod.{name}", p) for name, p in model.items()],
        "groups": [{"params": [weight[1], bias[1]]}, {"params": [dead[1]], "lr": 1.0}],
        "reversed": list(model.values())[::-1],
    }[way]
    optimizer = torch.optim.AdamW(given)
    for p in model.values():
        p.grad = torch.ones_like(p)
    optimizer.step()
    torch.save({"model": model, "optimizer": optimizer.state_dict()}, tmp_path / "a.pt")
    (found,) = read.read(tmp_path / "a.pt").optimizers
    order = table.in_order(found, parameters())
    assert (None if order is None else [p.name for p in order]) == wanted


def test_a_random_state_beside_the_model_does_not_hide_it(tmp_path: Path) -> None:
    torch.save({"model": files.state(), "rng": torch.get_rng_state()}, tmp_path / "a.pt")
    assert read.read(tmp_path / "a.pt").place == ("model",)


def asked(path: Path, keys: tuple[str, ...], draft: Path) -> Strip:
    """The state dict at the top of ``path`` without ``keys``."""
    return Strip(str(path), str(draft), "zip", (), keys, keys, ())


def test_a_state_dict_keeps_its_type_when_keys_go(tmp_path: Path) -> None:
    torch.save(Counter(files.state()), tmp_path / "a.pt")
    strip_worker._without_saved(asked(tmp_path / "a.pt", ("steps",), tmp_path / "b.pt"))
    kept = torch.load(tmp_path / "b.pt", weights_only=True)
    assert type(kept) is Counter
    assert list(kept) == [key for key in files.state() if key != "steps"]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    for error, wanted in (
        (OSError(28, "No space left on device"), f"{tmp_path}: can't be written to: No space left on device; make room"),
        (RuntimeError("unexpected\npos 64 vs 0"), "can't be written to: unexpected pos 64 vs 0; make room"),
        (RecursionError(), "is nested too deeply for torch.save to write it again"),
    ):
        with (
            pytest.raises(DdplintError, match=re.escape(wanted)),
            strip_worker._writing(asked(tmp_path / "a", (), tmp_path / "b")),
        ):
            raise error


def test_an_optimizers_file_is_called_one(tmp_path: Path) -> None:
    torch.save(files.training()["optimizer"], tmp_path / "optimizer.pt")
    assert "it holds an optimizer's state and no model's" in said(tmp_path / "optimizer.pt")
