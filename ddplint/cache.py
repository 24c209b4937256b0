"""Answers that are kept: what a ``check`` has printed, and all that it looked at; given again while that is the same.

An entry is found by what is known before anything is read: the arguments, the working folder, this Python and ddplint, where
the output goes. In it are the inputs (``ddplint.inputs``) with their fingerprints. Each is looked at again, and a single one
that differs is a miss. No dataclasses here, and no other module that Python has not loaded itself but json and hashlib: this
is all that a cached answer waits for.

A file is written to a temporary name and renamed, starts with a checksum of the rest, and is deleted with those that were
not used for the longest time when there are too many.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping

import ddplint
from ddplint import files, fingerprints

TYPE_CHECKING = False  # as in typing, which would take longer than all of the rest
if TYPE_CHECKING:
    from ddplint.inputs import Recorder

LARGEST, MOST = 64 << 20, 1000  # bytes and entries; what was used last is kept
_MARK = "ddplint cache 1"
_NAME = ".entry"
_STALE = 3600.0  # seconds after which a draft is nobody's any more

# Variables that C code may read (getenv(3) leaves no trace), and those that tqdm and networkx look for among all.
PREFIXES = (
    *("PYTHON", "LD_", "DYLD_", "LC_", "LANG", "TZ", "MALLOC_", "TQDM_", "NETWORKX_"),
    *("TORCH", "PYTORCH", "ATEN_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NCCL_", "GLOO_"),
    *("CUDA_", "HIP_", "ROCR_", "XLA_"),
)
_ASCII = ("ascii", "us-ascii", "646", "ansi_x3.4-1968")  # what click writes to such a stream as UTF-8
_BOOKKEEPING = frozenset(("_", "OLDPWD", "PWD", "SHLVL"))  # the shell's own; the working folder is in the key
_NEVER = ("--no-cache", "--show-settings", "-h", "--help", "--base")


class Answer:
    """What a run has printed: ``out`` and ``err`` as text, ``files`` as (path, text), and its exit code.

    ``code`` is None until the run has come to its end in the ordinary way.
    """

    __slots__ = ("code", "err", "files", "out")

    def __init__(
        self, out: str = "", err: str = "", files: tuple[tuple[str, str], ...] = (), code: int | None = None
    ) -> None:
        self.out, self.err, self.files, self.code = out, err, files, code


class Place:
    """Where the answer to one command line is kept. ``key`` is all that decides which one it is."""

    __slots__ = ("file", "folder", "key")

    def __init__(self, folder: str, key: str) -> None:
        self.folder, self.key = folder, key
        self.file = os.path.join(folder, fingerprints.digest(key.encode(errors="surrogatepass")) + _NAME)


def folder(environment: Mapping[str, str] = os.environ) -> str | None:
    """The folder of the entries: DDPLINT_CACHE_DIR, else where the platform keeps caches. None where no home is known."""
    named = environment.get("DDPLINT_CACHE_DIR", "")
    if named:
        return os.path.abspath(named)
    home = os.path.expanduser("~")
    if sys.platform == "win32":
        base = environment.get("LOCALAPPDATA", "")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")
    else:
        base = environment.get("XDG_CACHE_HOME", "")
        base = base if os.path.isabs(base) else os.path.join(home, ".cache")
    return os.path.join(base, "ddplint") if os.path.isabs(base) else None


def place(arguments: list[str]) -> Place | None:
    """Where the answer to ``arguments`` is, or will be; None for a command line whose answer is not kept."""
    if not arguments or arguments[0] != "check" or os.environ.get("DDPLINT_NO_CACHE") or "_DDPLINT_COMPLETE" in os.environ:
        return None
    if any(argument.partition("=")[0] in _NEVER for argument in arguments):
        return None
    if os.environ.get("GITHUB_STEP_SUMMARY") and any("github" in argument for argument in arguments):
        return None  # the job's summary is added to
    where = folder()
    try:
        working = os.getcwd()
    except OSError:
        return None
    if where is None or any(stream is None or stream.encoding.lower() in _ASCII for stream in (sys.stdout, sys.stderr)):
        return None
    key = [_MARK, ddplint.__version__, ddplint.__file__, fingerprints.interpreter(), working]
    return Place(where, json.dumps([*key, sys.path, arguments, list(_streams())]))


def _streams() -> Iterator[str]:
    """What a report's layout depends on beside the environment: which streams are terminals, how wide, in which encoding."""
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        terminal = stream is not None and stream.isatty()
        size = ""
        if terminal:
            try:
                size = str(tuple(os.get_terminal_size(number)))
            except OSError:
                size = "unknown"
        yield f"{number} {terminal} {size} {getattr(stream, 'encoding', '') if number else ''}"


