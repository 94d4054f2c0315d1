"""Inverted indexes return the best documents of the full product, however they were built."""

import mmap
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from big_retrieval.evals import top_k as tops
from big_retrieval.retrieval import inverted, open_index
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.runs import BYTES_PER_ENTRY, Runs
from tests.helpers import user_error
from tests.retrieval.index_cases import (
    assert_equal,
    best_by_product,
    cut,
    make_inverted,
    random_rows,
)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 60),
    columns=st.integers(1, 30),
    share=st.floats(0, 0.7),
    batch=st.integers(1, 70),
    entries=st.integers(1, 300),
    depth=st.integers(1, 70),
    values=st.sampled_from(["float32", "float16"]),
    seed=st.integers(0, 999),
)
def test_search_equals_full_product(
    rows: int, columns: int, share: float, batch: int, entries: int, depth: int, values: str,
    seed: int,
) -> None:  # fmt: skip
    documents = random_rows(rows, columns, share, seed)
    queries = random_rows(5, columns, 0.3, seed + 1)
    with TemporaryDirectory() as folder:
        index = make_inverted(
            Path(folder, "index"), documents, batch=batch, values=values,
            memory=entries * BYTES_PER_ENTRY,
        )  # fmt: skip
        assert_equal(index.search(queries, depth), best_by_product(queries, documents, depth))


def test_search_without_entries(tmp_path: Path) -> None:
    queries = sparse.csr_array(np.eye(3, 4, dtype=np.float32) * [[1], [0], [1]])
    index = make_inverted(tmp_path / "none", sparse.csr_array((9, 4), dtype=np.float32))
    numbers, scores = index.search(queries, 2)
    assert (numbers == -1).all()
    assert (scores == -np.inf).all()
    some = np.zeros((9, 4), np.float32)
    some[[2, 7], 0] = 1
    index = make_inverted(tmp_path / "some", sparse.csr_array(some))
    numbers, _ = index.search(queries, 4)
    np.testing.assert_array_equal(numbers, [[2, 7, -1, -1], [-1] * 4, [-1] * 4])
    assert len(index.search_one(np.empty(0, int), None, 5)[0]) == 0


def test_binary_index_stores_no_values(tmp_path: Path) -> None:
    documents = random_rows(80, 20, 0.3, 3)
    documents.data[:] = 1
    make_inverted(tmp_path / "index", documents, values="binary")
    assert not (tmp_path / "index" / "values.npy").exists()
    documents.data[5] = 2
    with user_error("binary index"):
        make_inverted(tmp_path / "other", documents, values="binary")


def test_float16_index_rounds_values(tmp_path: Path) -> None:
    documents = sparse.csr_array(np.array([[1e-9, 1.0002], [0, 3]], np.float32))
    index = make_inverted(tmp_path / "index", documents, values="float16")
    assert index.about.entries == 2  # 1e-9 becomes 0
    hits = index.search_one(np.array([0, 1]), np.array([1.0, 1.5]), 5)
    assert_equal(hits, (np.array([1, 0]), np.float32([4.5, 1.5])))
    with user_error("Value 210000 is too large for float16"):
        make_inverted(tmp_path / "large", documents * 70_000, values="float16")


def test_build_adds_repeated_columns_of_row(tmp_path: Path) -> None:
    row = sparse.csr_array((np.float32([1, 2, 0]), [3, 3, 1], [0, 3]), shape=(1, 4))
    index = make_inverted(tmp_path / "index", row)
    assert index.about.entries == 1
    assert index.search_one(np.array([3]), None, 1)[1] == 3


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_build_rejects_wrong_value(tmp_path: Path, value: float) -> None:
    rows = np.ones((12, 4), np.float32)
    rows[8, 2] = value
    with user_error(f"document 8 has the value {value} in term 2"):
        make_inverted(tmp_path / "index", sparse.csr_array(rows))


