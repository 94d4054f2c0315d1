"""Open files that are read at any place: a process keeps a bounded number of them open."""

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
    """Returns size and modification time, by which a changed file is noticed.

    Raises:
      OSError: the file does not exist.
    """
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
      path: the file.
      stamp: `stamp_of` the file when it was opened first.
      file: its descriptor, if the file that was opened counts, whatever has its name now.
    """
    try:
        current = stamp_of(path if file is None else file)
    except OSError as problem:
        current, reason = None, f"cannot be read any more ({problem.strerror})"
    else:
        reason = "was changed while it was in use"
    if current != stamp:
        raise UserError(f"{os.fspath(path)} {reason}: run the command again.")


def reopen(open_file: Callable[[str], Any], path: str, stamp: Stamp) -> Any:
    """Returns `open_file(path)`, which stays open while it is among the last `MAX_OPEN` used.

    The result is shared by all threads. Nothing closes it explicitly: it must close its file when
    the last reference is gone, which is after a read that another thread is in.

    Args:
      open_file: a function of a module, the same one at each call.
      path: the file.
      stamp: `stamp_of` the file when it was opened first.

    Raises:
      UserError: the file was changed since then.
    """
    key = open_file, path, stamp
    try:  # no lock, which a forked process might inherit locked
        _handles.move_to_end(key)
        return _handles[key]
    except KeyError:  # a context of `suppress` takes longer than all of this
        pass
    found = open_file(path)
    check_unchanged(path, stamp)
    _handles[key] = found
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] % 2**31 // 4  # -1 is no limit
    with contextlib.suppress(KeyError):
        while len(_handles) > min(limit, MAX_OPEN):
            _handles.popitem(last=False)
    return found


def open_reader(path: str) -> Any:
    """Opens an ArrayRecord file for random access."""
    from array_record.python.array_record_module import ArrayRecordReader  # it takes long to import

    return ArrayRecordReader(path, "readahead_buffer_size:0")


class RandomAccessFile:
    """Any part of a file, for any thread and, pickled, for any process of this machine.

    Args:
      path: the file.
      stamp: `stamp_of` the file when its places were looked up; None for now.
    """

    def __init__(self, path: Path, stamp: Stamp | None = None):
        self._path, self._stamp = os.fspath(path), stamp or stamp_of(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return RandomAccessFile, (self._path, self._stamp)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`; fewer at the end of the file.

        Raises:
          UserError: the file was changed since its places were looked up.
        """
        file = reopen(_Descriptor, self._path, self._stamp)
        found = os.pread(file.number, stop - start, start)
        if len(found) < stop - start:  # at the end, or the file was cut
            check_unchanged(self._path, self._stamp, file.number)
        return found


class MappedFile:
    """Tells whether a file that is mapped into memory was cut or written meanwhile.

    Reading a mapped part that the file does not have any more would end the process (SIGBUS). A
    file that another one has replaced by its name stays as it was.

    Args:
      path: the file, before it is mapped.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path, self._file = path, _Descriptor(os.fspath(path))
        self._stamp = stamp_of(self._file.number)

    def check(self) -> None:
        """Raises a UserError if the file was changed since it was opened."""
        check_unchanged(self._path, self._stamp, self._file.number)


class _Descriptor:
    """An open file, closed with the last reference."""

    def __init__(self, path: str):
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if "number" in vars(self):
            os.close(self.number)