def find(place: Place) -> Answer | str:
    """The answer, if all that it was made from is as it was; else, in words, why there is none."""
    if not _is_private(place.folder):
        return "there is no entry"
    text = _read(place.file)
    if text is None:
        return "there is no entry"
    head, _, body = text.partition(b"\n")
    if head != f"{_MARK} {fingerprints.digest(body)}".encode():
        return "the entry is damaged"
    try:
        entry = json.loads(body)
        if entry["key"] != place.key:
            return "there is no entry"
        changed = _difference(entry["variables"], entry["tables"], entry["searches"])
        if changed:
            return changed
        answer = entry["answer"]
        found = Answer(answer["out"], answer["err"], tuple((path, text) for path, text in answer["files"]), answer["code"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return "the entry is damaged"
    try:
        os.utime(place.file)  # used just now
    except OSError:
        return found  # and deleted by somebody else just now
    return found


def _difference(variables: dict[str, str], tables: dict[str, dict[str, str]], searches: dict[str, dict[str, str]]) -> str:
    """What has changed since the entry was made; "" for nothing."""
    for name, value in variables.items():
        if _of_variable(name) != value:
            return f"the environment ({name}) has changed"
    for kind, table in tables.items():
        look = fingerprints.KINDS[kind]
        for path, value in table.items():
            if look(path) != value:
                return f"{path} has changed"
    endings = fingerprints.suffixes()
    for where, modules in searches.items():
        known = fingerprints.candidates(fingerprints.listed(where), endings)
        without = set(modules.pop("", "").split("\0")) - {""}
        for module in without & known.keys():
            if fingerprints.of_search(where, known[module], endings):
                return f"{os.path.join(where, module)} has appeared"
        for module, found in modules.items():
            if fingerprints.of_search(where, known.get(module, []), endings) != found:
                return f"{os.path.join(where, module)} has changed"
    return ""


def _of_variable(name: str) -> str:
    """A variable's value, hashed: it may be a secret. "PREFIX*" stands for all that start so, "*" for all there are."""
    if name.endswith("*"):
        start = name[:-1]
        chosen = {key: value for key, value in os.environ.items() if key.startswith(start) and key not in _BOOKKEEPING}
        text = json.dumps(chosen, sort_keys=True)
    else:
        text = json.dumps(os.environ.get(name))
    return fingerprints.digest(f"{name}={text}".encode(errors="surrogatepass"))


def _read(file: str) -> bytes | None:
    """The bytes of an entry that this user has written and nobody else can change."""
    try:
        number = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        with open(number, "rb") as opened:
            return opened.read() if _is_own(os.fstat(number)) else None
    except OSError:
        return None


def _is_own(found: os.stat_result) -> bool:
    return not hasattr(os, "geteuid") or (found.st_uid == os.geteuid() and not found.st_mode & 0o022)


def _is_private(where: str) -> bool:
    try:
        found = os.lstat(where)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and _is_own(found)


def keep(place: Place, answer: Answer, recorder: Recorder, environment: Mapping[str, str]) -> str:
    """Write the entry. Returns why that could not be, in words; "" if it is there.

    ``environment`` is what this process was started with.
    """
    reasons = recorder.changed()
    if reasons:
        return "; ".join(reasons[:3])
    patterns = {f"{prefix}*" for prefix in PREFIXES} | ({"*"} if recorder.everything else set())
    if dict(os.environ) != dict(environment):
        return "the environment was changed by the run"
    entry = {
        "key": place.key,
        "variables": {name: _of_variable(name) for name in sorted(recorder.variables | patterns)},
        "tables": recorder.tables,
        "searches": {where: _short(modules) for where, modules in recorder.searches.items()},
        "answer": {"out": answer.out, "err": answer.err, "files": answer.files, "code": answer.code},
    }
    body = json.dumps(entry).encode()
    data = f"{_MARK} {fingerprints.digest(body)}\n".encode() + body
    if len(data) > LARGEST // 4:
        return "the report is too large to be kept"
    try:
        os.makedirs(place.folder, mode=0o700, exist_ok=True)
        if not _is_private(place.folder):
            return f"{place.folder} belongs to another user, or others may write into it"
        files.replace(place.file, data, permissions=0o600)
    except OSError as error:
        return f"{place.folder}: {error.strerror}"
    _shrink(place.folder)
    return ""


def _short(modules: dict[str, str]) -> dict[str, str]:
    """Those that were not found, which are nearly all, as one text."""
    return {"": "\0".join(sorted(name for name, found in modules.items() if not found))} | {
        name: found for name, found in modules.items() if found
    }


def entries(where: str) -> list[tuple[str, int, float]]:
    """The entries in ``where``: file, bytes, time of the last use; those that were used last come first."""
    found = []
    try:
        with os.scandir(where) as names:
            for name in names:
                if name.name.endswith(_NAME):
                    state = name.stat(follow_symlinks=False)
                    found.append((name.path, state.st_size, state.st_mtime))
    except OSError:  # gone, all of it or one that another process has just deleted
        return []
    return sorted(found, key=lambda entry: entry[2], reverse=True)


def _shrink(where: str) -> None:
    size = 0
    for number, (file, length, _) in enumerate(entries(where), 1):
        size += length
        if size > LARGEST or number > MOST:
            files.remove(file)
    _remove_drafts(where, time.time() - _STALE)


def _remove_drafts(where: str, before: float) -> None:
    """Those that were begun before a time: what is left of runs that were killed."""
    for name in fingerprints.listed(where):
        if name.startswith(".") and name.endswith(files.DRAFT):
            draft = os.path.join(where, name)
            try:
                begun = os.lstat(draft).st_mtime
            except OSError:
                continue
            if begun < before:
                files.remove(draft)


def summary() -> str:
    """Where the entries are, how many and how large, as lines."""
    where = folder()
    if where is None:
        return "no cache: neither a home folder nor DDPLINT_CACHE_DIR is known\n"
    known = entries(where)
    size = sum(length for _, length, _ in known)
    return f"{where}\n{_counted(len(known))}, {size / (1 << 20):.1f} MiB of {LARGEST >> 20} MiB at most\n"


def cleared() -> str:
    """Delete all entries; a line that says how many there were."""
    where = folder()
    if where is None:
        return summary()
    number = sum(files.remove(file) for file, _, _ in entries(where))
    _remove_drafts(where, float("inf"))
    return f"deleted {_counted(number)} from {where}\n"


def _counted(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"
