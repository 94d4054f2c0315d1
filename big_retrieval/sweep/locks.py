"""Locks on files of the sweep's folder, which end with the process that holds them."""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """Locks a file without waiting.

    A process that inherits the descriptor holds the lock too, for as long as it lives.

    Args:
      path: made where it is missing.

    Returns:
      The open descriptor, or None where another process holds the lock. On a file system that knows
      no locks it is open, and nothing is held.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EAGAIN, errno.EACCES):
            os.close(descriptor)
            return None
    return descriptor


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for the lock of a file and holds it; where there are no locks, nothing."""
    with path.open("ab") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
