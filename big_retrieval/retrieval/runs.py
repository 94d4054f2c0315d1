"""Rows of sparse matrices turned into columns with bounded memory: runs on the disk, then a merge.

Rows come once, in order. So many of them as fit become a run, a CSC matrix in .npy files. As every
run holds later documents than the one before, a merged column is its parts in the runs one behind
the other; the merge goes through ranges of columns whose entries fit into memory.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError

BYTES_PER_ENTRY = 32  # at the peak: rows, their copy and its columns; or a merge and its parts
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
      entries: int64 [V], values of every column in all runs; all of them after `merge` has begun.
    """

    def __init__(self, folder: Path, columns: int, memory: int):
        self._folder, self._columns = folder, columns
        self._limit = max(1, memory // BYTES_PER_ENTRY)
        self._held: list[Rows] = []
        self._runs: list[tuple[int, list[Path]]] = []  # documents and files of each
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
        while rows.shape[0]:  # cut, so that the limit holds whatever the batches are
            room = self._limit - sum(part.nnz for part in self._held)
            # As many rows as have no more entries than there is room for; one row in any case.
            stop = int(np.searchsorted(rows.indptr, room, "right")) - 1
            if stop < 1 and self._held:
                self.spill()
                continue
            self._held.append(rows[: max(stop, 1)])
            rows = rows[max(stop, 1) :]

    def spill(self) -> None:
        """Writes what is held as a run."""
        if not self._held:
            return
        found: Any = sparse.vstack(self._held, format="csr", dtype=np.float32).tocsc()
        self._held = []
        name = f"run-{len(self._runs):05}"
        files = [self._folder / f"{name}-{part}.npy" for part in ("data", "indices", "indptr")]
        for file, array in zip(files, (found.data, found.indices, found.indptr), strict=True):
            np.save(file, array)
        self._runs.append((found.shape[0], files))
        self.entries += np.diff(found.indptr)

    def merge(self) -> Iterator[Part]:
        """Yields the values of all columns, one column behind the other, in parts.

        The numbers of the documents ascend within a column. `entries` says where columns end.
        """
        self.spill()
        ends = np.cumsum(self.entries)  # [V]
        start = 0
        while start < self._columns:
            before = int(ends[start] - self.entries[start])
            # As many columns as have no more entries together than fit.
            stop = int(np.searchsorted(ends, before + self._limit, "right"))
            stop = max(stop, start + 1)  # a column alone where it does not fit
            found: Any = sparse.vstack([*self._columns_of_runs(start, stop)], format="csc")
            yield found.indices, found.data
            start = stop
        for _, files in self._runs:
            for file in files:
                file.unlink()

    def _columns_of_runs(self, start: int, stop: int) -> Iterator[sparse.csc_array]:
        """Columns start .. stop - 1 of each run, [documents, stop - start]."""
        for documents, files in self._runs:
            data, indices, indptr = (np.load(file, mmap_mode="r") for file in files)
            bounds = np.array(indptr[start : stop + 1])
            part = slice(int(bounds[0]), int(bounds[-1]))
            lists = (data[part], indices[part], bounds - bounds[0])
            yield sparse.csc_array(lists, shape=(documents, stop - start))


def checked(rows: Rows, terms: int, first: int, *, what: str = "document") -> Rows:
    """Rows as an index holds them: float32, each term once and in order, no zeros.

    Args:
      rows: [n, V].
      terms: V.
      first: the number of the first row, for messages.
      what: a row is, for messages.

    Raises:
      UserError: another number of terms, or values that are negative or not finite.
    """
    if rows.shape[1] != terms:
        raise UserError(
            f"{what} {first} has {rows.shape[1]:,} terms, the index {terms:,}: encode "
            "documents and queries with one model."
        )
    rows = sparse.csr_array(rows, dtype=np.float32)
    wrong = ~((rows.data >= 0) & (rows.data < np.inf))  # NaN too
    if wrong.any():
        place = int(np.argmax(wrong))
        # The row that holds this entry.
        number = first + int(np.searchsorted(rows.indptr, place, "right")) - 1
        raise UserError(
            f"{what} {number} has the value {rows.data[place]} in term {rows.indices[place]}: "
            "an inverted index holds finite values from 0 on, which a lexical head gives."
        )
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
    return rows
