"""What a file, a folder or a search for a module looks like now, in a string that differs as soon as it does.

Imported before anything else by a cached ``check``: only what Python has loaded anyway, and hashlib.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys

ABSENT, FOLDER, SPECIAL = "absent", "folder", "special"
LARGE = 1 << 18  # bytes above which a file is known by its stat and not by its content

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_DISTRIBUTIONS = (".dist-info", ".egg-info", ".egg-link", ".pth")
_SELF_MADE = "__pycache__"  # comes and goes with the modules that are recorded themselves


def is_installed(path: str) -> bool:
    """Whether ``path`` is Python's own or an installed package's: such files are replaced, not edited."""
    return path.startswith(_LIBRARY) or any(part in path for part in _PACKAGES)


def digest(data: bytes) -> str:
    """A short hash that nobody finds a second text for."""
    return hashlib.sha256(data).hexdigest()[:40]


def of_file(path: str) -> str:
    """The content of a file of the project; what ``stat`` says of one that is large or installed (size, times, inode).

    ABSENT, FOLDER or SPECIAL (pipes, devices) where it is no file that can be read.
    """
    try:
        found = os.stat(path)
        if stat.S_ISREG(found.st_mode):
            if found.st_size > LARGE or is_installed(path):
                return f"s:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"
            with open(path, "rb", buffering=0) as file:
                return "b:" + digest(file.read())
    except (OSError, ValueError):
        return ABSENT
    return FOLDER if stat.S_ISDIR(found.st_mode) else SPECIAL


def of_times(path: str) -> str:
    """Kind, size and time of the last change."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    if stat.S_ISDIR(found.st_mode):
        return FOLDER  # its time changes with every file in it: who wants to know these lists it
    return f"{stat.S_IFMT(found.st_mode)}:{found.st_size}:{found.st_mtime_ns}"


def of_link(path: str) -> str:
    """Where a symbolic link points to; ABSENT where there is none."""
    try:
        return os.readlink(path)
    except (OSError, ValueError):
        return ABSENT


def of_folder(path: str) -> str:
    """The time at which a name was last added to a folder, or taken from it."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ABSENT
    return f"{found.st_mtime_ns}:{found.st_ctime_ns}:{found.st_ino}"


def of_names(path: str) -> str:
    """The names in a folder, and which of them are folders."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name + "/" * entry.is_dir() for entry in entries if entry.name != _SELF_MADE)
    except (OSError, ValueError):
        return ABSENT
    return digest("\0".join(names).encode(errors="surrogatepass"))


def of_entries(path: str) -> str:
    """As ``of_names``, with sizes and times of the files."""
    lines = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name == _SELF_MADE:
                    continue
                if entry.is_file():
                    found = entry.stat()
                    lines.append(f"{entry.name}\0{found.st_size}\0{found.st_mtime_ns}")
                else:
                    lines.append(entry.name + "/" * entry.is_dir())
    except (OSError, ValueError):
        return ABSENT
    return digest("\0\0".join(sorted(lines)).encode(errors="surrogatepass"))


def of_distributions(path: str) -> str:
    """The names of what is installed in a folder of ``sys.path``, in which versions."""
    return "|".join(sorted(name for name in listed(path) if name.endswith(_DISTRIBUTIONS)))


def listed(folder: str) -> list[str]:
    """The names in ``folder``; none where it can't be listed."""
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def suffixes() -> frozenset[str]:
    """What may follow a module's name in a file's: importlib's own list, and nothing, for a package."""
    import importlib.machinery

    return frozenset(("", *importlib.machinery.all_suffixes()))


def candidates(names: list[str], endings: frozenset[str]) -> dict[str, list[str]]:
    """Of the names in a folder, those that importing a module may come upon, by the module's name."""
    found: dict[str, list[str]] = {}
    for name in names:
        module, dot, rest = name.partition(".")
        if dot + rest in endings:
            found.setdefault(module, []).append(name)
    return found


def of_search(folder: str, names: list[str], endings: frozenset[str]) -> str:
    """What a search for a module in ``folder`` comes upon: ``names``, and whether a folder among them is a package."""
    parts = []
    for name in sorted(names):
        inner = os.path.join(folder, name)
        if "." not in name and os.path.isdir(inner):
            starts = [file for file in listed(inner) if file.partition(".")[0] == "__init__"]
            parts.append("/".join([name, *sorted(file for file in starts if file.removeprefix("__init__") in endings)]))
        elif "." in name:
            parts.append(name)
    return "|".join(parts)


def interpreter() -> str:
    """Which Python this is, and on which system."""
    system = os.uname() if hasattr(os, "uname") else None
    machine = (system.sysname, system.release, system.machine) if system else ()
    return "\n".join((sys.executable, sys.version, sys.prefix, *map(str, sys.flags), *machine))


KINDS = {
    "files": of_file,
    "times": of_times,
    "links": of_link,
    "folders": of_folder,
    "names": of_names,
    "entries": of_entries,
    "distributions": of_distributions,
}
