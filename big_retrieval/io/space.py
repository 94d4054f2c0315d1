"""Free space, for messages about files that cannot be written."""

import errno
import os
import re
import shutil
from pathlib import Path

from big_retrieval.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
CODE = re.compile(r"os_error_code='(\d+)'")  # in messages of tensorstore, which are long
# In messages of numpy, which has no code, and of array_record, safetensors, tokenizers and Arrow.
NO_SPACE = re.compile(
    rf"{os.strerror(errno.ENOSPC)}|{os.strerror(errno.EDQUOT)}|\d requested and \d+ written"
)
LITTLE = 2**20  # bytes; a file system with less space than this is full


def lacks_space(problem: BaseException) -> bool:
    """Returns True if an exception of any library is about a full disk or an exceeded quota."""
    return _code(problem) in FULL


def reason(problem: BaseException) -> str:
    """Why something failed, in few words: the system's own, or the exception with its type."""
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    if isinstance(problem, UserError):
        return str(problem).rstrip(".")
    if code := _code(problem):
        return os.strerror(code)
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
    return f"make room for {what}" if lacks_space(problem) else "put that right"


def no_space(problem: BaseException, path: Path | None = None) -> UserError:
    """The error of a command that `lacks_space`.

    Args:
      problem: from any library; its file name is used if it has one.
      path: the output of the command; None if unknown. If only the folder of temporary files is
        full, the message names that.
    """
    name = getattr(problem, "filename2", None) or getattr(problem, "filename", None)  # of a copy
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    if isinstance(name, str):
        path = Path(name)
    elif is_full(temporary) and not (path and is_full(path)):
        path = temporary
    told = cannot_write(path, problem) if path else f"no output can be written: {reason(problem)}"
    return UserError(f"{told}; {remedy('it', problem)}, then repeat the same command.")


def _code(problem: BaseException) -> int | None:
    """The error number of the system, or that which the message is about."""
    if isinstance(problem, OSError) and problem.errno:
        return problem.errno
    if found := CODE.search(str(problem)):
        return int(found[1])
    if NO_SPACE.search(str(problem)):
        return errno.EDQUOT if os.strerror(errno.EDQUOT) in str(problem) else errno.ENOSPC
    return None


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
