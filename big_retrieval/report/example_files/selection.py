"""Selection of queries, documents and words for examples, and their JSON values."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.sparse.listing import shared

SPREAD, DEEPEST = 5, 4  # examples per group and direction
TOP = 5  # documents per example
MATCHED = 5  # words per document, of lexical models


Group = tuple[str, str, np.ndarray]  # name, rule, and indices of the selected queries


def even_group(count: int) -> Group:
    """Selects evenly spaced queries."""
    even = evenly_spaced(count, SPREAD)
    return "spread", f"{len(even)} of {count:,} queries, evenly spaced in the data.", even


def groups_content(
    groups: Iterable[Group], example: Callable[[int], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns groups of examples, with `example` of each query index."""
    return [
        {"name": name, "how": rule, "examples": list(map(example, queries.tolist()))}
        for name, rule, queries in groups
    ]


def direction_content(
    fields: tuple[str, str], counts: tuple[int, int], failed: int, groups: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the examples of one direction: names and counts of queries and answers, groups."""
    return {
        "name": "_to_".join(fields),
        "query": fields[0],
        "answer": fields[1],
        "queries": counts[0],
        "answers": counts[1],
        "failed": failed,
        "groups": groups,
    }


def rounded(score: float) -> float | None:
    """Rounds a score to 6 decimals; None if it is not finite."""
    return round(float(score), 6) if np.isfinite(score) else None


def worst(values: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the `count` largest finite values [Q], at most one per owner [Q].

    The largest value comes first. Among equal values, the lower index comes first.
    """
    order = np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable")
    order = order[np.isfinite(values[order])]
    _, first = np.unique(owners[order], return_index=True)  # of each owner
    return order[np.sort(first)][:count]


def best_first(scores: np.ndarray, is_positive: np.ndarray, count: int) -> np.ndarray:
    """Returns the indices of the best documents by scores [D], int64 [min(count, D)].

    As in ranks, negatives come first among equal scores, and NaN counts against the positives.
    """
    count = min(count, len(scores))
    keys = -np.where(np.isnan(scores), np.where(is_positive, -np.inf, np.inf), scores)  # [D]
    limit = np.partition(keys, count - 1)[count - 1] if count else -np.inf
    near = np.flatnonzero(keys <= limit)
    return near[np.lexsort((near, is_positive[near], keys[near]))][:count]


def term_names(
    encoder: Encoder, field: str, embeddings: Embeddings, readers: Iterable[FieldReader]
) -> Sequence[str]:
    """Returns the names of the V terms of lexical embeddings; empty for dense ones."""
    terms = encoder.terms(field) if scipy.sparse.issparse(embeddings) else None
    tokenizers = (reader.tokenizer for reader in readers if reader.tokenizer is not None)
    return () if terms is None else terms.names(next(tokenizers, None))


def matched_words(query: Embeddings, document: Embeddings, terms: Sequence[str]) -> list[list[Any]]:
    """Returns (word, share of the score) of two CSR rows [1, V], largest first."""
    matched = shared(query, document, terms).words[:MATCHED]
    return [[word, round(share, 4)] for word, _, share in matched if np.isfinite(share)]
