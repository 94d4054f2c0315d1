"""Ranks against a plain loop: several right documents, ties, NaN, chunks and devices."""

from typing import Any

import jax
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import parallel
from big_retrieval.config.topologies import topology_part
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import Ranks, _ranker, ranks
from big_retrieval.evals.retrieval import summarise
from big_retrieval.inference.encoder import Encoder
from tests.helpers import tiny

QUERIES, DOCUMENTS = 11, 6
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])


def encoder(devices: int) -> Encoder:
    """An encoder that only ranks."""
    mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
    return Encoder(None, mesh, 8)  # type: ignore


ENCODERS = {devices: encoder(devices) for devices in (1, 8)}


def look_up(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """A query's embedding is its row of scores, a document's its place in there."""
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
    places = np.zeros((scores.shape[1], scores.shape[1], 1), np.float32)  # [D, D, 1]
    places[:, 0, 0] = np.arange(scores.shape[1])
    also = None
    if further is not None:
        row, column = np.nonzero(further >= 0)[0], further[further >= 0]
        also = scipy.sparse.csr_array((np.ones(len(row)), (row, column)), shape=scores.shape)
    positives = Positives(query_ids, document_ids, also)
    return ranks(
        scores[..., None].astype(np.float32), places, positives,
        score=look_up, encoder=ENCODERS[devices], chunk=chunk,
    )  # fmt: skip


def plain(
    scores: np.ndarray,
    query_ids: np.ndarray,
    document_ids: np.ndarray,
    further: np.ndarray | None = None,
) -> tuple[list[int], list[float], list[float]]:
    """The same by one loop over all pairs: ranks, R-precisions and nDCG@10."""
    found, precisions, ndcgs = [], [], []
    for number, (row, query) in enumerate(zip(scores, query_ids, strict=True)):
        also = () if further is None else further[number]
        is_right = [d == query or place in also for place, d in enumerate(document_ids)]
        right = [s for s, yes in zip(row, is_right, strict=True) if yes]
        wrong = [s for s, yes in zip(row, is_right, strict=True) if not yes]
        best = max(right, default=-np.inf) if not np.isnan(right).any() else np.nan
        found.append(1 + sum(1 for s in wrong if not s < best))
        keys = [
            (-(s if s == s else -np.inf if yes else np.inf), yes)
            for s, yes in zip(row, is_right, strict=True)
        ]  # a wrong document comes first of equal ones, and one without a number
        first = [yes for _, yes in sorted(keys)[: len(right)]]
        precisions.append(sum(first) / max(len(right), 1))
        discounts = 1 / np.log2(np.arange(2, 12))
        gains = np.array([yes for _, yes in sorted(keys)[:10]])
        ideal = discounts[: len(right)].sum()
        ndcgs.append((gains * discounts[: len(gains)]).sum() / ideal if right else 0.0)
    return found, precisions, ndcgs


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(VALUES, min_size=QUERIES * DOCUMENTS, max_size=QUERIES * DOCUMENTS),
    owners=st.lists(st.integers(0, 3), min_size=DOCUMENTS, max_size=DOCUMENTS),
    further=st.lists(st.integers(-1, DOCUMENTS - 1), min_size=QUERIES * 2, max_size=QUERIES * 2),
    chunk=st.sampled_from([1, 3, 16]),
    devices=st.sampled_from([1, 8]),
)
def test_ranks_are_those_of_a_plain_loop(
    scores: list[float], owners: list[int], further: list[int], chunk: int, devices: int
) -> None:
    table = np.reshape(scores, (QUERIES, DOCUMENTS))
    ids, owned = np.arange(QUERIES) % 4, np.asarray(owners)
    also = None if further[0] < 0 else np.reshape(further, (QUERIES, 2))
    found = ranked(table, ids, owned, chunk=chunk, devices=devices, further=also)
    assert found.best.dtype == np.int64
    best, precision, ndcg = plain(table, ids, owned, also)
    assert (found.best.tolist(), found.precision.tolist()) == (best, precision)
    np.testing.assert_allclose(found.ndcg, ndcg, rtol=1e-12)


def test_a_hand_made_table() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, np.nan, 1.0]])
    ids, owners = np.array([0, 1, 0, 0]), np.array([0, 1, 0])
    # Best of two right ones; last; a tie with the wrong one; a wrong one without a number.
    found = ranked(scores, ids, owners, chunk=4, devices=1)
    assert found.best.tolist() == [1, 3, 2, 2]
    assert found.precision.tolist() == [1, 0, 0.5, 0.5]


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_scoring_everything_alike_is_no_better_than_chance(value: float) -> None:
    ids = np.arange(DOCUMENTS)
    found = ranked(np.full((DOCUMENTS, DOCUMENTS), value), ids, ids, chunk=4, devices=8)
    for k in range(1, DOCUMENTS):
        assert summarise(found, (k,))[f"R@{k}"] <= k / DOCUMENTS


def test_summary() -> None:
    found = summarise(
        Ranks(np.array([1, 2, 2, 5, 30]), np.arange(5) / 4, np.arange(5) / 8, np.ones(5, bool)),
        (1, 2, 10),
    )
    assert found == pytest.approx({
        "R@1": 0.2, "R@2": 0.6, "R@10": 0.8, "R-precision": 0.5, "MRR@10": 0.44, "nDCG@10": 0.25,
        "mean_rank": 8, "median_rank": 2,
    })  # fmt: skip
    two = Ranks(np.array([2, 5]), *np.zeros((2, 2)), np.ones(2, bool))
    assert summarise(two, ())["median_rank"] == 3  # not 3.5


def test_a_query_without_a_right_document_finds_none_among_few() -> None:
    found = ranked(np.eye(2), np.array([0, 7]), np.arange(2), chunk=2, devices=1)
    assert found.best.tolist() == [1, 3]
    summary = summarise(found, (1, 10))
    assert summary["R@10"] == summary["MRR@10"] == summary["R@1"] == 0.5


def test_no_sort_of_all_documents_finds_the_precision() -> None:
    score = topology_part("sphere").score
    for most in (4, 16):
        sizes: Any = ((4, 1, 8), np.float32), ((4, most), np.int32), ((500, 1, 8), np.float32)
        shapes = [jax.ShapeDtypeStruct(*size) for size in sizes]
        program = str(jax.jit(_ranker(score)).lower(*shapes).compile().as_text())
        assert program.count('custom_call_target="TopK"') == 2
        assert " sort(" not in program
