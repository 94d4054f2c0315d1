"""Ranks and best documents against plain loops: positives, ties, NaN, chunks and devices."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.config.topologies import topology_part
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import DocumentScorer, Ranks, _ranker, best_of, ranks
from big_retrieval.evals.retrieval import summarise
from tests.evals.bound import PresetEncoder

QUERIES, DOCUMENTS = 11, 6
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])
ENCODERS = {devices: PresetEncoder(devices) for devices in (1, 8)}


def look_up(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """Scores of queries embedded as rows of scores, and documents embedded as column indices."""
    return queries[:, documents[:, 0, 0].astype(int), 0]


def ranked(
    scores: np.ndarray,
    query_ids: np.ndarray,
    document_ids: np.ndarray,
    *,
    chunk: int,
    devices: int,
    further: np.ndarray | None = None,
) -> Ranks:
    """`ranks` on a table of scores [Q, D]."""
    columns = np.zeros((scores.shape[1], scores.shape[1], 1), np.float32)  # [D, D, 1]
    columns[:, 0, 0] = np.arange(scores.shape[1])
    matrix = None
    if further is not None:
        row, column = np.nonzero(further >= 0)[0], further[further >= 0]
        matrix = scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=scores.shape)
    positives = Positives(query_ids, document_ids, matrix)
    options: Any = {"score": look_up, "encoder": ENCODERS[devices], "chunk": chunk}
    return ranks(scores[..., None].astype(np.float32), columns, positives, **options)


def plain(
    scores: np.ndarray,
    query_ids: np.ndarray,
    document_ids: np.ndarray,
    further: np.ndarray | None = None,
) -> tuple[list[int], list[float], list[float]]:
    """Ranks, R-precisions and nDCG@10 by one loop over all pairs."""
    best_ranks, precisions, ndcgs = [], [], []
    for index, (row, query) in enumerate(zip(scores, query_ids, strict=True)):
        more = () if further is None else further[index]
        mask = [d == query or column in more for column, d in enumerate(document_ids)]
        positives = [s for s, yes in zip(row, mask, strict=True) if yes]
        negatives = [s for s, yes in zip(row, mask, strict=True) if not yes]
        best = max(positives, default=-np.inf) if not np.isnan(positives).any() else np.nan
        best_ranks.append(1 + sum(1 for s in negatives if not s < best))
        keys = sorted(
            (-(s if s == s else -np.inf if yes else np.inf), yes)
            for s, yes in zip(row, mask, strict=True)
        )  # negatives come first among equal scores; a NaN counts against the positives
        precisions.append(sum(yes for _, yes in keys[: len(positives)]) / max(len(positives), 1))
        discounts = 1 / np.log2(np.arange(2, 12))
        gains = np.array([yes for _, yes in keys[:10]])
        ideal = discounts[: len(positives)].sum()
        ndcgs.append((gains * discounts[: len(gains)]).sum() / ideal if positives else 0.0)
    return best_ranks, precisions, ndcgs


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(VALUES, min_size=QUERIES * DOCUMENTS, max_size=QUERIES * DOCUMENTS),
    owners=st.lists(st.integers(0, 3), min_size=DOCUMENTS, max_size=DOCUMENTS),
    further=st.lists(st.integers(-1, DOCUMENTS - 1), min_size=QUERIES * 2, max_size=QUERIES * 2),
    chunk=st.sampled_from([1, 3, 16]),
    devices=st.sampled_from([1, 8]),
)
def test_ranks_equal_a_plain_loop(
    scores: list[float], owners: list[int], further: list[int], chunk: int, devices: int
) -> None:
    table = np.reshape(scores, (QUERIES, DOCUMENTS))
    ids, document_ids = np.arange(QUERIES) % 4, np.asarray(owners)
    more = None if further[0] < 0 else np.reshape(further, (QUERIES, 2))
    found = ranked(table, ids, document_ids, chunk=chunk, devices=devices, further=more)
    assert found.best.dtype == np.int64
    best, precision, ndcg = plain(table, ids, document_ids, more)
    assert (found.best.tolist(), found.precision.tolist()) == (best, precision)
    np.testing.assert_allclose(found.ndcg, ndcg, rtol=1e-12)


def test_ranks_by_hand() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, np.nan, 1.0]])
    ids, owners = np.array([0, 1, 0, 0]), np.array([0, 1, 0])
    # Best of two positives; last; a tie with a negative; a negative with NaN.
    found = ranked(scores, ids, owners, chunk=4, devices=1)
    assert found.best.tolist() == [1, 3, 2, 2]
    assert found.precision.tolist() == [1, 0, 0.5, 0.5]


def test_summarise_computes_metrics() -> None:
    five = Ranks(np.array([1, 2, 2, 5, 30]), np.arange(5) / 4, np.arange(5) / 8, np.ones(5, bool))
    assert summarise(five, (1, 2, 10)) == pytest.approx({
        "R@1": 0.2, "R@2": 0.6, "R@10": 0.8, "R-precision": 0.5, "MRR@10": 0.44, "nDCG@10": 0.25,
        "mean_rank": 8, "median_rank": 2,
    })  # fmt: skip
    two = Ranks(np.array([2, 5]), *np.zeros((2, 2)), np.ones(2, bool))
    assert summarise(two, ())["median_rank"] == 3  # not 3.5


def test_query_without_a_positive_has_no_recall() -> None:
    found = ranked(np.eye(2), np.array([0, 7]), np.arange(2), chunk=2, devices=1)
    assert found.best.tolist() == [1, 3]
    summary = summarise(found, (1, 10))
    assert summary["R@10"] == summary["MRR@10"] == summary["R@1"] == 0.5


def test_ranks_do_not_sort_all_documents() -> None:
    score = topology_part("sphere").score
    for width in (4, 16):
        sizes: Any = ((4, 1, 8), np.float32), ((4, width), np.int32), ((500, 1, 8), np.float32)
        shapes = [jax.ShapeDtypeStruct(*size) for size in sizes]
        program = str(jax.jit(_ranker(score)).lower(*shapes).compile().as_text())
        assert program.count('custom_call_target="TopK"') == 2
        assert " sort(" not in program


@pytest.mark.parametrize("depth", [1, 7, 40])
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_best_equals_a_plain_sort(depth: int, graded: bool, sparse: bool) -> None:
    rng = np.random.default_rng(depth)
    documents = rng.integers(-2, 3, (40, 1, 2)).astype(np.float32)  # with ties
    queries = rng.integers(-2, 3, (11, 1, 2)).astype(np.float32)
    queries[3], documents[5] = 0, 0 if sparse else np.nan
    relevance = rng.integers(0, 3, (11, 40))
    score = topology_part("inner").score
    a, b = (scipy.sparse.csr_array(x[:, 0]) if sparse else x for x in (queries, documents))
    scorer = DocumentScorer(b, score=score, encoder=ENCODERS[8], chunk=4)
    of_query = (lambda query: relevance[query]) if graded else None
    found, scores = scorer.best(a, depth, of_query)
    table = queries[:, 0] @ documents[:, 0].T
    table[np.isnan(table)] = -np.inf
    second = relevance if graded else np.tile(np.arange(40), (11, 1))
    expected = np.lexsort((second, -table), axis=1)[:, :depth]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(table, expected, 1))


def test_best_does_not_sort_all_documents() -> None:
    score = topology_part("sphere").score
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((4, 1, 8), (4,), (500, 1, 8))]
    program = jax.jit(best_of(score, 10)).lower(*shapes).compile().as_text()
    assert "TopK" in program
    assert " sort(" not in program


def test_best_orders_ties_by_the_recomputed_scores() -> None:
    """The rounding of scores may depend on the number of queries."""
    documents = np.linspace(0, 1, 30, dtype=np.float32).repeat(2)[:, None, None]  # pairs are equal

    def score(queries: jax.Array, documents: jax.Array) -> jax.Array:
        return queries[:, 0] @ documents[:, 0].T * (1 + 1e-6 * len(queries))

    scorer = DocumentScorer(documents, score=score, encoder=ENCODERS[1], chunk=8)
    queries = np.ones((9, 1, 1), np.float32)
    queries[1:8] = -1
    found, _ = scorer.best(queries, 5, lambda query: np.arange(60))
    assert found[8].tolist() == [58, 59, 56, 57, 54]
