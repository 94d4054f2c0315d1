"""Searches of an inverted index have the bits of a plain loop over the lists of the query."""

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.io import manifest
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index, postings
from tests.helpers import user_error
from tests.retrieval.index_cases import make_inverted

DOCUMENTS, TERMS = 2000, 60
QUERIES = 340  # times three types of values
ROWS = sparse.csr_array(np.float32([[1, 1]] * 8 + [[1, 0]]))


def make_rows(rng: np.random.Generator) -> sparse.csr_array:
    """Documents, many of them equal, with lists of all lengths from 0 to all documents."""
    shares = np.concatenate([[0, 1, 1], np.geomspace(1 / DOCUMENTS, 1, TERMS - 3)])
    values = rng.gamma(2, 0.5, (DOCUMENTS, TERMS)) * (rng.random((DOCUMENTS, TERMS)) < shares)
    values[rng.choice(DOCUMENTS, 300)] = values[7]
    return sparse.csr_array(values.astype(np.float32))


def make_queries(rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Terms and weights: any number of terms, in any order, also twice; weights that make ties."""
    for number in range(QUERIES):
        terms = rng.integers(0, TERMS, 0 if number < 3 else rng.integers(1, 70))
        weights = rng.gamma(2, 0.5, len(terms)).astype(np.float32)
        if number % 4 == 0:
            weights[:] = rng.choice([0, 1, 2])
        if number % 5 == 0:
            terms, weights = terms[:1], weights[:1]
        yield terms, weights


def plain_search(
    columns: sparse.csc_array, terms: np.ndarray, weights: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Adds up the lists in the order of the query, and sorts all documents."""
    scores = np.zeros(columns.shape[0], np.float32)
    for term, weight in zip(terms, weights, strict=True):
        part = slice(columns.indptr[term], columns.indptr[term + 1])
        np.add.at(scores, columns.indices[part], columns.data[part] * weight)
    order = np.lexsort((np.arange(len(scores)), -scores))[:depth]
    order = order[scores[order] > 0]
    return order, scores[order]


@pytest.mark.parametrize("add_list", [postings.add_list, postings.add_with_numpy])
@pytest.mark.parametrize("values", ["float32", "float16", "binary"])
def test_search_equals_plain_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: str, add_list: Callable[..., None]
) -> None:
    monkeypatch.setattr(postings, "add_list", add_list)
    rng = np.random.default_rng(0)
    rows = make_rows(rng)
    if values == "binary":
        rows.data[:] = 1
    index = make_inverted(tmp_path / "index", rows, batch=500, values=values, memory=2**20)
    columns = rows.tocsc()
    columns.data = columns.data.astype("float32" if values == "binary" else values)
    columns.data = columns.data.astype(np.float32)
    assert {0, 1, DOCUMENTS} <= set(np.diff(columns.indptr).tolist())
    for terms, weights in make_queries(rng):
        depth = int(rng.choice([1, 10, 1000, 3000]))
        numbers, scores = index.search_one(terms, weights, depth)
        expected_numbers, expected_scores = plain_search(columns, terms, weights, depth)
        np.testing.assert_array_equal(numbers, expected_numbers)
        np.testing.assert_array_equal(
            scores.view(np.int32), expected_scores.view(np.int32), strict=True
        )


@pytest.mark.parametrize("number", [-1, 9, 2**31 - 1])
@pytest.mark.parametrize("term", [0, 1], ids=["list of all documents", "shorter list"])
def test_search_rejects_document_out_of_range(tmp_path: Path, term: int, number: int) -> None:
    make_inverted(tmp_path / "index", ROWS)
    documents = np.load(tmp_path / "index" / "documents.npy")
    documents[9 * term + 3] = number
    replace(tmp_path / "index", "documents.npy", documents)
    index = open_index(tmp_path / "index")
    for _ in range(2):
        with user_error("is damaged"):
            index.search_one(np.array([1 - term, term]), None, 3)  # type: ignore[union-attr]
    numbers, scores = index.search_one(np.array([1 - term]), None, 3)  # type: ignore[union-attr]
    np.testing.assert_array_equal(numbers, [0, 1, 2])
    np.testing.assert_array_equal(scores, np.ones(3))


@pytest.mark.parametrize("pointers", [[0, 10, 17], [-1, 9, 17], [0, -1, 17], [0, 18, 17]])
def test_open_rejects_pointers_out_of_range(tmp_path: Path, pointers: list[int]) -> None:
    make_inverted(tmp_path / "index", ROWS)
    replace(tmp_path / "index", "pointers.npy", np.array(pointers))
    with user_error("do not fit together"):
        open_index(tmp_path / "index")


def replace(folder: Path, name: str, array: np.ndarray) -> None:
    """Writes another array of an index, with its checksum."""
    np.save(folder / name, array)
    manifest.write_manifest(folder)
    folders.open_folder(folder, verify=True)


def test_scipy_with_other_rounding_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fused(rows, columns, pointers, documents, values, weight, sums):
        sums[documents] = sums[documents] + values.astype(np.float64) * weight

    if platform.machine() == "x86_64":
        assert postings.add_list is postings.add_with_scipy
    row = postings.LOOPS.csr_matvecs
    for loops in (None, SimpleNamespace(csr_matvecs=row, csc_matvec=fused)):
        monkeypatch.setattr(postings, "LOOPS", loops)
        assert not postings.scipy_rounds_twice()
