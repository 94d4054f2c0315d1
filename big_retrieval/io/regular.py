"""Reads files of users: regular files only, and of a limited size.

Opening a named pipe can wait forever, and a device such as /dev/zero never ends. All code that
opens a file of a user therefore calls `check_regular` or a function of this module.
"""

import gzip
import os
import stat
import zipfile
import zlib
from pathlib import Path

from big_retrieval.errors import UserError

MAX_UNPACKED, MAX_RATIO = 256 * 2**20, 50  # bytes, or times the packed size if that is more
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def check_regular(path: str | os.PathLike[str], *, folders: bool = False) -> os.stat_result:
    """Returns the `os.stat` of a regular file, or with `folders` of a folder; follows links."""
    status = os.stat(path)
    file_type = stat.S_IFMT(status.st_mode)
    if file_type != stat.S_IFREG and not (folders and file_type == stat.S_IFDIR):
        name = _KINDS.get(file_type, "no file")
        raise UserError(f"{os.fspath(path)} is {name}, not a regular file. Use the path of a file.")
    return status


def read_bytes(path: str | os.PathLike[str], max_bytes: int | None = None) -> bytes:
    """Returns the content of a regular file.

    Args:
      max_bytes: maximum size; None for no limit.
    """
    check_regular(path)
    # If a pipe has replaced the file since the check, O_NONBLOCK does not wait for a writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            check_regular(path)
        if max_bytes is not None and size > max_bytes:
            raise UserError(
                f"{os.fspath(path)} has {size / 2**20:,.0f} MiB. The limit of such files is "
                f"{max_bytes / 2**20:,.0f} MiB."
            )
        return file.read() if max_bytes is None else file.read(max_bytes)


def read_gzip(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Returns the unpacked content of a gzip file; raises a UserError above `max_bytes`."""
    max_bytes = min(max_bytes, _max_unpacked(check_regular(path).st_size))
    try:
        with gzip.open(path) as file:
            data = file.read(max_bytes + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"Cannot unpack {os.fspath(path)}: {error}. Download it again.") from None
    if len(data) > max_bytes:
        raise UserError(
            f"{os.fspath(path)} unpacks to more than {max_bytes / 2**20:,.0f} MiB. If that is "
            f"correct, unpack it first: gunzip {os.fspath(path)}"
        )
    return data


def check_zip(path: str | os.PathLike[str]) -> None:
    """Raises a UserError if a zip archive, such as .npz, unpacks to far more than its own size."""
    size = check_regular(path).st_size
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    total = sum(member.file_size for member in members)
    kinds = {member.compress_type for member in members}
    # numpy writes these two; Python unpacks the others without a bound.
    if total > _max_unpacked(size) or kinds - {
        zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
    }:  # fmt: skip
        raise UserError(
            f"{os.fspath(path)} has {size / 2**20:,.1f} MiB and unpacks to {total / 2**20:,.0f} "
            "MiB, or is packed in an unusual way. If that is correct, save it without compression."
        )


def _max_unpacked(size: int) -> int:
    return max(MAX_UNPACKED, MAX_RATIO * size)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", errors: str = "strict") -> str:
    """Returns the text of a regular file; raises a UserError for anything else."""
    check_regular(path)
    return Path(path).read_text(encoding=encoding, errors=errors)
