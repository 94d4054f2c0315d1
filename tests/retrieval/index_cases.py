"""Small indexes and their expected answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import sparse

from big_retrieval.config.topologies import topology_part
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.retrieval import dense, open_index
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.folder import About
from big_retrieval.retrieval.inverted import InvertedIndex, build

Hits = tuple[np.ndarray, np.ndarray]  # documents and scores, [q, depth] each


def random_rows(rows: int, columns: int, share: float, seed: int) -> sparse.csr_array:
    """Rows with multiples of 1/8 up to 2, which float32 adds exactly in any order."""
    rng = np.random.default_rng(seed)
    values = rng.integers(1, 17, (rows, columns)) / 8 * (rng.random((rows, columns)) < share)
    return sparse.csr_array(values.astype(np.float32))


def embeddings(rows: int, topology: str, seed: int) -> np.ndarray:
    raw = np.random.default_rng(seed).standard_normal((rows, 3, 4)).astype(np.float32)
    return np.array(topology_part(topology).project(raw))


def cut(rows: sparse.csr_array, size: int) -> Iterator[sparse.csr_array]:
    return (rows[start : start + size] for start in range(0, rows.shape[0], size))


def write_ids(partial: Path, count: int) -> None:
    """Writes the ids d0, d1, ... of an index."""
    with StoreWriter(partial, "document") as store:
        store.append({"id": f"d{number}", "shown": f"text {number}"} for number in range(count))


def make_inverted(
    out: Path, rows: sparse.csr_array, *, batch: int = 7, values: str = "float32", memory: int = 1
) -> InvertedIndex:
    """Builds an index in small batches, by default with many runs on the disk."""
    partial = folders.begin(out)
    about = About(kind="inverted", terms=rows.shape[1], values=values)
    about = build(partial, cut(rows, batch), about, memory=memory)
    write_ids(partial, rows.shape[0])
    folders.finish(partial, out, about)
    return InvertedIndex(out, folders.open_folder(out, verify=True))


def make_dense(out: Path, rows: np.ndarray, topology: str) -> DenseIndex:
    partial = folders.begin(out)
    batches = (rows[start : start + 300] for start in range(0, len(rows), 300))
    about = dense.build(partial, batches, About(kind="dense", topology=topology))
    write_ids(partial, len(rows))
    folders.finish(partial, out, about)
    index = open_index(out, verify=True)
    assert isinstance(index, DenseIndex)
    return index


def best_by_product(queries: sparse.csr_array, rows: sparse.csr_array, depth: int) -> Hits:
    """Searches in the full product by scipy."""
    table = (queries @ rows.T).toarray()
    numbers = np.full((table.shape[0], depth), -1, np.int64)
    scores = np.full((table.shape[0], depth), -np.inf, np.float32)
    for query, row in enumerate(table):
        order = np.lexsort((np.arange(len(row)), -row))[:depth]
        order = order[row[order] > 0]
        numbers[query, : len(order)], scores[query, : len(order)] = order, row[order]
    return numbers, scores


def assert_equal(hits: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(hits[0], expected[0])
    np.testing.assert_array_equal(hits[1], expected[1])
