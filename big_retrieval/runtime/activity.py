"""Activity of this process, for the watchdog: finished work, and the records being read.

All processes of a run count the same work, so the others wait for the process with the lowest
count. Code that reads a record notes it, in case that a file system or a decoder hangs:

    with reading("pairs.jsonl, line 7"):
        ...

A count or a note costs less than a microsecond. Data workers also write their notes into a small
file (`publish`), which the process that started the worker reads.
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
from typing import NamedTuple

SLOTS, SLOT = 64, 512  # maximum number of threads in a published file, and bytes of each
_HEAD = struct.Struct("<dH")  # start time, and bytes of the place
_notes: dict[int, "Note"] = {}  # thread -> its innermost note
_board: "_Board | None" = None  # file that this process publishes its notes in
_folders: list[Path] = []  # folders that the worker processes of this process publish in


@dataclass
class Progress:
    """Finished work of this process."""

    beats: int = 0  # number of finished pieces of work: training steps and encoded batches
    step: int = 0  # the last training step


PROGRESS = Progress()


def beat(step: int | None = None) -> None:
    """Counts a training step, or an encoded batch if `step` is None."""
    if step is not None:
        PROGRESS.step = step
    PROGRESS.beats += 1


def reset() -> None:
    """Sets the counts to 0, for a new run in this process."""
    PROGRESS.beats = PROGRESS.step = 0


class Note(NamedTuple):
    """Record or file that one thread reads; `since` is the start by `time.monotonic()`."""

    place: str
    since: float

    @property
    def seconds(self) -> float:
        """Seconds since the thread began to read."""
        return max(0.0, time.monotonic() - self.since)

    def __str__(self) -> str:
        return f"{self.place} (for {self.seconds:.0f} s)"


class reading:
    """A context that notes that this thread reads `place`; the innermost context counts."""

    __slots__ = ("_outer", "_place", "_thread")

    def __init__(self, place: str):
        self._place = place

    def __enter__(self) -> str:
        self._thread = threading.get_ident()
        self._outer = _notes.get(self._thread)
        _set(self._thread, Note(self._place, time.monotonic()))
        return self._place

    def __exit__(self, *exc: object) -> None:
        _set(self._thread, self._outer)


def current() -> list[Note]:
    """Returns the notes of this process and of its workers, oldest first."""
    notes = [*_notes.copy().values()]
    for folder in [*_folders]:
        with contextlib.suppress(OSError):
            for path in folder.iterdir():
                notes += read_notes(path)
    return sorted(notes, key=lambda note: note.since)


@contextlib.contextmanager
def workers() -> Iterator[Path | None]:
    """Opens a folder in which worker processes `publish`; None if it cannot be created."""
    try:
        made = tempfile.TemporaryDirectory(prefix="reading-", ignore_cleanup_errors=True)
    except OSError:  # such as a full disk; the notes of workers then stay unknown
        yield None
        return
    with made as name:
        folder = Path(name)
        _folders.append(folder)
        try:
            yield folder
        finally:
            _folders.remove(folder)


def publish(path: str | os.PathLike[str]) -> None:
    """Writes all notes from now on also into a new file, which remains if the process is killed."""
    global _board
    _board = _Board(path)


def read_notes(path: Path) -> list[Note]:
    """Returns the notes of a process that publishes, or published until it was killed."""
    try:
        content = path.read_bytes()
    except OSError:
        return []
    notes = []
    for start in range(0, len(content) - SLOT + 1, SLOT):
        since, length = _HEAD.unpack_from(content, start)
        if length:
            place = content[start + _HEAD.size :][:length].decode("utf-8", "replace")
            notes.append(Note(place, since))
    return notes


class _Board:
    """File with a slot for every thread, mapped into memory."""

    def __init__(self, path: str | os.PathLike[str]):
        with open(path, "w+b") as file:
            # Written, not only made longer: on a full disk this raises, whereas a first write to
            # a mapped page without room on the disk would kill the process (SIGBUS).
            file.write(bytes(SLOTS * SLOT))
            file.flush()
            self._map = mmap.mmap(file.fileno(), SLOTS * SLOT)
        self._slots: dict[int, int] = {}

    def write(self, thread: int, note: Note | None) -> None:
        start = self._slots.setdefault(thread, len(self._slots) % SLOTS) * SLOT
        place, since = note or ("", 0.0)
        text = place.encode("utf-8", "replace")[: SLOT - _HEAD.size]
        self._map[start : start + _HEAD.size + len(text)] = _HEAD.pack(since, len(text)) + text


def _set(thread: int, note: Note | None) -> None:
    if note is None:
        _notes.pop(thread, None)
    else:
        _notes[thread] = note
    if _board is not None:
        _board.write(thread, note)
