"""Intervals of means over few queries, against scipy."""

import pytest
from scipy.stats import binomtest

from big_retrieval.evals.intervals import FEW, few_queries_note, wilson_interval


@pytest.mark.parametrize(("hits", "count"), [(0, 1), (1, 1), (42, 60), (60, 60), (5, 999)])
def test_wilson_interval_equals_scipy(hits: int, count: int) -> None:
    expected = binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson_interval(hits / count, count) == pytest.approx(tuple(expected), abs=1e-6)


def test_few_queries_are_reported_with_the_interval() -> None:
    note = few_queries_note({"R@1": 0.7, "nDCG@10": 0.5}, 60)
    assert note.startswith("60 queries are few: R@1 0.700 is from 0.575 to 0.801, nDCG@10 0.500")
    assert few_queries_note({"R@1": 0.7}, FEW) == ""
