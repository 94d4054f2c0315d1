"""The four-way split of judged pairs: known and new queries times known and new documents.

GCL (Section 3.2) keeps a share of the queries and a share of the documents for training. Pairs of a
training query and a training document are `in_domain`; a model is trained on these. The other pairs
measure new queries (`novel_query`), new documents (`novel_document`), and both (`zero_shot`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError

SPLITS = ("in_domain", "novel_query", "novel_document", "zero_shot")
_PURPOSES = {"queries": 1, "documents": 2, "dev": 3}  # each draws its own random numbers


@dataclass(frozen=True, eq=False)
class FourWaySplit:
    """Which queries and documents are for training.

    Attributes:
      query_trains: bool [Q].
      document_trains: bool [D].
      query_is_dev: bool [Q], queries for choosing settings: a share of the training queries and of
        the new queries. The other queries are for testing.
    """

    query_trains: np.ndarray
    document_trains: np.ndarray
    query_is_dev: np.ndarray


def draw(queries: Sequence[str], documents: Sequence[str], options: SplitOptions) -> FourWaySplit:
    """Draws which queries and documents are for training, and which queries are for development.

    Args:
      queries: a key for each, [Q]; equal ones stay together.
      documents: a key for each, [D]; equal ones stay together.
      options: shares, and the seed of the draw, which does not depend on the order of the keys.

    Raises:
      UserError: a share that is not between 0 and 1, or keys that are too few or too unequal to
        give both parts something.
    """
    query_trains = _share(queries, options.query_share, options.seed, "queries")
    document_trains = _share(documents, options.document_share, options.seed, "documents")
    dev = np.zeros(len(queries), bool)
    for part in (query_trains, ~query_trains):
        keys = [key for key, present in zip(queries, part, strict=True) if present]
        dev[part] = _chosen(keys, options.dev_share, options.seed, "dev")
    return FourWaySplit(query_trains, document_trains, dev)


def split_of(query: np.ndarray, document: np.ndarray, parts: FourWaySplit) -> np.ndarray:
    """The split of each pair, as its place in `SPLITS`.

    Returns:
      int8 [n].
    """
    new_query, new_document = ~parts.query_trains[query], ~parts.document_trains[document]
    return (new_query + 2 * new_document).astype(np.int8)


def on_both_sides(keys: Sequence[str], trains: np.ndarray) -> list[str]:
    """The keys with both training and other items, sorted; `draw` leaves no such key."""
    pairs = set(zip(keys, map(bool, trains), strict=True))
    return sorted(key for key, trained in pairs if trained and (key, False) in pairs)


def _share(keys: Sequence[str], share: float, seed: int, what: str) -> np.ndarray:
    """The training part; an error if that part or the rest is empty."""
    if not 0 < share < 1:
        raise UserError(f"the share of the {what} for training is {share}; it must be in (0, 1).")
    chosen = _chosen(keys, share, seed, what)
    if chosen.all() or not chosen.any():
        raise UserError(
            f"{len(keys):,} {what} in {len(set(keys)):,} group(s) cannot be split {share:.0%} to "
            f"{1 - share:.0%}: one part is empty; give more {what}, smaller groups or another "
            "share."
        )
    return chosen


def _chosen(keys: Sequence[str], share: float, seed: int, purpose: str) -> np.ndarray:
    """Chooses the share, up to half a group more or less: bool [n]."""
    different, group, sizes = np.unique(
        np.asarray(keys, object), return_inverse=True, return_counts=True
    )
    rng = np.random.default_rng((seed, _PURPOSES[purpose]))
    order = rng.permutation(len(different))
    middle = np.cumsum(sizes[order]) - sizes[order] / 2
    chosen = np.zeros(len(different), bool)
    chosen[order] = middle < share * len(keys)
    return chosen[group]