def test_search_rejects_wrong_query(tmp_path: Path) -> None:
    index = make_inverted(tmp_path / "index", sparse.csr_array(np.ones((2, 4), np.float32)))
    with user_error("query 0 has 5 terms, the index 4"):
        index.search(sparse.csr_array(np.ones((1, 5), np.float32)), 3)
    with user_error("query 1 has the value -1"):
        index.search(sparse.csr_array(np.float32([[1, 1, 1, 1], [1, -1, 0, 0]])), 3)
    with user_error("terms 0 to 4, the index 0 to 3"):
        index.search_one(np.array([0, 4]), None, 3)
    for weights in ([1, -1], [1, np.inf], [1, np.nan], [1]):
        with user_error("weights of a query"):
            index.search_one(np.array([0, 1]), np.array(weights), 3)
    with user_error("depth of a search is 0"):
        index.search_one(np.array([0]), None, 0)


def test_explain_returns_parts_of_score(tmp_path: Path) -> None:
    documents = sparse.csr_array(np.float32([[0, 2, 3, 0], [1, 0, 1, 1]]))
    index = make_inverted(tmp_path / "index", documents)
    parts = index.explain(np.array([0, 1, 2]), np.array([1.0, 1.0, 2.0]), 0)
    assert parts == [(2, 6.0), (1, 2.0)]


def test_arrays_are_mapped(tmp_path: Path) -> None:
    make_inverted(tmp_path / "index", random_rows(50, 10, 0.5, 0))
    index = open_index(tmp_path / "index")
    assert isinstance(index, InvertedIndex)
    for array in (index._documents, index._values):
        while isinstance(array, np.ndarray):
            array = array.base
        assert isinstance(array, mmap.mmap)


def test_threads_do_not_share_scores(tmp_path: Path) -> None:
    documents, queries = random_rows(2000, 50, 0.3, 0), random_rows(60, 50, 0.2, 1)
    index = make_inverted(tmp_path / "index", documents, memory=2**20)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: index.search(queries, 9), range(4)))
    for answer in answers:
        assert_equal(answer, best_by_product(queries, documents, 9))


def test_runs_are_merged_in_parts(tmp_path: Path) -> None:
    rows, limit = random_rows(200, 40, 0.3, 5), 100
    runs = Runs(tmp_path, 40, limit * BYTES_PER_ENTRY)
    for batch in cut(rows, 30):
        runs.add(batch)
    runs.spill()
    assert len(runs) > rows.nnz / limit
    documents, values = zip(*runs.merge(), strict=True)
    assert max(map(len, documents)) <= limit
    columns = rows.tocsc()
    np.testing.assert_array_equal(np.concatenate(documents), columns.indices)
    np.testing.assert_array_equal(np.concatenate(values), columns.data)
    assert not list(tmp_path.iterdir())


def test_memory_does_not_grow_with_documents(tmp_path: Path) -> None:
    batch = random_rows(100, 200, 0.3, 6)
    peaks = []
    for times in (20, 80):
        tracemalloc.start()
        runs = Runs(tmp_path, 200, 2**20)
        for _ in range(times):
            runs.add(batch)
        entries = sum(len(numbers) for numbers, _ in runs.merge())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert entries == times * batch.nnz
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < 2 * 2**20
    assert 80 * batch.nnz * 8 > 3 * 2**20  # bytes of all entries


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.integers(0, 6), max_size=400),
    depth=st.integers(1, 50),
    repeats=st.integers(1, 20),
)
def test_top_equals_full_sort(scores: list[int], depth: int, repeats: int) -> None:
    many = np.array(scores * repeats, np.float32)
    order = np.lexsort((np.arange(len(many)), -many))
    order = order[many[order] > 0][:depth]
    assert_equal(tops.top(many, depth), (order, many[order]))
    names = np.random.default_rng(0).permutation(len(many))
    np.testing.assert_array_equal(tops.top(many[names], depth, names)[0], order)


def test_row_equals_indexed_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inverted, "SCANNED", 50)
    rows = random_rows(40, 20, 0.3, 7)
    rows.data[: rows.indptr[1]] = 0  # empties the first document
    rows.eliminate_zeros()
    for values in ("float32", "binary"):
        kept = rows if values == "float32" else rows.astype(bool).astype(np.float32)
        index = make_inverted(tmp_path / values, sparse.csr_array(kept), values=values)
        for number in (0, 1, 17, 39):
            np.testing.assert_array_equal(index.row(number).toarray(), kept[[number]].toarray())
