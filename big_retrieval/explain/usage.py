"""How a set of representations uses its vocabulary: arrays in, arrays out.

VDR, appendix D and Figure 7: the average of every term over a set, and the box plot of the
strongest. A model that is "lazy" gives a few meaningless words large values whatever the input is.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.sparse.listing import terms_of

REACH = 1.5  # whiskers end at values at most so many box heights away (Tukey)


@dataclass(frozen=True)
class Usage:
    """Averages over a set of n representations.

    Attributes:
      rows: n.
      means: average value of every term, zeros included, float64 [V].
      shares: share of the representations in which a term is not 0, float64 [V].
    """

    rows: int
    means: np.ndarray
    shares: np.ndarray

    @property
    def used(self) -> int:
        """Terms that are not 0 in at least one representation."""
        return int(np.count_nonzero(self.shares))

    @property
    def active(self) -> float:
        """Terms that are not 0, of an average representation."""
        return float(self.shares.sum())

    def weight(self, count: int) -> float:
        """Share of the sum of all averages that the strongest `count` terms have."""
        total = float(self.means.sum())
        return float(terms_of(self.means, count)[1].sum()) / total if total else 0.0


@dataclass(frozen=True)
class Box:
    """A box plot of the averages of some terms.

    Attributes:
      low: where the lower whisker ends: the smallest value within 1.5 box heights of the box.
      first: lower end of the box, the first quartile (linear between values).
      median: middle.
      third: upper end of the box.
      high: where the upper whisker ends.
      mean: of all values.
      outside: int64 [n], terms beyond the whiskers, largest average first.
      values: their averages [n].
    """

    low: float
    first: float
    median: float
    third: float
    high: float
    mean: float
    outside: np.ndarray
    values: np.ndarray


def usage_of(chunks: Iterable[Any]) -> Usage:
    """Averages over representations that come in parts.

    Args:
      chunks: each [n, V], dense or sparse.

    Raises:
      UserError: there is none.
    """
    rows, sums, counts = 0, np.zeros(1), np.zeros(1)
    for chunk in chunks:
        rows += chunk.shape[0]
        sums = sums + np.asarray(chunk.sum(axis=0, dtype=np.float64)).reshape(-1)  # [V]
        counts = counts + np.asarray((chunk != 0).sum(axis=0)).reshape(-1)  # [V]
    if not rows:
        raise UserError("there is nothing to average: give at least one text or image.")
    return Usage(rows, sums / rows, counts / rows)


def box(means: np.ndarray, count: int | None = 100) -> Box:
    """The box plot of the strongest terms.

    Args:
      means: [V], not negative.
      count: of so many of the strongest terms, 100 as in Figure 7; None: of all that are not 0.

    Raises:
      UserError: every average is 0.
    """
    terms, values = terms_of(means, count)
    if not len(values):
        raise UserError("every term is 0 on average: there is no box to draw.")
    first, median, third = np.percentile(values, (25, 50, 75))
    reach = REACH * (third - first)
    inside = (values >= first - reach) & (values <= third + reach)
    # The box itself lies between values, so that a whisker may not begin inside of it.
    low = min(float(values[inside].min(initial=np.inf)), float(first))
    high = max(float(values[inside].max(initial=-np.inf)), float(third))
    return Box(
        low, float(first), float(median), float(third), high, float(values.mean()),
        terms[~inside], values[~inside],
    )  # fmt: skip
