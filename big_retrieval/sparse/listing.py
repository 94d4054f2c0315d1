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
    return named(words, *terms_of(row, count))


def named(words: Sequence[str], terms: np.ndarray, values: np.ndarray) -> Listed:
    """(word, value) of some terms, in their order.

    Args:
      words: of the V terms.
      terms: int [n].
      values: of these terms, [n].
    """
    pairs = zip(terms.tolist(), values.tolist(), strict=True)
    return [(words[int(term)], float(value)) for term, value in pairs]


def shared(query: Row, document: Row, words: Sequence[str], count: int | None = None) -> Shared:
    """The words that two representations have in common, and what each adds to their score.

    Args:
      query: [V], or CSR [1, V].
      document: the same.
      words: of the V terms.
      count: of both only so many of the strongest terms are looked at, as in the authors' code;
        the score is that of all terms all the same. None: all that are not 0.
    """
    (terms, left), (others, right) = terms_of(query), terms_of(document)
    common, i, j = np.intersect1d(terms, others, assume_unique=True, return_indices=True)
    products = left[i].astype(np.float64) * right[j]  # [n]
    score, kept = float(products.sum()), products != 0
    if count is not None:
        kept &= (i < count) & (j < count)  # places in lists that are strongest first
    common, products = common[kept], products[kept]
    order = np.argsort(-products, kind="stable")
    listed = named(words, common[order], products[order])
    return Shared(score, [(word, x, x / score if score else 0.0) for word, x in listed])
