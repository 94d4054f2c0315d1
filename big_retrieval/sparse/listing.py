"""Word lists of lexical representations.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
section 6.2: the strongest terms of E(x) describe the input. The score of two representations is the
sum of the products of their terms.
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
    """Common words of two representations."""

    score: float  # inner product over all terms
    words: list[tuple[str, float, float]]  # (word, product, share of the score), largest first


def terms_of(row: Row, count: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `count` strongest terms other than 0, int64 [n], and their values, largest first.

    Among equal values, the lower term comes first.
    """
    if scipy.sparse.issparse(row):
        entries = row.tocoo()
        terms, values = entries.coords[-1].astype(np.int64), entries.data
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
    """Returns (word, value) of the terms of `terms_of`; `words` are the names of the V terms."""
    return name_terms(words, *terms_of(row, count))


def name_terms(words: Sequence[str], terms: np.ndarray, values: np.ndarray) -> Listed:
    """Returns (word, value) of terms int [n] and values [n], in this order."""
    pairs = zip(terms.tolist(), values.tolist(), strict=True)
    return [(words[int(term)], float(value)) for term, value in pairs]


def shared(query: Row, document: Row, words: Sequence[str], count: int | None = None) -> Shared:
    """Returns the common words of two representations, and their contributions to the score.

    Args:
      words: names of the V terms.
      count: number of strongest terms of each representation to compare, as in the authors' code;
        the score uses all terms. None for all.
    """
    (query_terms, query_values), (terms, values) = terms_of(query), terms_of(document)
    common, i, j = np.intersect1d(query_terms, terms, assume_unique=True, return_indices=True)
    products = query_values[i].astype(np.float64) * values[j]  # [n]
    score, keep_mask = float(products.sum()), products != 0
    if count is not None:
        keep_mask &= (i < count) & (j < count)  # positions in lists with the strongest first
    common, products = common[keep_mask], products[keep_mask]
    order = np.argsort(-products, kind="stable")
    listed = name_terms(words, common[order], products[order])
    return Shared(score, [(word, x, x / score if score else 0.0) for word, x in listed])
