"""Qrels as arrays: duplicates, ranks, clicks, and the judged documents of queries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.judged.qrels import Qrels, distinct, ranks_of_clicks, scores_of_ranks
from big_retrieval.errors import UserError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30))
def test_ranks_of_clicks_share_ties(pairs):
    query, clicks = (np.array([p[i] for p in pairs], int) for i in (0, 1))
    found = ranks_of_clicks(query, clicks)
    for q, c, rank in zip(query, clicks, found, strict=True):
        assert rank == 1 + ((query == q) & (clicks > c)).sum()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_distinct_keeps_first_and_rejects_two_scores(pairs):
    query, document = (np.array([p[i] for p in pairs], np.int32) for i in (0, 1))
    kept, _ = distinct(query, document, np.ones(len(pairs)), str, "refuse")
    assert [pairs[i] for i in np.flatnonzero(kept)] == list(dict.fromkeys(pairs))
    if len(set(pairs)) < len(pairs):
        with pytest.raises(UserError, match="this pair has the score"):
            distinct(query, document, np.arange(len(pairs)), str, "refuse")


def test_qrels_of_pads_lists_best_first():
    found = Qrels(
        np.array([1, 0, 1, 1], np.int32), np.array([5, 6, 7, 8], np.int32), np.array([2.0, 1, 9, 2])
    )
    assert found.counts().tolist() == [1, 3]
    documents, score = found.for_queries(np.array([1, 0]))
    assert documents.tolist() == [[7, 5, 8], [6, -1, -1]]
    assert score.tolist() == [[9, 2, 2], [1, 0, 0]]
    assert documents.dtype == np.int32
    assert found.for_queries(np.array([], int))[0].shape == (0, 0)


def test_scores_of_ranks_reach_from_s_max_to_1():
    assert scores_of_ranks(np.array([1.0, 2, 100]), 100, str).tolist() == [100, 99, 1]
    assert scores_of_ranks(np.array([1.0, 5]), 5, str).tolist() == [5, 1]
    with pytest.raises(UserError, match=r"^1: the rank is 6, not from 1 to 5"):
        scores_of_ranks(np.array([1.0, 6]), 5, str)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=20),
    st.sampled_from(["max", "min", "mean", "first"]),
)
def test_distinct_combines_scores(rows, duplicates):
    query, document = (np.array([r[i] for r in rows], np.int32) for i in (0, 1))
    scores = np.array([r[2] for r in rows], np.float64)
    kept, counting = distinct(query, document, scores, str, duplicates)
    groups: dict = {}
    for q, d, score in rows:
        groups.setdefault((q, d), []).append(score)
    combine = {"max": max, "min": min, "mean": np.mean, "first": lambda x: x[0]}[duplicates]
    np.testing.assert_allclose(counting[kept], [combine(x) for x in groups.values()])
