"""Writing a file whole or not at all. Imports nothing that a cached answer does not need."""

from __future__ import annotations

import os
import stat

DRAFT = ".tmp"  # how a draft's name ends


def replace(path: str, data: bytes, permissions: int = 0o666) -> None:
    """Write ``data`` to ``path`` by a draft that is renamed; a link stays one, and so do the file's permissions.

    ``permissions`` are a new file's, before the umask. Into what is no regular file (a pipe, /dev/stderr) it goes as it
    is. Raises OSError.
    """
    path = os.path.realpath(path)
    try:
        mode = os.stat(path).st_mode
    except OSError:
        mode = None
    if mode is not None and not stat.S_ISREG(mode):
        with open(path, "wb") as file:
            file.write(data)
        return
    draft = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}{DRAFT}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, permissions), "wb") as file:
            file.write(data)
        if mode is not None:
            os.chmod(draft, stat.S_IMODE(mode))
        os.replace(draft, path)
    except BaseException:
        remove(draft)
        raise


def remove(path: str) -> bool:
    """Delete ``path``. Returns whether it was there, and this process's to delete."""
    try:
        os.unlink(path)
    except OSError:
        return False
    return True
