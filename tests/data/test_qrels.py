"""Qrels as arrays: doubles, ranks, clicks, and what was judged for a query."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.data.judged.qrels import Qrels, distinct, ranks_of_clicks, scores_of_ranks
from big_retrieval.errors import UserError


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=30))
def test_ranks_of_clicks_are_one_more_than_those_with_more(pairs):
    query, clicks = (np.array([p[i] for p in pairs], int) for i in (0, 1))
    found = ranks_of_clicks(query, clicks)
    for q, c, rank in zip(query, clicks, found, strict=True):
        assert rank == 1 + ((query == q) & (clicks > c)).sum()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
def test_distinct_keeps_the_first_and_refuses_two_scores(pairs):
    query, document = (np.array([p[i] for p in pairs], np.int32) for i in (0, 1))
    kept, _ = distinct(query, document, np.ones(len(pairs)), str, "refuse")
    assert [pairs[i] for i in np.flatnonzero(kept)] == list(dict.fromkeys(pairs))
    if len(set(pairs)) < len(pairs):
        with pytest.raises(UserError, match="this pair has the score"):
            distinct(query, document, np.arange(len(pairs)), str, "refuse")


def test_qrels_of_some_queries_are_padded_best_first():
    found = Qrels(
        np.array([1, 0, 1, 1], np.int32), np.array([5, 6, 7, 8], np.int32), np.array([2.0, 1, 9, 2])
    )
    assert found.counts().tolist() == [1, 3]
    documents, score = found.of(np.array([1, 0]))
    assert documents.tolist() == [[7, 5, 8], [6, -1, -1]]
    assert score.tolist() == [[9, 2, 2], [1, 0, 0]]
    assert documents.dtype == np.int32
    assert found.of(np.array([], int))[0].shape == (0, 0)


def test_the_first_of_s_max_ranks_scores_s_max_and_the_last_one_1():
    assert scores_of_ranks(np.array([1.0, 2, 100]), 100, str).tolist() == [100, 99, 1]
    assert scores_of_ranks(np.array([1.0, 5]), 5, str).tolist() == [5, 1]
    with pytest.raises(UserError, match=r"^1: the rank is 6, not from 1 to 5"):
        scores_of_ranks(np.array([1.0, 6]), 5, str)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=20),
    st.sampled_from(["max", "min", "mean", "first"]),
)
def test_one_of_several_scores_counts(rows, duplicates):
    query, document = (np.array([r[i] for r in rows], np.int32) for i in (0, 1))
    scores = np.array([r[2] for r in rows], np.float64)
    kept, counting = distinct(query, document, scores, str, duplicates)
    groups: dict = {}
    for q, d, score in rows:
        groups.setdefault((q, d), []).append(score)
    how = {"max": max, "min": min, "mean": np.mean, "first": lambda found: found[0]}[duplicates]
    wanted = [how(found) for found in groups.values()]
    np.testing.assert_allclose(counting[kept], wanted)
