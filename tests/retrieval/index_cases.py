"""Small indexes and their expected answers, for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.inverted import InvertedIndex, build


def random_rows(rows: int, columns: int, share: float, seed: int) -> sparse.csr_array:
    """Rows with multiples of 1/8 up to 2, so that float32 adds them exactly, in any order."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 17, (rows, columns)) / 8 * (rng.random((rows, columns)) < share)
    return sparse.csr_array(values.astype(np.float32))


def cut(rows: sparse.csr_array, size: int) -> Iterator[sparse.csr_array]:
    """Batches of so many rows."""
    return (rows[start : start + size] for start in range(0, rows.shape[0], size))


def write_ids(partial: Path, count: int) -> None:
    """Writes the ids d0, d1, ... of an index."""
    with StoreWriter(partial, "document") as store:
        store.append({"id": f"d{number}", "shown": f"text {number}"} for number in range(count))


def make_inverted(
    out: Path, rows: sparse.csr_array, *, batch: int = 7, values: str = "float32", memory: int = 1
) -> InvertedIndex:
    """An index of rows with ids d0, d1, ..., built in small batches, by default in many runs."""
    partial = folders.begin(out)
    about = About(kind="inverted", terms=rows.shape[1], values=values)
    about = build(partial, cut(rows, batch), about, memory=memory)
    write_ids(partial, rows.shape[0])
    folders.finish(partial, out, about)
    return InvertedIndex(out, folders.open_folder(out, verify=True))


def expected(
    queries: sparse.csr_array, rows: sparse.csr_array, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """What a search must find, from the whole product by scipy."""
    table = (queries @ rows.T).toarray()
    numbers = np.full((table.shape[0], depth), -1, np.int64)
    scores = np.full((table.shape[0], depth), -np.inf, np.float32)
    for query, row in enumerate(table):
        order = np.lexsort((np.arange(len(row)), -row))[:depth]
        order = order[row[order] > 0]
        numbers[query, : len(order)], scores[query, : len(order)] = order, row[order]
    return numbers, scores
