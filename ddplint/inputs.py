"""What a run looks at: recorded while it runs, in the command's own process and in its workers.

Python's audit events tell of files that are opened, folders that are listed, extension modules, and what leaves the process
(other processes, the network). They don't tell of ``os.stat``, of environment variables and of searches for modules, so
these are watched by wrappers and by a finder that finds nothing. What is out of sight (files that native code opens, the
clock, the hardware) is listed in ``docs/cache.md``.

Everything is fingerprinted when it is seen first, and again at the end (``Recorder.changed``): what differs then was
changed under the run, and an answer made of both belongs to neither.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, ItemsView, Iterator, Sequence, ValuesView
from types import FrameType
from typing import Any

from ddplint import fingerprints

SETTLED = 2_000_000_000  # nanoseconds: some file systems count in seconds, and can't tell a later change from an earlier one

Seen = dict[str, Any]  # JSON-ready: what a recorder has, for another one

_OF_THE_MACHINE, _OF_ANY = ("/proc/", "/sys/", "/dev/"), "/dev/shm/"
_LEAVES = {
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.exec": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "socket.connect": "uses the network",
    "socket.sendto": "uses the network",
    "socket.getaddrinfo": "uses the network",
    "socket.gethostbyname": "uses the network",
}
# What these ask other programs for is the system's own: its name, its libraries.
_ASK_THE_SYSTEM = ("ctypes/util.py", "platform.py", "uuid.py")
# Who calls os.scandir from here learns names and kinds; anybody else may look at sizes and times as well.
_LIST_NAMES = ("glob.py", "pathlib.py", "_local.py", "_abc.py", "_types.py", "os.py", "shutil.py", "pkgutil.py")
_LIST_DISTRIBUTIONS = os.path.join("importlib", "metadata", "__init__.py")
_ASK_WHETHER = frozenset(
    (
        *("exists", "getsize", "lexists", "isfile", "isdir", "islink", "ismount"),
        *("is_file", "is_dir", "is_symlink", "is_mount"),
        *("realpath", "_joinrealpath", "resolve", "checkcache", "updatecache"),
    )
)
# These go through all variables for those with their own prefixes, which cache.PREFIXES has.
_FIND_THEIR_OWN = ("tqdm/utils.py", "networkx/utils/backends.py")
# Their native code opens files by name, which no event tells of.
_NATIVE = (
    *(
        "SimpleITK",
        "av",
        "catboost",
        "cv2",
        "decord",
        "duckdb",
        "faiss",
        "h5py",
        "lightgbm",
        "lmdb",
        "netCDF4",
        "onnxruntime",
    ),
    *("openslide", "osgeo", "polars", "pyarrow", "rasterio", "rdkit", "sentencepiece", "soundfile", "tables", "tensorflow"),
    *("tiledb", "torchcodec", "xgboost"),
)
# These do so in one function of many, or come with every transformers model, which looks for its files from Python first:
# they count where a file of the project has the text.
_NATIVE_IF_NAMED = (
    ("safetensors", "safetensors"),
    ("tokenizers", "tokenizers"),
    ("torch", "from_file"),
    ("torchaudio", "torchaudio.load"),
    ("torchvision", "torchvision.io"),
    ("torchvision", "read_image"),
)
# Imported when the first process is started, which is done without an event.
_STARTERS = ("multiprocessing.popen_fork", "multiprocessing.popen_forkserver", "multiprocessing.popen_spawn_posix")
_OWN_FILES = 5000  # of the project; a run that looks at more (a data set's images, say) is not kept


class Recorder:
    """What this process has looked at since ``start``, by kind and path, as it was when it was seen first.

    ``variables`` are the names of environment variables that were read; ``everything``: all of them were. ``reasons``
    say why the run can't be repeated from its inputs, if so.
    """

    def __init__(self) -> None:
        self.began = time.time_ns()
        self.tables: dict[str, dict[str, str]] = {kind: {} for kind in fingerprints.KINDS}
        self.searches: dict[str, dict[str, str]] = {}  # folder -> module -> what the search came upon there
        self.variables: set[str] = set()
        self.everything = False
        self.reasons: dict[str, None] = {}
        self._own: set[str] = set()  # files and folders that the run itself made
        self._set: set[str] = set()  # variables that the run itself has set
        self._busy = threading.local()
        self._endings = fingerprints.suffixes()
        self._listings: dict[str, tuple[str, dict[str, list[str]]]] = {}
        self._paths: set[str] = set()  # entries of sys.path whose distributions were looked at
        self._left_to_read = _OWN_FILES
        self._finder = _Finder(functools.partial(self._apart, self._search))
        self._running = False

    def start(self) -> None:
        """Watch this process from now on. What it has imported already is seen now."""
        self._running = True
        for root in (sys.prefix, sys.exec_prefix):
            self.see("files", os.path.join(root, "pyvenv.cfg"))
        self.see("files", os.path.realpath(sys.executable))
        self._see_modules()
        started_with = [module for module in list(sys.modules) if "." not in module]
        for name in (*started_with, "sitecustomize", "usercustomize"):  # the last two need not be there
            self._search(name, None)
        handlers: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "os.listdir": self._listed,
            "os.scandir": functools.partial(self._listed, only_names=False),
            "os.mkdir": lambda path, *_: self._made(path),
            "os.rename": self._renamed,
            "import": lambda module, file, *_: self._file(file),
            "ctypes.dlopen": lambda name: self._file(name) if isinstance(name, str) and os.sep in name else None,
            "sqlite3.connect": lambda name: self._file(name),
        }
        handlers |= {event: functools.partial(self._left, what) for event, what in _LEAVES.items()}

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            handler = handlers.get(event)
            if handler is not None:
                self._apart(handler, *arguments)

        sys.addaudithook(hook)
        sys.meta_path.insert(0, self._finder)
        self._watch_stat()
        self._watch_environment()

    def stop(self) -> None:
        """Record no more; the last look at what is imported."""
        if self._running:
            self._running = False
            self._see_modules()
            self._see_held()
            self._see_native()

    @contextlib.contextmanager
    def unseen(self) -> Iterator[None]:
        """What this thread does inside the block is ddplint's own business."""
        before = getattr(self._busy, "on", False)
        self._busy.on = True
        try:
            yield
        finally:
            self._busy.on = before

    def seen(self) -> Seen:
        """All of it, JSON-ready."""
        return {
            "tables": {kind: dict(table) for kind, table in self.tables.items()},
            "searches": {folder: dict(modules) for folder, modules in self.searches.items()},
            "variables": sorted(self.variables),
            "everything": self.everything,
            "reasons": list(self.reasons),
        }

    def take(self, seen: Seen) -> None:
        """Add what another process of the same run has seen; where both differ, something was changed between them."""
        for kind, table in seen["tables"].items():
            for path, value in table.items():
                if self.tables[kind].setdefault(path, value) != value:
                    self._changed(path)
        for folder, modules in seen["searches"].items():
            known = self.searches.setdefault(folder, {})
            for module, value in modules.items():
                if known.setdefault(module, value) != value:
                    self._changed(os.path.join(folder, module))
        self.variables.update(seen["variables"])
        self.everything = self.everything or seen["everything"]
        self.reasons.update(dict.fromkeys(seen["reasons"]))

    def see(self, kind: str, path: str) -> None:
        """Note the state of ``path``, unless it is known already or was made by the run."""
        table = self.tables[kind]
        if path not in table and not self._is_own(path) and not _is_of_the_machine(path):
            value = table[path] = fingerprints.KINDS[kind](path)
            self._left_to_read -= value.startswith("b:")
            if not self._left_to_read:
                self.reasons.setdefault(f"it looks at more than {_OWN_FILES:,} files")
                self._running = False

    def disown(self, path: str) -> None:
        """``path`` is where this process writes: what it was before is no input. (A target that reads it makes it one.)"""
        name = os.path.realpath(path)
        for known in {name, os.path.abspath(path)}:
            self._own.add(known)
            for table in self.tables.values():
                table.pop(known, None)

    def changed(self) -> tuple[str, ...]:
        """Why the answer can't be given again: the reasons found while it ran, and what has been changed since."""
        for kind, table in self.tables.items():
            for path, value in table.items():
                if fingerprints.KINDS[kind](path) != value or self._is_recent(kind, path, value):
                    self._changed(path)
        for folder, modules in self.searches.items():
            known = fingerprints.candidates(fingerprints.listed(folder), self._endings)
            for module, value in modules.items():
                if fingerprints.of_search(folder, known.get(module, []), self._endings) != value:
                    self._changed(os.path.join(folder, module))
        return tuple(self.reasons)

    def _is_recent(self, kind: str, path: str, value: str) -> bool:
        """Whether ``path`` was changed so late that ``value`` need not be what the run has read."""
        if kind not in ("files", "folders") or value in (fingerprints.ABSENT, fingerprints.FOLDER, fingerprints.SPECIAL):
            return False
        try:
            found = os.stat(path)
        except OSError:
            return True
        limit = self.began if value.startswith("b:") else self.began - SETTLED
        return max(found.st_mtime_ns if kind == "folders" or value.startswith("s:") else 0, found.st_ctime_ns) > limit

    def _changed(self, path: str) -> None:
        self.reasons.setdefault(f"{path} was changed just now, or while it ran")

    def _apart(self, handler: Callable[..., None], *arguments: Any) -> None:
        """Call ``handler``, whose own doings are not recorded, unless this thread is in one already."""
        if self._running and not getattr(self._busy, "on", False):
            self._busy.on = True
            try:
                handler(*arguments)
            finally:
                self._busy.on = False

    def _see_modules(self) -> None:
        for module in list(sys.modules.values()):
            spec = getattr(module, "__spec__", None)
            for file in {getattr(module, "__file__", None), getattr(spec, "origin", None)}:
                if isinstance(file, str) and os.path.isabs(file):
                    self._file(file)

    def _see_held(self) -> None:
        """Files that are mapped into memory or open now, whoever opened them (where the system tells: Linux)."""
        with contextlib.suppress(OSError), open("/proc/self/maps", errors="surrogateescape") as lines:
            for line in lines:
                path = line.rstrip("\n").partition("/")[2]
                if path and not path.endswith(" (deleted)"):
                    self._file(f"/{path}")
        for number in map(int, fingerprints.listed("/proc/self/fd")):
            path = fingerprints.of_link(f"/proc/self/fd/{number}")
            if number > 2 and os.path.isabs(path) and os.path.isfile(path):  # 0 to 2 are where the command's own go
                with contextlib.suppress(OSError):
                    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE != os.O_WRONLY:
                        self._file(path)

    def _see_native(self) -> None:
        for name in [name for name in _NATIVE if name in sys.modules]:
            self.reasons.setdefault(f"{name} is imported, which opens files that are not seen")
        if any(name in sys.modules for name in _STARTERS):
            self.reasons.setdefault("the target starts a process")
        if self._finder not in sys.meta_path:
            self.reasons.setdefault("the target replaces sys.meta_path: what it imports is not seen")
        sources = [
            path for path in list(self.tables["files"]) if path.endswith(".py") and not fingerprints.is_installed(path)
        ]
        for path in [path for path in sources if not path.startswith(_OURS)]:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = file.read()
                for name in [name for module, name in _NATIVE_IF_NAMED if module in sys.modules and name.encode() in text]:
                    self.reasons.setdefault(f"{path} names {name}, which opens files that are not seen")

    def _file(self, path: Any) -> None:
        name = _absolute(path)
        if name is None:
            return
        folder, base = os.path.split(name)
        if base.endswith(".pyc") and os.path.basename(folder) == "__pycache__":  # Python holds it against its source
            name = os.path.join(os.path.dirname(folder), f"{base.partition('.')[0]}.py")
        self.see("files", name)

    def _opened(self, path: Any, mode: str | None, flags: int) -> None:
        name = _absolute(path)
        temporary = getattr(os, "O_TMPFILE", 0)
        if name is None or (temporary and flags & temporary == temporary):
            return
        there = os.path.lexists(name)
        if flags & os.O_EXCL or (flags & os.O_WRONLY and not there):
            wholly_own = not there
        else:
            wholly_own = bool(flags & os.O_TRUNC) and (not there or os.access(name, os.W_OK))
        if wholly_own:
            self._own.add(name)
        elif not flags & os.O_WRONLY:
            self._file(name)

    def _made(self, path: Any) -> None:
        name = _absolute(path)
        if name is not None and not os.path.lexists(name):
            self._own.add(name)

    def _renamed(self, source: Any, target: Any, *_: Any) -> None:
        before, after = _absolute(source), _absolute(target)
        if before is not None and after is not None and self._is_own(before):
            self._own.add(after)

    def _is_own(self, path: str) -> bool:
        while self._own and path not in self._own:
            folder = os.path.dirname(path)
            if folder == path:
                return False
            path = folder
        return bool(self._own)

    def _listed(self, path: Any = None, only_names: bool = True) -> None:
        name = _absolute("." if path is None else _of_descriptor(path) if isinstance(path, int) else path)
        caller = _caller()
        if name is None:
            return
        if caller.startswith("<frozen importlib"):  # the search for a module: the finder knows which, if it was asked
            if name not in self.searches and not fingerprints.is_installed(name + os.sep):
                self.see("names", name)
            return
        if caller.endswith(_LIST_DISTRIBUTIONS):
            self._see_distributions(name)
            return
        if caller == "<frozen os>" or (caller.startswith(_LIBRARY) and os.path.basename(caller) in _LIST_NAMES):
            only_names = True
        self.see("names" if only_names or fingerprints.is_installed(name) else "entries", name)

    def _left(self, what: str, *_: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if file.startswith(_LIBRARY) and file.endswith(_ASK_THE_SYSTEM):
                return
            frame = frame.f_back
        self.reasons.setdefault(f"the target {what}")

    def _search(self, name: str, path: Sequence[str] | None) -> None:
        """A module is looked for: in each folder, what has its name counts, and that nothing else has."""
        module = name.rpartition(".")[2]
        for entry in list(sys.path if path is None else path):
            folder = _absolute(entry or ".")
            if folder is None:
                continue
            if path is None and folder not in self._paths:
                self._paths.add(folder)
                self._see_distributions(folder)
            if fingerprints.is_installed(folder + os.sep):
                self.see("folders", folder)
            elif module not in (known := self.searches.setdefault(folder, {})):
                known[module] = fingerprints.of_search(folder, self._candidates(folder).get(module, []), self._endings)

    def _candidates(self, folder: str) -> dict[str, list[str]]:
        """What modules may be in ``folder``, listed anew when its time has changed; a missed change shows at the end."""
        state = fingerprints.of_folder(folder)
        if folder not in self._listings or self._listings[folder][0] != state:
            self._listings[folder] = state, fingerprints.candidates(fingerprints.listed(folder), self._endings)
        return self._listings[folder][1]

    def _see_distributions(self, folder: str) -> None:
        self.see("distributions", folder)
        for name in self.tables["distributions"].get(folder, "").split("|"):
            if name.endswith((".pth", ".egg-link")):
                self.see("files", os.path.join(folder, name))
            elif name.endswith((".dist-info", ".egg-info")):
                for file in ("METADATA", "PKG-INFO", "RECORD"):
                    if os.path.isfile(os.path.join(folder, name, file)):
                        self.see("files", os.path.join(folder, name, file))

    def _watch_stat(self) -> None:
        without_times = (os.access, os.readlink)

        def watched(plain: Callable[..., Any], *kinds: str) -> Callable[..., Any]:
            done: dict[str, bool] = {}  # by path: whether nothing more can be asked of it than was

            def note(given: Any, asks_whether: bool, folder: int | None) -> None:
                path = _absolute(given, folder)
                if path is None:
                    return
                for kind in kinds:
                    if kind != "links" or not fingerprints.is_installed(path):
                        self.see(kind, path)
                if "files" in kinds and not asks_whether:
                    self.see("times", path)
                if path == given:
                    done[path] = not asks_whether

            @functools.wraps(plain)
            def call(*arguments: Any, **options: Any) -> Any:
                given = arguments[0] if arguments else options.get("path")
                name = given if isinstance(given, str) else ""
                if self._running and not done.get(name):
                    asks_whether = plain in without_times or _asker() in _ASK_WHETHER
                    if name not in done or not asks_whether:
                        self._apart(note, given, asks_whether, options.get("dir_fd"))
                return plain(*arguments, **options)

            return supported_as(plain, call)

        def supported_as(plain: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
            for supported in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
                if plain in supported:
                    supported.add(call)
            return call

        plain_open = os.open

        @functools.wraps(plain_open)
        def open_in_folder(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is not None:  # which the event does not tell
                self._apart(self._opened, _absolute(path, dir_fd), None, flags)
            return plain_open(path, flags, mode, dir_fd=dir_fd)

        os.open = supported_as(plain_open, open_in_folder)
        os.stat = watched(os.stat, "files")
        os.lstat = watched(os.lstat, "files", "links")
        os.access = watched(os.access, "files")
        os.readlink = watched(os.readlink, "links")

    def _watch_environment(self) -> None:
        kind: Any = type(os.environ)
        get, put, delete, names = kind.__getitem__, kind.__setitem__, kind.__delitem__, kind.__iter__

        by_each = (ItemsView.__iter__.__code__, ValuesView.__iter__.__code__)

        def noted(key: Any) -> str:
            return os.fsdecode(key) if isinstance(key, (str, bytes)) else ""

        def read(environment: Any, key: Any) -> Any:
            if self._running and not getattr(self._busy, "on", False) and sys._getframe(1).f_code not in by_each:
                self.variables.update({noted(key)} - self._set)
            return get(environment, key)

        def write(environment: Any, key: Any, value: Any) -> None:
            if self._running:
                self._set.add(noted(key))
            put(environment, key, value)

        def remove(environment: Any, key: Any) -> None:
            delete(environment, key)
            if self._running:
                self._set.add(noted(key))

        def every(environment: Any) -> Any:
            if self._running and not getattr(self._busy, "on", False) and not _caller().endswith(_FIND_THEIR_OWN):
                self.everything = True
            return names(environment)

        kind.__getitem__, kind.__setitem__, kind.__delitem__, kind.__iter__ = read, write, remove, every


class _Finder:
    """Stands before the other finders, and is asked for every module that is not imported yet. Finds none."""

    def __init__(self, search: Callable[[str, Sequence[str] | None], None]) -> None:
        self._search = search

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> None:
        """Note that ``name`` is looked for, in ``path`` or on ``sys.path``."""
        self._search(name, path)


_LIBRARY = os.path.dirname(os.__file__) + os.sep
_BETWEEN = (__file__, contextlib.__file__, "<frozen _collections_abc>")
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def _of_descriptor(number: int) -> str:
    """The path of an open file or folder; "" where the system does not tell (it does on Linux)."""
    path = fingerprints.of_link(f"/proc/self/fd/{number}")
    return path if os.path.isabs(path) else ""


def _absolute(path: Any, folder: int | None = None) -> str | None:
    """``path`` from the root, where relative paths start from the open ``folder``, or from the working one.

    None for a file descriptor, and what is no path.
    """
    try:
        name = os.fsdecode(path)
        return os.path.abspath(name if folder is None else os.path.join(_of_descriptor(folder), name)) if name else None
    except (TypeError, ValueError, OSError):
        return None


def _is_of_the_machine(path: str) -> bool:
    return path.startswith(_OF_THE_MACHINE) and not path.startswith(_OF_ANY)


def _caller() -> str:
    """The file of the nearest frame outside of this module."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _BETWEEN and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename


def _asker() -> str:
    """The function outside of this module that asked for a file's state, past what pathlib puts between."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (frame.f_code.co_filename in _BETWEEN or frame.f_code.co_name in ("stat", "lstat")):
        frame = frame.f_back
    return frame.f_code.co_name if frame.f_code.co_filename.startswith((_LIBRARY, "<frozen")) else ""


_recorder: Recorder | None = None


def record() -> Recorder:
    """Start a recorder for the whole of this process. It can't be taken away again, only stopped."""
    global _recorder
    _recorder = Recorder()
    _recorder.start()
    return _recorder


def recorder() -> Recorder | None:
    """The recorder that is running in this process, if one is."""
    return _recorder


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """As ``Recorder.unseen``, where one may be running."""
    with _recorder.unseen() if _recorder is not None else contextlib.nullcontext():
        yield


def disown(path: str) -> None:
    """As ``Recorder.disown``, where one may be running."""
    if _recorder is not None:
        _recorder.disown(path)
