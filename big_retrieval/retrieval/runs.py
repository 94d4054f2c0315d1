"""Conversion of sparse rows to columns in bounded memory: runs on the disk, then a merge.

Rows arrive in document order. When memory is full, the collected rows are written as a run: a CSC
matrix in .npy files. Documents of a run follow the documents of the previous run, so a merged
column is the concatenation of its parts. The merge reads as many columns at a time as fit into
memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from big_retrieval.errors import UserError
from big_retrieval.retrieval.files import open_array

BYTES_PER_ENTRY = 32  # at the peak, when rows become columns or runs are merged
MAX_DOCUMENTS = 2**31 - 1  # document indices are int32
Rows = Any  # sparse.csr_array, whose arrays may be None by scipy's types
Part = tuple[np.ndarray, np.ndarray]  # document indices int32 [n], values float32 [n]


@dataclass(frozen=True)
class Run:
    """Consecutive rows on the disk, as a CSC matrix with one .npy file per array."""

    rows: int
    pointers: Path  # int64 [V + 1], the start of each column and the end of the last one
    documents: Path  # int32 [entries], row indices, ascending within a column
    values: Path | None  # [entries]; None if all values are 1

    def columns(self, start: int, stop: int) -> sparse.csc_array:
        """Reads the columns [rows, stop - start], with values as float32."""
        bounds = np.array(open_array(self.pointers, np.int64)[start : stop + 1])
        entries = slice(int(bounds[0]), int(bounds[-1]))
        documents = open_array(self.documents, np.int32)[entries]
        if self.values is None:
            values = np.ones(len(documents), np.float32)
        else:  # scipy does not support float16
            values = np.asarray(np.load(self.values, mmap_mode="r")[entries], np.float32)
        lists = (values, documents, bounds - bounds[0])
        return sparse.csc_array(lists, shape=(self.rows, stop - start))

    def remove(self) -> None:
        for file in (self.pointers, self.documents, self.values):
            if file is not None:
                file.unlink()


def merged(runs: Sequence[Run], entries: np.ndarray, memory: int) -> Iterator[Part]:
    """Yields the columns of runs in parts, with ascending document indices within a column.

    `entries` counts the values per column in all runs, int64 [V]; `memory` is in bytes.
    """
    ends = np.cumsum(entries)  # [V]
    start = 0
    while start < len(ends):
        before = int(ends[start] - entries[start])
        # All columns that fit, at least one.
        stop = int(np.searchsorted(ends, before + entries_in(memory), "right"))
        stop = max(stop, start + 1)
        columns: Any = sparse.vstack([run.columns(start, stop) for run in runs], format="csc")
        yield columns.indices, columns.data
        start = stop


def entries_in(memory: int) -> int:
    """Returns the number of entries that fit into this many bytes."""
    return max(1, memory // BYTES_PER_ENTRY)


class Runs:
    """Collects rows and yields them by columns, with runs in a folder, which `merge` deletes.

    Args:
      columns: V.
      memory: approximate bytes to use, in addition to a few numbers per column.
    """

    def __init__(self, folder: Path, columns: int, memory: int):
        self._folder, self._columns = folder, columns
        self._memory = memory
        self._held: list[Rows] = []
        self._runs: list[Run] = []
        self.documents = 0
        self.entries = np.zeros(columns, np.int64)

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, rows: Rows) -> None:
        """Adds the next rows, float32 [n, V], after the checks of `checked`; drops zeros."""
        rows = checked(rows, self._columns, self.documents)
        self.documents += rows.shape[0]
        check_count(self.documents)
        while rows.shape[0]:  # batches may be larger than the memory
            room = entries_in(self._memory) - sum(rows_held.nnz for rows_held in self._held)
            # All rows that fit, at least one.
            stop = int(np.searchsorted(rows.indptr, room, "right")) - 1
            if stop < 1 and self._held:
                self.spill()
                continue
            self._held.append(rows[: max(stop, 1)])
            rows = rows[max(stop, 1) :]

    def spill(self) -> None:
        """Writes the rows in memory as a run."""
        if not self._held:
            return
        columns: Any = sparse.vstack(self._held, format="csr", dtype=np.float32).tocsc()
        self._held = []
        arrays = {
            "pointers": columns.indptr.astype(np.int64),
            "documents": columns.indices.astype(np.int32, copy=False),
            "values": columns.data,
        }
        files = {name: self._folder / f"run-{len(self._runs):05}-{name}.npy" for name in arrays}
        for name, file in files.items():
            np.save(file, arrays[name])
        self._runs.append(Run(columns.shape[0], **files))
        self.entries += np.diff(columns.indptr)

    def merge(self) -> Iterator[Part]:
        """Yields all columns as `merged`, and deletes the runs at the end."""
        self.spill()
        yield from merged(self._runs, self.entries, self._memory)
        for run in self._runs:
            run.remove()


def check_count(documents: int) -> None:
    """Raises a UserError if an index cannot hold this many documents."""
    if documents > MAX_DOCUMENTS:
        raise UserError(f"An index holds at most {MAX_DOCUMENTS:,} documents. Build several.")


def checked(rows: Rows, terms: int, first: int, *, noun: str = "document") -> Rows:
    """Converts rows [n, V] to float32 with terms unique and in order, and without zeros.

    Raises a UserError if the number of terms differs, or values are negative or not finite. `first`
    is the index of the first row, for messages.
    """
    if rows.shape[1] != terms:
        raise UserError(
            f"The {noun} {first} has {rows.shape[1]:,} terms, the index {terms:,}. Encode "
            "documents and queries with one model."
        )
    rows = sparse.csr_array(rows, dtype=np.float32)
    wrong = ~((rows.data >= 0) & (rows.data < np.inf))  # also true for NaN
    if wrong.any():
        entry = int(np.argmax(wrong))
        row = first + int(np.searchsorted(rows.indptr, entry, "right")) - 1
        raise UserError(
            f"The {noun} {row} has the value {rows.data[entry]} in term {rows.indices[entry]}. "
            "An inverted index needs finite values of at least 0, as from a lexical head."
        )
    if not rows.has_canonical_format or not rows.data.all():
        rows = rows.copy()
        rows.sum_duplicates()
        rows.eliminate_zeros()
    return rows
