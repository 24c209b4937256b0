"""Reading checkpoint files: what PyTorch wrote is read as it is, what is broken or dangerous is one sentence."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ddplint.checkpoint.read import read
from ddplint.errors import DdplintError
from tests.checkpoint import files

DAMAGED = int(os.environ.get("DDPLINT_DAMAGED_CHECKPOINTS", "300"))
FORMATS = ("zip", "legacy", "training", "training_legacy", "safetensors", "sharded")


def said(path: Path, key: str | None = None) -> str:
    """The sentence that refuses ``path``."""
    with pytest.raises(DdplintError) as caught:
        read(path, key)
    text = str(caught.value)
    assert "\n" not in text
    assert path.name in text or "--key" in text
    return text


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_is_what_torch_loads(name: str, tmp_path: Path) -> None:
    found = read(files.of_every_format(tmp_path)[name])
    wanted = files.training()["model"] if name.startswith("training") else files.state()
    assert {t.key: (t.shape, t.dtype, t.bytes) for t in found.tensors} == {
        key: (tuple(t.shape), str(t.dtype).removeprefix("torch."), t.numel() * t.element_size()) for key, t in wanted.items()
    }


@pytest.mark.parametrize("name", ["zip", "legacy"])
def test_tied_tensors_have_one_storage(name: str, tmp_path: Path) -> None:
    storages = {t.key: t.storage for t in read(files.of_every_format(tmp_path)[name]).tensors}
    assert storages["encoder.weight"] == storages["encoder.tied"] != storages["encoder.half"]


@pytest.mark.parametrize("name", ["training", "training_legacy"])
def test_the_optimizers_state_is_found_with_its_bytes(name: str, tmp_path: Path) -> None:
    found = read(files.of_every_format(tmp_path)[name])
    (optimizer,) = found.optimizers
    assert (found.place, optimizer.place, optimizer.numbers) == (("model",), ("optimizer",), (0, 1, 2, 3, 4, 5))
    sizes = [4 * p.numel() for p in files.training()["model"].values() if p.is_floating_point()][:2]
    assert [optimizer.state_bytes[0], optimizer.state_bytes[1]] == [2 * size + 4 for size in sizes]  # and the step


def test_types_of_one_byte_and_parameters(tmp_path: Path) -> None:
    value = {
        "eight": torch.ones(3).to(torch.float8_e4m3fn),
        "unsigned": torch.ones(3, dtype=torch.uint16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "complex": torch.ones(2, dtype=torch.complex64),
        "view": torch.arange(12.0).reshape(3, 4).t()[1:],
    }
    torch.save(value, tmp_path / "a.pt")
    found = {t.key: (t.dtype, t.shape) for t in read(tmp_path / "a.pt").tensors}
    assert found == {key: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for key, t in value.items()}


def test_of_several_state_dicts_the_usual_one_is_taken_or_one_is_named(tmp_path: Path) -> None:
    torch.save({"state_dict": files.state(), "ema": files.state()}, tmp_path / "usual.pt")
    assert read(tmp_path / "usual.pt").place == ("state_dict",)
    assert read(tmp_path / "usual.pt", "ema").place == ("ema",)
    assert "no state dict at 'other'" in said(tmp_path / "usual.pt", "other")
    torch.save({"generator": files.state(), "critic": files.state()}, tmp_path / "two.pt")
    assert "there are 2 state dicts in it; name one with --key. There are: generator, critic" in said(tmp_path / "two.pt")


# ---------------------------------------------------------------------- what is refused


class Calls:
    """Pickles as a call of ``function`` with ``arguments``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


BYTES = {
    "posix.system": b"cposix\nsystem\n(S'touch gone'\ntR.",
    "builtins.eval": b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x031+1\x85R.",
    "builtins.getattr": b"cbuiltins\ngetattr\n(cbuiltins\nobject\nS'__subclasses__'\ntR.",
    "torch.load": b"ctorch\nload\n(S'/etc/passwd'\ntR.",
    "torch.storage._load_from_bytes": b"ctorch.storage\n_load_from_bytes\n(S'x'\ntR.",
    "importlib.import_module": b"cimportlib\nimport_module\n(S'os'\ntR.",
    "numpy.lib.npyio.load": b"cnumpy.lib.npyio\nload\n(S'x'\ntR.",
}


