"""The four-way split of judged pairs: known and new queries times known and new documents.

GCL (Section 3.2) selects a share of the queries and a share of the documents for training. Pairs of
a training query and a training document are `in_domain`; models train on these. The other pairs
test new queries (`novel_query`), new documents (`novel_document`), or both (`zero_shot`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError

SPLITS = ("in_domain", "novel_query", "novel_document", "zero_shot")
_PURPOSES = {"queries": 1, "documents": 2, "dev": 3}  # seeds of independent random numbers


@dataclass(frozen=True, eq=False)
class FourWaySplit:
    """Masks of the queries [Q] and documents [D] for training.

    `query_is_dev` [Q] marks queries for the choice of settings: a share of the training queries and
    of the new queries. The other queries are for testing.
    """

    query_trains: np.ndarray
    document_trains: np.ndarray
    query_is_dev: np.ndarray


def draw_split(
    queries: Sequence[str], documents: Sequence[str], options: SplitOptions
) -> FourWaySplit:
    """Draws the queries and documents for training, and the queries for development.

    Queries or documents with equal keys stay together. The order of the keys does not matter.
    """
    query_trains = _share(queries, options.query_share, options.seed, "queries")
    document_trains = _share(documents, options.document_share, options.seed, "documents")
    dev = np.zeros(len(queries), bool)
    for in_part in (query_trains, ~query_trains):
        keys = [key for key, present in zip(queries, in_part, strict=True) if present]
        dev[in_part] = _chosen(keys, options.dev_share, options.seed, "dev")
    return FourWaySplit(query_trains, document_trains, dev)


def split_of(query: np.ndarray, document: np.ndarray, parts: FourWaySplit) -> np.ndarray:
    """Returns the index of each pair's split in `SPLITS`, int8 [n]."""
    new_query, new_document = ~parts.query_trains[query], ~parts.document_trains[document]
    return (new_query + 2 * new_document).astype(np.int8)


def on_both_sides(keys: Sequence[str], trains: np.ndarray) -> list[str]:
    """Returns the sorted keys with both training and other items; `draw_split` avoids such keys."""
    pairs = set(zip(keys, map(bool, trains), strict=True))
    return sorted(key for key, trained in pairs if trained and (key, False) in pairs)


def _share(keys: Sequence[str], share: float, seed: int, label: str) -> np.ndarray:
    """Returns the mask of the training part; raises if one part is empty."""
    if not 0 < share < 1:
        raise UserError(f"the share of the {label} for training is {share}; it must be in (0, 1).")
    mask = _chosen(keys, share, seed, label)
    if mask.all() or not mask.any():
        raise UserError(
            f"{len(keys):,} {label} in {len(set(keys)):,} group(s) cannot be split {share:.0%} to "
            f"{1 - share:.0%}: one part is empty. Give more {label}, smaller groups or another "
            "share."
        )
    return mask


def _chosen(keys: Sequence[str], share: float, seed: int, purpose: str) -> np.ndarray:
    """Selects whole groups of equal keys: the share of the keys, within half a group; bool [n]."""
    groups, group, sizes = np.unique(
        np.asarray(keys, object), return_inverse=True, return_counts=True
    )
    order = np.random.default_rng((seed, _PURPOSES[purpose])).permutation(len(groups))
    middle = np.cumsum(sizes[order]) - sizes[order] / 2
    is_chosen = np.zeros(len(groups), bool)
    is_chosen[order] = middle < share * len(keys)
    return is_chosen[group]
