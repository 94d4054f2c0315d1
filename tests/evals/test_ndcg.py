"""Ranking metrics against sums written out."""

import math

import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.evals.graded import ndcg


def by_hand(scores: list[float], relevance: list[int], k: int, exponential: bool) -> float:
    gains = [2**g - 1 if exponential else g for g in relevance]
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], gains[i]))[:k]
    found = sum(gains[i] / math.log2(rank + 2) for rank, i in enumerate(order))
    best = sum(g / math.log2(r + 2) for r, g in enumerate(sorted(gains, reverse=True)[:k]))
    return found / best if best else math.nan


@pytest.mark.parametrize("gain", ["exponential", "linear"])
@pytest.mark.parametrize("k", [1, 3, 10, 50])
def test_ndcg(gain, k) -> None:
    rng = np.random.default_rng(k)
    scores = rng.integers(0, 6, (20, 30)) / 4  # with ties
    relevance = rng.integers(0, 4, (20, 30)) * (rng.random((20, 30)) < 0.2)
    relevance[3] = 0
    expected = [
        by_hand(list(s), list(g), k, gain == "exponential")
        for s, g in zip(scores, relevance, strict=True)
    ]
    np.testing.assert_allclose(ndcg(scores, relevance, k, gain), expected, rtol=1e-12)
    assert np.isnan(expected[3])


def test_a_model_that_scores_all_alike_is_not_good() -> None:
    relevance = np.zeros((1, 100))
    relevance[0, :5] = 3
    assert ndcg(np.zeros((1, 100)), relevance, 10)[0] == 0


def test_what_cannot_be_ranked() -> None:
    with pytest.raises(UserError, match="must be one 2-D shape"):
        ndcg(np.zeros((2, 3)), np.zeros((3, 2)), 10)
    with pytest.raises(UserError, match="must not be NaN"):
        ndcg(np.full((1, 3), np.nan), np.zeros((1, 3)), 10)