def zipped(path: Path, data: bytes) -> Path:
    """A file as torch.save makes it, with ``data`` for its pickle."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
    return path


@pytest.mark.parametrize("asked", BYTES)
def test_a_pickle_that_would_call_something_is_refused_by_its_name(asked: str, tmp_path: Path) -> None:
    text = said(zipped(tmp_path / "a.pt", BYTES[asked]))
    assert f"asks for {asked} when it is loaded, which is no tensor and may run anything" in text
    legacy = io.BytesIO()
    torch.save({}, legacy, _use_new_zipfile_serialization=False)
    head = legacy.getvalue()
    start = head.index(pickle.dumps(1001, 2)) + len(pickle.dumps(1001, 2))
    end = head.index(b".", start) + 1  # of the third pickle, the system's properties
    (tmp_path / "b.pt").write_bytes(head[:end] + BYTES[asked])
    assert "may run anything" in said(tmp_path / "b.pt")


def test_a_call_in_the_midst_of_a_checkpoint_is_refused_and_not_made(tmp_path: Path) -> None:
    victim = tmp_path / "gone"
    torch.save({"model": files.state(), "extra": [{"a": Calls(os.mkdir, str(victim))}]}, tmp_path / "a.pt")
    assert "asks for posix.mkdir" in said(tmp_path / "a.pt")
    assert not victim.exists()


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    torch.save(files.training(), tmp_path / "a.pt")
    code = "import sys; from pathlib import Path; from ddplint.checkpoint.read import read; read(Path('a.pt')); "
    code += "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False).returncode == 0


def test_other_files_are_refused_in_a_sentence(tmp_path: Path) -> None:
    cases: dict[str, tuple[bytes, str]] = {
        "empty.pt": (b"", "it is empty"),
        "text.pt": (b"hello", "it is none that is known"),
        "bare.pt": (pickle.dumps({"a": 1}), "it is a bare pickle"),
        "short.safetensors": (b"\x01", "its header is not whole"),
        "huge.safetensors": (b"\xff" * 8 + b"{}", "its header is not whole"),
        "list.safetensors": (b"\x02\0\0\0\0\0\0\0[]", "its header is no JSON object"),
        "a.index.json": (b'{"weight_map": {"a": "../x.safetensors"}}', "which is no file beside it"),
        "b.index.json": (b'{"weight_map": {}}', "its weight_map is empty"),
        "c.index.json": (b"[]", "it is no index of a sharded checkpoint"),
        "d.index.json": (b'{"weight_map": {"a": "missing.safetensors"}}', "can't be read"),
    }
    for name, (data, wanted) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DdplintError) as caught:
            read(tmp_path / name)
        assert wanted in str(caught.value)
        assert "\n" not in str(caught.value)
    assert "can't be read: No such file" in said(tmp_path / "missing.pt")
    assert "is a folder" in said(tmp_path)
    zipped(tmp_path / "no_state.pt", pickle.dumps({"a": 1}, 2))
    assert "it holds no state dict" in said(tmp_path / "no_state.pt")
    with zipfile.ZipFile(tmp_path / "other.pt", "w") as archive:
        archive.writestr("readme.txt", "a")
    assert "not one of torch.save" in said(tmp_path / "other.pt")


def test_a_torchscript_archive_is_no_checkpoint(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/code/__torch__.py", "")
    assert "it is a TorchScript archive" in said(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["zip", "legacy", "safetensors"])
def test_a_file_that_was_cut_off_is_refused(name: str, tmp_path: Path) -> None:
    path = files.of_every_format(tmp_path)[name]
    data = path.read_bytes()
    for length in (9, 40, len(data) // 2, len(data) - 30, len(data) - 1):
        path.write_bytes(data[:length])
        said(path)


def test_a_storage_smaller_than_its_tensor_is_refused(tmp_path: Path) -> None:
    torch.save(files.state(), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as source, zipfile.ZipFile(tmp_path / "b.pt", "w") as target:
        for entry in source.infolist():
            data = source.read(entry)
            target.writestr(entry.filename, data[:8] if entry.filename.endswith("data/0") else data)
    assert "the bytes of storage '0' are not all there" in said(tmp_path / "b.pt")


def test_pickles_that_would_take_for_ever_end(tmp_path: Path) -> None:
    lists = b"\x80\x04]\x94" + b"".join(b"](h" + bytes([n]) + b"h" + bytes([n]) + b"e\x94" for n in range(40)) + b"."
    said(zipped(tmp_path / "lists.pt", lists))
    tuples = b"\x80\x04)\x94" + b"".join(b"h" + bytes([n]) + b"h" + bytes([n]) + b"\x86\x94" for n in range(60))
    said(zipped(tmp_path / "key.pt", b"\x80\x04}" + tuples[2:] + b"Ns."))
    said(zipped(tmp_path / "nested.pt", b"\x80\x04" + b"(" * 200_000 + b"."))
    said(zipped(tmp_path / "memo.pt", b"\x80\x04Nr\xff\xff\xff\xff" + b"j\xfe\xff\xff\xff."))
    said(zipped(tmp_path / "text.pt", b"\x80\x04\x8d" + b"\xff" * 7 + b"\x00abc."))


def test_headers_that_lie_are_refused(tmp_path: Path) -> None:
    def written(entries: Any, data: bytes = b"\0" * 8) -> Path:
        text = json.dumps(entries).encode()
        (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        return tmp_path / "a.safetensors"

    good = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    assert read(written({"a": good})).tensors[0].bytes == 8
    for change, wanted in (
        ({"dtype": "F33"}, "can't be"),
        ({"shape": [3]}, "not as many as its shape says"),
        ({"shape": [-2]}, "can't be"),
        ({"shape": [True, 2]}, "can't be"),
        ({"data_offsets": [8, 16]}, "do not lie side by side"),
        ({"data_offsets": [0]}, "can't be"),
        ({"more": 1}, "is not one of dtype, shape and data_offsets"),
    ):
        assert wanted in said(written({"a": {**good, **change}}))
    assert "do not lie side by side" in said(written({"a": good, "b": good}))
    assert "it was cut off or added to" in said(written({"a": good}, b"\0" * 9))
    assert "__metadata__ is not text alone" in said(written({"__metadata__": {"a": 1}, "a": good}))


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    path = files.of_every_format(tmp_path)[name]
    data = path.read_bytes()
    before = sorted(p.name for p in tmp_path.rglob("*"))
    refused = []
    for seed in range(DAMAGED // len(FORMATS)):
        path.write_bytes(files.damaged(data, random.Random(seed)))
        try:
            found = read(path)
        except DdplintError as error:
            refused.append(str(error))
        else:
            assert all(t.bytes >= 0 for t in found.tensors)
    assert not [text for text in refused if "\n" in text]
    assert len(refused) > DAMAGED // len(FORMATS) // 3
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
