"""Lists of words of lexical representations: arrays in, lists out.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
section 6.2: the strongest terms of E(x) say what the model sees, and the products of the terms
of two representations are what their score is the sum of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

Row = Any  # [V], or CSR [1, V]
Listed = list[tuple[str, float]]  # words with their values, strongest first


@dataclass(frozen=True)
class Shared:
    """What two representations have in common.

    Attributes:
      score: their inner product over all terms.
      words: (word, product of the two values, share of the score), largest product first.
    """

    score: float
    words: list[tuple[str, float, float]]


def terms_of(row: Row, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The strongest terms of a representation, zeros left out, of equal ones the first first.

    Args:
      row: [V], or CSR [1, V].
      count: how many at most; None: all that are not 0.

    Returns:
      Terms int64 [n] and their values [n], largest first.
    """
    if scipy.sparse.issparse(row):
        found = row.tocoo()
        terms, values = found.coords[-1].astype(np.int64), found.data
        ascending = np.argsort(terms)
        terms, values = terms[ascending], values[ascending]
    else:
        values = np.asarray(row).reshape(-1)
        terms = np.arange(len(values))
    present = values != 0
    terms, values = terms[present], values[present]
    order = np.argsort(-values, kind="stable")[:count]
    return terms[order], values[order]


def strongest(row: Row, words: Sequence[str], count: int | None = 20) -> Listed:
    """(word, value) of the strongest terms, largest first.

    Args:
      row: [V], or CSR [1, V].
      words: of the V terms.
      count: how many at most; None: all that are not 0.
    """
    terms, values = terms_of(row, count)
    return [
        (words[int(c)], float(value))
        for c, value in zip(terms.tolist(), values.tolist(), strict=True)
    ]


def shared(query: Row, document: Row, words: Sequence[str], count: int | None = None) -> Shared:
    """The words that two representations have in common, and what each adds to their score.

    Args:
      query: [V], or CSR [1, V].
      document: the same.
      words: of the V terms.
      count: of both only so many of the strongest terms are looked at, as in the authors' code;
        the score is that of all terms all the same. None: all that are not 0.
    """
    score, (terms, products) = _products(query, document, count)
    return Shared(
        score,
        [
            (words[int(c)], float(product), float(product / score) if score else 0.0)
            for c, product in zip(terms.tolist(), products.tolist(), strict=True)
        ],
    )


def _products(
    query: Row, document: Row, count: int | None
) -> tuple[float, tuple[np.ndarray, np.ndarray]]:
    """The score; terms and products, largest first."""
    sides = [terms_of(row) for row in (query, document)]
    common, left, right = np.intersect1d(
        sides[0][0], sides[1][0], assume_unique=True, return_indices=True
    )
    products = sides[0][1][left].astype(np.float64) * sides[1][1][right]  # [n]
    score = float(products.sum())
    if count is not None:
        kept = (left < count) & (right < count)  # places in lists that are strongest first
        common, products = common[kept], products[kept]
    common, products = common[products != 0], products[products != 0]
    order = np.argsort(-products, kind="stable")
    return score, (common[order], products[order])
