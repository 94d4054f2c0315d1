"""Rows of sparse matrices turned into columns with bounded memory: spilled runs, then a merge.

Rows come once, in order. So many of them as fit are turned into columns (a counting sort) and
written to a file, a run. As every run holds later documents than the one before, a merged column
is its parts in the runs one behind the other; the merge goes through ranges of columns whose
entries fit into memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError

BYTES_PER_ENTRY = 32  # at the peak: rows, their copy and its columns; or a merge's parts
MOST_DOCUMENTS = 2**31 - 1  # numbers of documents are int32
Rows = Any  # sparse.csr_array, of whose arrays scipy's types say that they may be None
Part = tuple[np.ndarray, np.ndarray]  # numbers of documents int32 [n], values float32 [n]


class Runs:
    """Collects rows and gives them back by columns.

    Args:
      folder: for the runs; `merge` deletes them.
      columns: V.
      memory: bytes to work with, about; besides, a few numbers for every column are held.

    Attributes:
      documents: rows so far.
      entries: int64 [V], values of every column that were spilled so far; all of them after `merge`
        has begun.
    """

    def __init__(self, folder: Path, columns: int, memory: int):
        self._folder, self._columns = folder, columns
        self._limit = max(1, memory // BYTES_PER_ENTRY)
        self._held: list[Rows] = []
        self._room = self._limit
        self._runs: list[_Run] = []
        self.documents = 0
        self.entries = np.zeros(columns, np.int64)

    def __len__(self) -> int:
        """The number of runs on the disk."""
        return len(self._runs)

    def add(self, rows: Rows) -> None:
        """Adds the next rows, float32 [n, V]; zeros in them are dropped.

        Raises:
          UserError: another number of columns, values that are negative or not finite, or too many
            documents.
        """
        rows = checked(rows, self._columns, self.documents)
        self.documents += rows.shape[0]
        if self.documents > MOST_DOCUMENTS:
            raise UserError(f"an index holds {MOST_DOCUMENTS:,} documents at most; make several.")
        start = 0
        while start < rows.shape[0]:  # cut, so that the limit holds whatever the batches are
            end = rows.indptr[start] + self._room
            stop = int(np.searchsorted(rows.indptr, end, "right")) - 1
            if stop <= start and self._held:
                self.spill()
                continue
            stop = min(max(stop, start + 1), rows.shape[0])
            part = rows if stop - start == rows.shape[0] else rows[start:stop]
            self._held.append(part)
            self._room -= part.nnz
            start = stop

    def spill(self) -> None:
        """Writes what is held as a run."""
        if not self._held:
            return
        whole = sparse.vstack(self._held, format="csr", dtype=np.float32)
        self._held, self._room = [], self._limit
        first = sum(run.documents for run in self._runs)
        path = self._folder / f"run-{len(self._runs):05}"
        run = _Run.write(path, whole.tocsc(), first)
        self._runs.append(run)
        self.entries += np.diff(run.pointers(0, self._columns))

    def merge(self) -> Iterator[Part]:
        """Yields the values of all columns, one column behind the other, in parts.

        The numbers of the documents ascend within a column. `entries` says where columns end.
        """
        self.spill()
        for start, stop in self._ranges():
            yield from _merged(self._runs, start, stop)
        for run in self._runs:
            run.path.unlink()

    def _ranges(self) -> Iterator[tuple[int, int]]:
        """Consecutive columns whose entries fit into memory; a single one where it does not."""
        ends = np.cumsum(self.entries)  # [V]
        start, before = 0, 0
        while start < self._columns:
            stop = int(np.searchsorted(ends, before + self._limit, "right"))
            stop = max(stop, start + 1)
            yield start, stop
            start, before = stop, int(ends[stop - 1])


class _Run:
    """The columns of consecutive documents in a file, read by ranges of columns.

    The file holds where columns begin, int64 [V + 1], documents, int32 [n], values, float32 [n].
    """

    def __init__(self, path: Path, documents: int, columns: int, entries: int):
        self.path, self.documents = path, documents
        self._entries, self._begin = entries, 8 * (columns + 1)

    @classmethod
    def write(cls, path: Path, found: Any, first: int) -> "_Run":
        """Writes columns (a `sparse.csc_array`) of documents that are numbered from `first` on."""
        found.indices += first
        with path.open("wb") as file:
            found.indptr.astype(np.int64).tofile(file)
            found.indices.astype(np.int32, copy=False).tofile(file)
            found.data.tofile(file)
        documents, columns = found.shape
        return cls(path, documents, columns, found.nnz)

    def pointers(self, start: int, stop: int) -> np.ndarray:
        """Where columns start .. stop - 1 begin, and where the last one ends: [stop - start + 1]"""
        return np.fromfile(self.path, np.int64, stop - start + 1, offset=8 * start)

    def part(self, first: int, last: int) -> Part:
        """Entries first .. last - 1."""
        place = self._begin + 4 * first
        documents = np.fromfile(self.path, np.int32, last - first, offset=place)
        place += 4 * self._entries
        return documents, np.fromfile(self.path, np.float32, last - first, offset=place)


def _merged(runs: list[_Run], start: int, stop: int) -> Iterator[Part]:
    """The values of columns start .. stop - 1 of all runs, one column behind the other."""
    pointers = [run.pointers(start, stop) for run in runs]  # [stop - start + 1] each
    if stop - start == 1 or len(runs) == 1:  # nothing has to be interleaved
        for run, bounds in zip(runs, pointers, strict=True):
            yield run.part(int(bounds[0]), int(bounds[-1]))
        return
    counts = np.array([np.diff(bounds) for bounds in pointers])  # [runs, columns]
    total = counts.sum(axis=0)  # [columns]
    fill = np.cumsum(total) - total  # where the next part of each column goes
    documents = np.empty(int(total.sum()), np.int32)
    values = np.empty(len(documents), np.float32)
    for run, bounds, count in zip(runs, pointers, counts, strict=True):
        numbers, found = run.part(int(bounds[0]), int(bounds[-1]))
        places = np.repeat(fill - (bounds[:-1] - bounds[0]), count)  # [n]
        places += np.arange(len(places))
        documents[places], values[places] = numbers, found
        fill += count
    yield documents, values


def checked(rows: Rows, columns: int, first: int, *, what: str = "document") -> Rows:
    """Rows as an index holds them: float32, each column once and in order, no zeros.

    Args:
      rows: [n, V].
      columns: V.
      first: the number of the first row, for messages.
      what: a row is, for messages.

    Raises:
      UserError: another number of columns, or values that are negative or not finite.
    """
    if rows.shape[1] != columns:
        raise UserError(
            f"{what} {first} has {rows.shape[1]:,} columns, the index {columns:,}: encode "
            "documents and queries with one model."
        )
    rows = sparse.csr_array(rows, dtype=np.float32)
    wrong = ~((rows.data >= 0) & (rows.data < np.inf))  # NaN too
    if wrong.any():
        place = int(np.argmax(wrong))
        number = first + int(np.searchsorted(rows.indptr, place, "right")) - 1
        raise UserError(
            f"{what} {number} has the value {rows.data[place]} in column {rows.indices[place]}: "
            "an inverted index holds finite values from 0 on, which a lexical head gives."
        )
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
    return rows
