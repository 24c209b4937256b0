"""Pickles read as data: nothing in one is ever called, imported or built.

A pickle is a program for a small stack machine. Here the machine's calls make plain values that say what would have been
called; the few that PyTorch's files consist of are understood, and any other is refused by its name. The opcodes are split
by ``pickletools``, which runs nothing.
"""

from __future__ import annotations

import gc
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, cast

from ddplint.checkpoint.model import DIMENSIONS, ITEM_SIZES
from ddplint.errors import DdplintError

OPCODES = 6_000_000  # of one pickle, and items that its calls copy; a tensor takes some thirty, and a million a second
_ARGUMENTS = 64  # of one call
_BITS = 4096  # of an integer; a generator's state has 128


class Broken(Exception):
    """The bytes are no whole pickle, or not one that a checkpoint is."""


@dataclass(frozen=True, slots=True)
class Global:
    """What a pickle asks for by name."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """A storage in the file: its key there, the type of its elements and their number."""

    key: str
    dtype: str
    numel: int


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A tensor over a storage."""

    storage: Storage
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The size of its elements."""
        size = ITEM_SIZES[self.dtype]
        for length in self.shape:
            size *= length
        return size


@dataclass(frozen=True, slots=True, eq=False)
class Opaque:
    """A value that is no tensor and holds none that is looked at."""

    name: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pickle's value, and every storage that it refers to, wherever in the value that is."""

    value: Any
    storages: tuple[Storage, ...]


class Bounded:
    """A file of which ``left`` more bytes are read, and no byte after. Raises Broken where more is asked for and there."""

    def __init__(self, file: IO[bytes], left: int) -> None:
        self.file, self.left = file, left

    def read(self, size: int = -1) -> bytes:
        """As a file's."""
        return self._counted(self.file.read(min(size, self.left + 1) if size >= 0 else self.left + 1))

    def readline(self) -> bytes:
        """As a file's."""
        return self._counted(self.file.readline(self.left + 1))

    def seekable(self) -> bool:
        """As a file's."""
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        """As a file's."""
        return self.file.seek(position, whence)

    def tell(self) -> int:
        """As a file's."""
        return self.file.tell()

    def _counted(self, data: bytes) -> bytes:
        if len(data) > self.left:
            raise Broken("what is to be read of it besides the weights is larger than any checkpoint's")
        self.left -= len(data)
        return data


_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": "uint8",
}


def _tensor(storage: Any, offset: Any, shape: Any, stride: Any, dtype: str | None = None) -> View:
    if not isinstance(storage, Storage):
        raise Broken("a tensor without a storage")
    dtype = dtype or storage.dtype
    sizes = _whole(shape)
    steps = _whole(stride)
    if len(steps) != len(sizes) or not isinstance(offset, int) or offset < 0:
        raise Broken("a tensor whose sizes and strides do not fit")
    last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    size = ITEM_SIZES[dtype]
    if 0 not in sizes and (last + 1) * size > storage.numel * ITEM_SIZES[storage.dtype]:
        raise Broken("a tensor that is larger than its storage")
    return View(storage, dtype, sizes)


def _whole(sizes: Any) -> tuple[int, ...]:
    if not isinstance(sizes, tuple) or len(sizes) > DIMENSIONS:
        raise Broken("a tensor without sizes, or with more than there can be")
    if not all(type(size) is int and 0 <= size < 2**62 for size in sizes):
        raise Broken("a tensor whose sizes are no whole numbers")
    return sizes


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> View:
    return _tensor(storage, offset, shape, stride)


def _rebuild_tensor_v3(storage: Any, offset: Any, shape: Any, stride: Any, *rest: Any) -> View:
    dtype = rest[2] if len(rest) > 2 else None
    if not isinstance(dtype, Opaque) or dtype.name not in ITEM_SIZES:
        raise Broken("a tensor of an unknown type")
    return _tensor(storage, offset, shape, stride, dtype.name)


def _first(value: Any, *rest: Any) -> Any:
    return value


def _from_type(function: Any, kind: Any, arguments: Any, *rest: Any) -> Any:
    if not isinstance(function, Global) or function.module != "torch._utils":
        raise Broken("a tensor's own type that is made of no tensor")
    return _called(function, arguments)


def _mapping(*arguments: Any) -> dict[Any, Any]:
    pairs = arguments[-1] if arguments and isinstance(arguments[-1], (list, dict)) else []
    if isinstance(pairs, dict):
        return dict(pairs)
    found: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise Broken("a mapping of what are no pairs")
        _put(found, pair[0], pair[1])
    return found


def _opaque(name: str) -> Callable[..., Any]:
    return lambda *arguments: Opaque(name)


