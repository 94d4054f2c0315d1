"""Errors of files that cannot be written, with the free space of their disk."""

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
LITTLE = 2**20  # bytes; a file system with less free space is full


def lacks_space(error: BaseException) -> bool:
    """Returns True if an exception of any library is about a full disk or an exceeded quota."""
    return _code(error) in FULL


def reason(error: BaseException) -> str:
    """Returns the system's message of an error, or the exception's first line with its type."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, UserError):
        return str(error).rstrip(".")
    if code := _code(error):
        return os.strerror(code)
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def free_space(path: Path) -> str:
    """Returns a text such as `0.5 MiB of 4.0 GiB are free` about a path's file system, or ""."""
    try:
        usage = shutil.disk_usage(_existing(path))
    except OSError:
        return ""
    return f"{_size(usage.free)} of {_size(usage.total)} are free"


def is_full(path: Path) -> bool:
    """Returns True if a path's file system has almost no space, or no room for one more file."""
    try:
        status = os.statvfs(_existing(path))
    except OSError:
        return False
    has_space = status.f_bavail * status.f_frsize >= LITTLE
    return not has_space or (status.f_files > 0 and status.f_favail == 0)


def write_error(
    path: Path, error: BaseException, label: str = "it", resumes: str = ""
) -> UserError:
    """Returns the error of a file that cannot be written: reason, free space, and what to do.

    Args:
      label: thing to write, for the message.
      resumes: where the repeated command resumes, such as "checkpoint 7"; "" if it starts again.
    """
    space = free_space(path)
    remedy = f"Make room for {label}" if lacks_space(error) else "Correct that"
    return UserError(
        f"Cannot write {path}: {reason(error)}{f' ({space})' if space else ''}. {remedy}, then "
        f"repeat the same command{f', which resumes from {resumes}' if resumes else ''}."
    )


def no_space(error: BaseException, path: Path | None = None) -> UserError:
    """Returns the error of a command that `lacks_space`.

    Args:
      error: from any library; its file name is used if it has one.
      path: output of the command; None if unknown. If only the folder of temporary files is full,
        the message names that folder.
    """
    name = getattr(error, "filename2", None) or getattr(error, "filename", None)  # of a copy
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    if isinstance(name, str):
        path = Path(name)
    elif path is None or (is_full(temporary) and not is_full(path)):
        path = temporary if is_full(temporary) else Path("the output")
    return write_error(path, error)


def _code(error: BaseException) -> int | None:
    """Returns the system's error number of an exception, or of its message."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    if match := CODE.search(str(error)):
        return int(match[1])
    if NO_SPACE.search(str(error)):
        return errno.EDQUOT if os.strerror(errno.EDQUOT) in str(error) else errno.ENOSPC
    return None


def _existing(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists."""
    return next((p for p in (path, *path.absolute().parents) if p.exists()), Path("/"))


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
