"""Rows of sparse matrices turned into columns with bounded memory: runs on the disk, then a merge.

Rows come once, in order. So many of them as fit become a run, a CSC matrix in .npy files. As every
run holds later documents than the one before, a merged column is its parts in the runs one behind
the other; the merge goes through ranges of columns whose entries fit into memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError
from big_retrieval.retrieval.files import open_array

BYTES_PER_ENTRY = 32  # at the peak: rows, their copy and its columns; or a merge and its parts
MOST_DOCUMENTS = 2**31 - 1  # numbers of documents are int32
Rows = Any  # sparse.csr_array, of whose arrays scipy's types say that they may be None
Part = tuple[np.ndarray, np.ndarray]  # numbers of documents int32 [n], values float32 [n]


@dataclass(frozen=True)
class Run:
    """Consecutive rows, by columns, on the disk: a CSC matrix, an .npy file for each array.

    Attributes:
      rows: how many.
      pointers: file of int64 [V + 1]: where each column begins, and where the last one ends.
      documents: file of int32 [entries], numbers of rows from 0 on, ascending within a column.
      values: file of [entries]; None: all values are 1.
    """

    rows: int
    pointers: Path
    documents: Path
    values: Path | None

    def columns(self, start: int, stop: int) -> sparse.csc_array:
        """Columns start .. stop - 1, [rows, stop - start], their values as float32."""
        bounds = np.array(open_array(self.pointers, np.int64)[start : stop + 1])
        part = slice(int(bounds[0]), int(bounds[-1]))
        documents = open_array(self.documents, np.int32)[part]
        if self.values is None:
            values = np.ones(len(documents), np.float32)
        else:  # scipy knows no float16
            values = np.asarray(np.load(self.values, mmap_mode="r")[part], np.float32)
        lists = (values, documents, bounds - bounds[0])
        return sparse.csc_array(lists, shape=(self.rows, stop - start))

    def remove(self) -> None:
        """Removes the files."""
        for file in (self.pointers, self.documents, self.values):
            if file is not None:
                file.unlink()


def merged(runs: Sequence[Run], entries: np.ndarray, memory: int) -> Iterator[Part]:
    """Yields the values of all columns of some runs, one column behind the other, in parts.

    The numbers of the documents ascend within a column; those of a run go on where those of the run
    before end.

    Args:
      runs: in the order of their rows.
      entries: int64 [V], values of every column in all runs.
      memory: bytes to work with, about.
    """
    ends = np.cumsum(entries)  # [V]
    start = 0
    while start < len(ends):
        before = int(ends[start] - entries[start])
        # As many columns as have no more entries together than fit.
        stop = int(np.searchsorted(ends, before + entries_in(memory), "right"))
        stop = max(stop, start + 1)  # a column alone where it does not fit
        found: Any = sparse.vstack([run.columns(start, stop) for run in runs], format="csc")
        yield found.indices, found.data
        start = stop


def entries_in(memory: int) -> int:
    """How many entries may be held in so many bytes."""
    return max(1, memory // BYTES_PER_ENTRY)


class Runs:
    """Collects rows and gives them back by columns.

    Args:
      folder: for the runs; `merge` deletes them.
      columns: V.
      memory: bytes to work with, about; besides, a few numbers for every column are held.

    Attributes:
      documents: rows so far.
      entries: int64 [V], values of every column in all runs; all of them after `spill`.
    """

    def __init__(self, folder: Path, columns: int, memory: int):
        self._folder, self._columns = folder, columns
        self._memory = memory
        self._held: list[Rows] = []
        self._runs: list[Run] = []
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
        check_number(self.documents)
        while rows.shape[0]:  # cut, so that the limit holds whatever the batches are
            room = entries_in(self._memory) - sum(part.nnz for part in self._held)
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
        arrays = {
            "pointers": found.indptr.astype(np.int64),
            "documents": found.indices.astype(np.int32, copy=False),
            "values": found.data,
        }
        files = {name: self._folder / f"run-{len(self._runs):05}-{name}.npy" for name in arrays}
        for name, file in files.items():
            np.save(file, arrays[name])
        self._runs.append(Run(found.shape[0], **files))
        self.entries += np.diff(found.indptr)

    def merge(self) -> Iterator[Part]:
        """Yields what `merged` does, and deletes the runs at the end."""
        self.spill()
        yield from merged(self._runs, self.entries, self._memory)
        for run in self._runs:
            run.remove()


def check_number(documents: int) -> None:
    """Raises a UserError where an index cannot hold so many documents."""
    if documents > MOST_DOCUMENTS:
        raise UserError(f"an index holds {MOST_DOCUMENTS:,} documents at most; make several.")


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
