"""A JSON file that is one list of objects, as a table; only the place of each is held in memory."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.formats.plain import JsonLines, RandomAccessFile, json_object
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError

CHUNK = 4 * 2**20  # bytes that are looked at together
QUOTE, BACKSLASH = ord('"'), ord("\\")
DEPTH = np.zeros(256, np.int8)  # what a byte outside of strings adds to the depth
DEPTH[list(b"[{")], DEPTH[list(b"]}")] = 1, -1
MARKS = np.zeros(256, bool)
MARKS[[*b'[]{}"\\']] = True


class JsonArray:
    """The objects of a list; 16 bytes of memory each.

    Args:
      path: the file, UTF-8.

    Raises:
      UserError: it is no list of objects, or cut short.
    """

    columns = None

    def __init__(self, path: Path):
        self._path, self.name = path.absolute(), path.stem
        self._spans = _spans(self._path)
        self._file = RandomAccessFile(self._path)

    def __len__(self) -> int:
        return len(self._spans)

    def place(self, index: int) -> str:
        """The file and the number of the entry, from 1."""
        return f"{self._path}, entry {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """An object."""
        start, stop = self._spans[index].tolist()
        return json_object(self._file.read(start, stop - start), self.place(index))


def json_table(path: Path) -> JsonArray | JsonLines:
    """The objects of a file: one list of them, or one a line, whatever its ending says.

    Raises:
      UserError: a list that is not one of objects.
    """
    with path.open("rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    return JsonArray(path) if start.startswith(b"[") else JsonLines(path)


def _spans(path: Path) -> np.ndarray:
    """Start and end of every object of the list: int64 [n, 2]."""
    starts: list[np.ndarray] = []
    stops: list[np.ndarray] = []
    lists: list[np.ndarray] = []  # where the list starts, and where it ends
    for places, before, behind in _depths(path):
        starts.append(places[(before == 1) & (behind == 2)])
        stops.append(places[(before == 2) & (behind == 1)] + 1)
        lists += [places[(before == 0) & (behind == 1)], places[(before == 1) & (behind == 0)]]
    first, last, ends = (
        np.concatenate([np.zeros(0, np.int64), *each]) for each in (starts, stops, lists)
    )
    if len(ends) != 2 or len(first) != len(last):
        what = "is cut short" if len(ends) < 2 else "is no list of objects: it has several values"
        raise UserError(f"{path} {what}.")
    _check_gaps(path, [0, ends[0] + 1, *last], [ends[0], *first, ends[1]], int(ends[1]) + 1)
    return np.stack([first, last], axis=1)  # [n, 2]


def _check_gaps(path: Path, starts: list[Any], stops: list[Any], end: int) -> None:
    """Raises a UserError where there is something outside of the objects."""
    file = RandomAccessFile(path)
    size = path.stat().st_size
    for start, stop in (*zip(starts, stops, strict=True), (end, size)):
        gap = file.read(int(start), int(stop) - int(start))
        gap = gap.removeprefix(b"\xef\xbb\xbf") if start == 0 else gap
        if gap.strip(b" \t\r\n,"):
            raise UserError(f"{path} is no list of objects: see its byte {int(start):,}.")


def _depths(path: Path) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of every chunk the places of brackets outside of strings, and the depth before and behind.

    Three int64 arrays [k], with places in the file.
    """
    depth = at = 0
    inside = escaped = False  # at the start of the chunk: in a string, behind a backslash
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            here = np.frombuffer(chunk, np.uint8)
            places = np.flatnonzero(MARKS[here])
            places, escaped = _spoken(here, places, escaped)
            quotes = here[places] == QUOTE
            strings = (np.cumsum(quotes) + inside) % 2 == 1
            brackets = ~quotes & ~strings
            steps = DEPTH[here[places[brackets]]].astype(np.int64)
            behind = depth + np.cumsum(steps)
            yield at + places[brackets], behind - steps, behind
            depth = int(behind[-1]) if len(behind) else depth
            inside ^= bool(quotes.sum() % 2)
            at += len(here)


def _spoken(here: np.ndarray, places: np.ndarray, escaped: bool) -> tuple[np.ndarray, bool]:
    """The marks without backslashes and those that one speaks of; whether the next byte is one."""
    kept = here[places] != BACKSLASH
    skipped = 0 if escaped else -1  # the byte that the last backslash speaks of
    lost = [skipped]
    for place in places[~kept].tolist():
        if place != skipped:  # else it is itself spoken of and says nothing
            skipped = place + 1
            lost.append(skipped)
    kept &= ~np.isin(places, np.array(lost))
    return places[kept], skipped == len(here)