# What PyTorch's own files call, and what training scripts put beside the weights and holds nothing that runs. Nothing of
# this is called here either: the values say what is to be made of the arguments.
_CALLS: dict[tuple[str, str], Callable[..., Any]] = {
    ("torch._utils", "_rebuild_tensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_tensor_v3,
    ("torch._utils", "_rebuild_qtensor"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _first,
    ("torch._utils", "_rebuild_parameter_with_state"): _first,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch._utils", "_rebuild_sparse_tensor"): _opaque("a sparse tensor"),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _opaque("a meta tensor"),
    ("torch", "Size"): _first,
    ("torch", "device"): _opaque("device"),
    ("torch.serialization", "_get_layout"): _opaque("layout"),
    ("torch._C", "Generator"): _opaque("generator"),
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): _mapping,
    ("collections", "Counter"): _mapping,
    ("collections", "deque"): _opaque("deque"),
    ("_codecs", "encode"): _opaque("bytes"),
    ("argparse", "Namespace"): _opaque("Namespace"),
    ("types", "SimpleNamespace"): _opaque("Namespace"),
    ("copyreg", "_reconstructor"): lambda kind, *rest: _called(kind, ()),
    **{
        (module, name): _opaque(name)
        for module in ("builtins", "__builtin__")
        for name in ("set", "frozenset", "bytearray", "complex", "range", "slice")
    },
    ("builtins", "dict"): _mapping,
    ("builtins", "list"): _opaque("list"),
    **{("datetime", name): _opaque(name) for name in ("datetime", "date", "time", "timedelta", "timezone")},
    **{("pathlib", name): _opaque("path") for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")},
    **{("pathlib._local", name): _opaque("path") for name in ("Path", "PosixPath", "PurePosixPath", "WindowsPath")},
    **{
        (f"numpy.{core}.multiarray", name): _opaque(name)
        for core in ("core", "_core")
        for name in ("scalar", "_reconstruct")
    },
    **{
        ("numpy.random._pickle", name): _opaque(name)
        for name in ("__randomstate_ctor", "__generator_ctor", "__bit_generator_ctor")
    },
    ("numpy", "dtype"): _opaque("dtype"),
    ("numpy.dtypes", "Float64DType"): _opaque("dtype"),
}
# Types that stand as arguments and are not called.
_NAMES = {
    *(("torch", name) for name in _STORAGES),
    ("torch.storage", "UntypedStorage"),
    *(("torch", name) for name in ITEM_SIZES),
    *(("torch", name) for name in ("strided", "sparse_coo", "preserve_format", "contiguous_format", "per_tensor_affine")),
    ("torch", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn.parameter", "Buffer"),
    ("numpy", "ndarray"),
    ("numpy.random._mt19937", "MT19937"),
    ("numpy.random._pcg64", "PCG64"),
    *(
        (module, name)
        for module in ("builtins", "__builtin__")
        for name in ("object", "int", "float", "str", "bool", "tuple")
    ),
}


def _resolved(module: Any, name: Any) -> Any:
    """A name that the pickle asks for, as what it stands for here. Raises DdplintError for any that is not known."""
    if not isinstance(module, str) or not isinstance(name, str):  # the hash or the text of others can take for ever
        raise Broken("a name that is no text")
    if (module, name) not in _CALLS and (module, name) not in _NAMES:
        raise DdplintError(
            f"asks for {module[:80]}.{name[:80]} when it is loaded, which is no tensor and may run anything",
            fix="save the state dict alone, best as safetensors; do not load a file that you do not trust",
        )
    if module == "torch" and name in ITEM_SIZES:
        return Opaque(name)
    return Global(module, name)


def _called(function: Any, arguments: Any) -> Any:
    if not isinstance(function, Global) or not isinstance(arguments, tuple) or len(arguments) > _ARGUMENTS:
        raise Broken("a call of what is no function")
    call = _CALLS.get((function.module, function.name))
    if call is None:
        return Opaque(function.name)
    try:
        return call(*arguments)
    except TypeError:
        raise Broken(f"{function} with other arguments than it takes") from None


def _put(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    if isinstance(key, (list, dict)):
        raise Broken("a key that can't be one")
    # Only text and small numbers are ever looked up. The hashes of others can take for ever, or be made to be all the same.
    plain = isinstance(key, str) or (type(key) is int and abs(key) < 2**60)
    mapping[key if plain else Opaque("key")] = value


def load(file: IO[bytes] | Bounded, most: int = OPCODES) -> Loaded:
    """The value of the pickle that ``file`` goes on with, as plain data; ``file`` stands behind it afterwards.

    Raises Broken where it is none, or one that asks for more than ``most`` steps, and DdplintError where loading it would
    call what no checkpoint needs.
    """
    machine = _Machine(most)
    collecting = gc.isenabled()
    gc.disable()  # millions of values, and none of them in a ring that is let go
    try:
        for opcode, argument, _ in pickletools.genops(cast(IO[bytes], file)):
            machine.spend(1)
            if opcode.name == "STOP":
                return Loaded(machine.pop(), tuple(machine.storages))
            machine.step(opcode.name, argument)
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError, RecursionError) as error:
        raise Broken(str(error).split("\n", 1)[0][:200] or type(error).__name__) from None
    finally:
        if collecting:
            gc.enable()
    raise Broken("it ends in the middle")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "UNICODE", "SHORT_BINUNICODE"),
    *("BINUNICODE", "BINUNICODE8", "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_MARK = object()


class _Machine:
    """The stack machine, of plain values."""

    def __init__(self, left: int) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.storages: list[Storage] = []
        self.left = left

    def spend(self, steps: int) -> None:
        """Count ``steps``. Raises Broken where they are more than are left."""
        self.left -= steps
        if self.left < 0:
            raise Broken("more of a pickle than any checkpoint has")

    def call(self, function: Any, arguments: Any) -> Any:
        """What the call stands for; what it copies counts as steps."""
        if isinstance(arguments, tuple):
            self.spend(sum(len(argument) for argument in arguments[:_ARGUMENTS] if isinstance(argument, (list, dict))))
        return _called(function, arguments)

    def pop(self) -> Any:
        """The top of the stack."""
        if not self.stack or self.stack[-1] is _MARK:
            raise Broken("a value is missing")
        return self.stack.pop()

    def top(self) -> Any:
        """The same, left there."""
        value = self.pop()
        self.stack.append(value)
        return value

    def marked(self) -> list[Any]:
        """All above the last mark."""
        found: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if value is _MARK:
                return found[::-1]
            found.append(value)
        raise Broken("a mark is missing")

    def step(self, name: str, argument: Any) -> None:
        """One opcode."""
        push = self.stack.append
        if name in _VALUES:
            if type(argument) is int and argument.bit_length() > _BITS:
                raise Broken("a number that no checkpoint has")
            push(argument)
        elif name in _CONSTANTS:
            push(_CONSTANTS[name])
        elif name in _EMPTY:
            push(_EMPTY[name]())
        elif name in ("PROTO", "FRAME"):
            return
        elif name == "MARK":
            push(_MARK)
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[argument] = self.top()
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = self.top()
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            push(self.memo[argument])
        elif name == "POP":
            self.stack.pop()
        elif name == "POP_MARK":
            self.marked()
        elif name == "DUP":
            push(self.top())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            push(tuple([self.pop() for _ in range(int(name[-1]))][::-1]))
        elif name == "TUPLE":
            push(tuple(self.marked()))
        elif name == "LIST":
            push(self.marked())
        elif name == "DICT":
            push(self._filled({}, self.marked()))
        elif name in ("SETITEM", "SETITEMS"):
            items = self.marked() if name == "SETITEMS" else [self.pop(), self.pop()][::-1]
            self._filled(self.top(), items)
        elif name in ("APPEND", "APPENDS"):
            items = self.marked() if name == "APPENDS" else [self.pop()]
            target = self.top()
            if isinstance(target, list):
                target.extend(items)
            elif not isinstance(target, Opaque):
                raise Broken("items of what is no list")
        elif name in ("EMPTY_SET", "FROZENSET", "BYTEARRAY8"):
            if name == "FROZENSET":
                self.marked()
            push(Opaque("set"))
        elif name == "ADDITEMS":
            self.marked()
        elif name == "GLOBAL":
            push(_resolved(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            asked, module = self.pop(), self.pop()
            push(_resolved(module, asked))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, function = self.pop(), self.pop()
            push(self.call(function, arguments))
        elif name == "NEWOBJ_EX":
            _, arguments, function = self.pop(), self.pop(), self.pop()
            push(self.call(function, arguments))
        elif name == "BUILD":
            self.pop()  # an object's attributes: of no state dict
        elif name == "BINPERSID":
            self.storages.append(_storage(self.pop()))
            push(self.storages[-1])
        else:
            raise Broken(f"the opcode {name}")

    @staticmethod
    def _filled(mapping: Any, items: list[Any]) -> Any:
        if isinstance(mapping, Opaque):
            return mapping
        if not isinstance(mapping, dict) or len(items) % 2:
            raise Broken("items of what is no mapping")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _put(mapping, key, value)
        return mapping


def _storage(reference: Any) -> Storage:
    """A persistent id of torch.save: ("storage", type, key, location, number of elements[, view])."""
    if not isinstance(reference, tuple) or len(reference) < 5 or reference[0] != "storage":
        raise Broken("a reference to what is no storage")
    _, kind, key, _, numel = reference[:5]
    if not isinstance(kind, Global) or kind.name not in _STORAGES or type(numel) is not int or not 0 <= numel < 2**62:
        raise Broken("a storage of an unknown type")
    if type(key) not in (str, int):
        raise Broken("a storage whose key is no text")
    return Storage(str(key), _STORAGES[kind.name], numel)
