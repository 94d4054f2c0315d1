"""Which record or file every thread is reading now, so that the watchdog can name it.

If a file system hangs, or a decoder never ends, all that can be seen is a process without progress.
So code that reads a record notes the record's place first:

    with reading("pairs.jsonl, line 7"):
        ...

A note costs less than a microsecond. Data workers are processes of their own: each one also
writes its notes into a small file (`publish`), which the process that started the worker reads.
"""

import contextlib
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SLOTS, SLOT = 64, 512  # threads of a worker process that are told apart, and bytes for each
_HEAD = struct.Struct("<dH")  # since when, and the length of the place in bytes
_notes: dict[int, tuple[str, float]] = {}  # thread -> place and start of its innermost note
_board: "_Board | None" = None  # where this process's notes are published, if anywhere
_folders: list[Path] = []  # where the worker processes of this process publish theirs


@dataclass(frozen=True)
class Note:
    """What one thread is reading.

    Attributes:
      place: the record or file, such as `pairs.jsonl, line 7`.
      since: when the thread began to read it, by `time.monotonic()`, which all processes of a
        machine share.
    """

    place: str
    since: float

    @property
    def seconds(self) -> float:
        """For how long the thread has been reading it."""
        return max(0.0, time.monotonic() - self.since)

    def __str__(self) -> str:
        return f"{self.place} (for {self.seconds:.0f} s)"


class reading:
    """A context in which this thread reads something; contexts nest, the innermost one counts.

    Args:
      place: the record or file, for messages.
    """

    __slots__ = ("_outer", "_place", "_thread")

    def __init__(self, place: str):
        self._place = place

    def __enter__(self) -> str:
        self._thread = threading.get_ident()
        self._outer = _notes.get(self._thread)
        _set(self._thread, (self._place, time.monotonic()))
        return self._place

    def __exit__(self, *exc: object) -> None:
        _set(self._thread, self._outer)


def current() -> list[Note]:
    """What the threads of this process and of its workers are reading, the longest first."""
    found = [Note(*each) for each in _notes.copy().values()]
    for folder in [*_folders]:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                found += published(path)
    return sorted(found, key=lambda note: note.since)


@contextlib.contextmanager
def workers() -> Iterator[Path | None]:
    """A folder in which worker processes `publish`; `current` knows their notes meanwhile.

    None where no folder can be made, on a full disk for example: the notes then stay unknown.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix="reading-", ignore_cleanup_errors=True)
    except OSError:
        yield None
        return
    with made as name:
        folder = Path(name)
        _folders.append(folder)
        try:
            yield folder
        finally:
            _folders.remove(folder)


def published(path: Path) -> list[Note]:
    """What the threads of a publishing process are reading, or were reading when it was killed."""
    try:
        return [Note(*each) for each in _published(path.read_bytes())]
    except OSError:
        return []


def publish(path: str | os.PathLike[str]) -> None:
    """From now on writes every note of this process into a file, too.

    The file is mapped into memory, so that its content outlives a process that is killed.

    Args:
      path: the file; it is made anew.

    Raises:
      OSError: the file cannot be written.
    """
    global _board
    _board = _Board(path)


class _Board:
    """A file with a slot for every thread: since when, and what the thread is reading."""

    def __init__(self, path: str | os.PathLike[str]):
        with open(path, "w+b") as file:
            # Written, not only made longer: on a full disk this raises, whereas a first write to
            # a mapped page without room on the disk would kill the process (SIGBUS).
            file.write(bytes(SLOTS * SLOT))
            file.flush()
            self._map = mmap.mmap(file.fileno(), SLOTS * SLOT)
        self._slots: dict[int, int] = {}

    def write(self, thread: int, note: tuple[str, float] | None) -> None:
        """Puts a note into the slot of a thread; None empties the slot."""
        start = self._slots.setdefault(thread, len(self._slots) % SLOTS) * SLOT
        place, since = note or ("", 0.0)
        text = place.encode("utf-8", "replace")[: SLOT - _HEAD.size]
        self._map[start : start + _HEAD.size + len(text)] = _HEAD.pack(since, len(text)) + text


def _set(thread: int, note: tuple[str, float] | None) -> None:
    if note is None:
        _notes.pop(thread, None)
    else:
        _notes[thread] = note
    if _board is not None:
        _board.write(thread, note)


def _published(content: bytes) -> list[tuple[str, float]]:
    """The notes in the content of a published file."""
    found = []
    for start in range(0, len(content) - SLOT + 1, SLOT):
        since, length = _HEAD.unpack_from(content, start)
        text = content[start + _HEAD.size :][:length]
        if length:
            found.append((text.decode("utf-8", "replace"), since))
    return found
