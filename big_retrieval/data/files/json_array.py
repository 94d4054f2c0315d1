"""A JSON file that is one list of objects, as a table; only the place of each is held in memory."""

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.files.plain import JsonLines, Parts
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError

CHUNK = 4 * 2**20  # bytes that are looked at together
QUOTE, BACKSLASH = ord('"'), ord("\\")
DEPTH = np.zeros(256, np.int8)  # what a byte outside of strings adds to the depth
DEPTH[list(b"[{")], DEPTH[list(b"]}")] = 1, -1
BETWEEN = np.zeros(256, bool)  # what may stand between the objects of the list
BETWEEN[list(b" \t\r\n,")] = True


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
        self._file = Parts(self._path)

    def __len__(self) -> int:
        return len(self._spans)

    def place(self, index: int) -> str:
        """The file and the number of the entry, from 1."""
        return f"{self._path}, entry {index + 1}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """An object."""
        start, stop = self._spans[index].tolist()
        try:
            row = json.loads(self._file.read(start, stop - start).decode("utf-8", "replace"))
        except ValueError as problem:
            raise Damaged(self.place(index), f"not JSON ({problem})") from None
        except RecursionError:
            raise Damaged(self.place(index), "JSON that is nested too deeply") from None
        if not isinstance(row, dict):
            raise Damaged(self.place(index), "not a JSON object with keys")
        return row


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
    depth = lists = 0
    for at, here, depths in _depths(path):
        before = np.concatenate([[depth], depths[:-1]])
        depth = int(depths[-1])
        opens = (before == 1) & (depths == 2)
        closes = (before == 2) & (depths == 1)
        odd = (before == 1) & (depths == 1) & ~BETWEEN[here]
        odd |= (before == 0) & (depths == 0) & ~BETWEEN[here]
        odd[: 3 if at == 0 and bytes(here[:3]) == b"\xef\xbb\xbf" else 0] = False
        lists += int(((before == 0) & (depths == 1)).sum())
        if odd.any() or (depths < 0).any():
            where = at + int(np.argmax(odd | (depths < 0)))
            raise UserError(f"{path} is no list of objects: see its byte {where:,}.")
        starts.append(at + np.flatnonzero(opens))
        stops.append(at + np.flatnonzero(closes) + 1)
    found = [np.concatenate([np.zeros(0, np.int64), *each]) for each in (starts, stops)]
    if lists != 1:
        raise UserError(f"{path} is no list of objects: it has {lists} values.")
    if depth or len(found[0]) != len(found[1]):
        raise UserError(f"{path} is cut short: its list does not end.")
    return np.stack(found, axis=1)  # [n, 2]


def _depths(path: Path) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Of every chunk its start, its bytes [k], and behind each byte how deep it is nested [k]."""
    depth = at = 0
    inside = escaped = False  # at the start of the chunk: in a string, behind a backslash
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            here = np.frombuffer(chunk, np.uint8)
            quotes, escaped = _quotes(here, escaped)
            strings = (np.cumsum(quotes) + inside) % 2 == 1  # a string's end is not in it
            steps = np.where(strings | quotes, 0, DEPTH[here])
            depths = depth + np.cumsum(steps, dtype=np.int64)
            yield at, here, depths
            depth, inside, at = int(depths[-1]), bool(strings[-1]), at + len(here)


def _quotes(here: np.ndarray, escaped: bool) -> tuple[np.ndarray, bool]:
    """Which bytes are quotes without a backslash, bool [k]; whether the next one would have one."""
    quotes: Any = here == QUOTE
    skipped = 0 if escaped else -1  # the byte that the last backslash speaks of
    quotes[: skipped + 1] = False
    for place in np.flatnonzero(here == BACKSLASH).tolist():
        if place == skipped:
            continue  # itself spoken of: it says nothing
        skipped = place + 1
        quotes[skipped : skipped + 1] = False
    return quotes, skipped == len(here)
