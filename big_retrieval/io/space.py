"""Free space, for messages about files that cannot be written."""

import errno
import os
import re
import shutil
from pathlib import Path

from big_retrieval.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
CODE = re.compile(r"os_error_code='(\d+)'")  # in messages of tensorstore, which are long
LITTLE = 2**20  # bytes; a file system with less space than this is full


def reason(problem: BaseException) -> str:
    """Why something failed, in few words: the system's own, or the exception with its type."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    if isinstance(problem, UserError):
        return str(problem).rstrip(".")
    if found := CODE.search(str(problem)):
        return os.strerror(int(found[1]))
    first = str(problem).strip().partition("\n")[0]
    return f"{type(problem).__name__}: {first}" if first else type(problem).__name__


def free_space(path: Path) -> str:
    """The free space of a file's file system, such as `0.5 MiB of 4.0 GiB are free`.

    Args:
      path: a file or folder, which need not exist.

    Returns:
      A part of a sentence; empty where the file system does not answer.
    """
    try:
        usage = shutil.disk_usage(_existing(path))
    except OSError:
        return ""
    return f"{_size(usage.free)} of {_size(usage.total)} are free"


def is_full(path: Path) -> bool:
    """Whether the file system of a file has next to no space, or no room for one more file."""
    try:
        found = os.statvfs(_existing(path))
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < LITTLE or (found.f_files > 0 and found.f_favail == 0)


def cannot_write(path: Path, problem: BaseException) -> str:
    """A sentence without its full stop: the file, the reason, and the free space of its disk."""
    space = free_space(path)
    return f"{path} cannot be written: {reason(problem)}" + (f" ({space})" if space else "")


def remedy(what: str, problem: BaseException) -> str:
    """What to do about something that cannot be written, as a part of a sentence."""
    code = problem.errno if isinstance(problem, OSError) else None
    if found := CODE.search(str(problem)):
        code = int(found[1])
    return f"make room for {what}" if code in FULL else "put that right"


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
