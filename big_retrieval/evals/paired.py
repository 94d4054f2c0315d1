"""Whether one system is better than another: paired tests over the same queries."""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy import stats

from big_retrieval.errors import UserError


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems over the same queries.

    Attributes:
      queries: how many.
      means: of both.
      difference: mean of the second minus mean of the first.
      p: of the two-sided paired t-test; 1 where no query differs.
      wins: queries where the second is better.
      ties: where both are the same.
      losses: where the second is worse.
    """

    queries: int
    means: tuple[float, float]
    difference: float
    p: float
    wins: int
    ties: int
    losses: int


def compare(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Compares a metric of two systems by `scipy.stats.ttest_rel`.

    Differences of at most 1e-12 are none: they come from other orders of the same sums.

    Args:
      first: its value for every query, [q].
      second: the same of the other system, for the same queries in the same order.

    Raises:
      UserError: fewer than 2 queries.
    """
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            f"a paired test needs the same queries, at least 2; there are {len(first)} and "
            f"{len(second)}."
        )
    gain = second - first
    gain = np.where(np.abs(gain) <= 1e-12, 0.0, gain)
    p = 1.0
    if gain.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of gains that are all the same: p = 0
            p = float(stats.ttest_rel(gain, np.zeros(len(gain))).pvalue)  # type: ignore
    counts = [int(np.sum(found)) for found in (gain > 0, gain == 0, gain < 0)]
    means = float(np.mean(first)), float(np.mean(second))
    return Comparison(len(gain), means, float(np.mean(gain)), p, *counts)
