"""Files with random access; a process keeps a limited number of them open."""

import contextlib
import hashlib
import os
import resource
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError

Stamp = tuple[int, int]  # size in bytes, and time of the last change in nanoseconds
END_BYTES = 2**16
MAX_OPEN = 256  # and at most a quarter of the descriptors that the process may have
_handles: OrderedDict[Any, Any] = OrderedDict()  # the last used one last


def stamp_of(path: str | os.PathLike[str] | int) -> Stamp:
    """Returns size and modification time, to detect a changed file."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def ends_digest(path: str | os.PathLike[str], size: int = END_BYTES) -> str:
    """Returns a digest of the first and last `size` bytes of a file, 16 hexadecimal digits."""
    out = hashlib.blake2b(digest_size=8)
    with open(path, "rb") as file:
        out.update(file.read(size))
        file.seek(-min(size, file.tell()), os.SEEK_END)
        out.update(file.read())
    return out.hexdigest()


def check_unchanged(path: str | os.PathLike[str], stamp: Stamp, file: int | None = None) -> None:
    """Raises a UserError if a file is missing or has another size or modification time.

    Args:
      stamp: `stamp_of` the file when it was opened first.
      file: its descriptor, to check the opened file instead of the file of that name.
    """
    try:
        current = stamp_of(path if file is None else file)
    except OSError as error:
        current, reason = None, f"cannot be read ({error.strerror})"
    else:
        reason = "was changed while it was in use"
    if current != stamp:
        raise UserError(f"{os.fspath(path)} {reason}. Run the command again.")


def reopen(open_file: Callable[[str], Any], path: str, stamp: Stamp) -> Any:
    """Returns `open_file(path)`, which stays open while it is among the last `MAX_OPEN` used.

    All threads share the result, which must close its file with the last reference. `open_file` is
    a module-level function, and `stamp` is the file's `stamp_of` when it was opened first.
    """
    key = open_file, path, stamp
    try:  # no lock, which a forked process might inherit locked
        _handles.move_to_end(key)
        return _handles[key]
    except KeyError:  # `suppress` would take longer than the look-up
        pass
    handle = open_file(path)
    check_unchanged(path, stamp)
    _handles[key] = handle
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**31 // 4  # -1: unlimited
    with contextlib.suppress(KeyError):
        while len(_handles) > min(limit, MAX_OPEN):
            _handles.popitem(last=False)
    return handle


def open_reader(path: str) -> Any:
    """Opens an ArrayRecord file for random access."""
    from array_record.python.array_record_module import ArrayRecordReader  # it takes long to import

    return ArrayRecordReader(path, "readahead_buffer_size:0")


class RandomAccessFile:
    """Reader of any part of a file, for all threads and, pickled, all processes of this machine.

    Args:
      stamp: `stamp_of` the file when its positions were looked up; None for the present stamp.
    """

    def __init__(self, path: Path, stamp: Stamp | None = None):
        self._path, self._stamp = os.fspath(path), stamp or stamp_of(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccessFile, (self._path, self._stamp)

    def read(self, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` to `stop`; fewer at the end of the file."""
        file = reopen(_Descriptor, self._path, self._stamp)
        data = os.pread(file.number, stop - start, start)
        if len(data) < stop - start:  # at the end, or the file was cut
            check_unchanged(self._path, self._stamp, file.number)
        return data


class MappedFile:
    """Check for changes of a file that is mapped into memory; call `check` before reading.

    Reading a part that was cut off would end the process (SIGBUS).
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path, self._file = path, _Descriptor(os.fspath(path))
        self._stamp = stamp_of(self._file.number)

    def check(self) -> None:
        """Raises a UserError if the file was changed since it was opened."""
        check_unchanged(self._path, self._stamp, self._file.number)


class _Descriptor:
    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    # At the interpreter's exit, the name `os` may be gone.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if "number" in vars(self):
            close(self.number)
