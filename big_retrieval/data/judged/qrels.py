"""Which documents were judged for which queries, and how well they fit.

Scores are from 0 (does not fit) on, higher is better. Ranks and clicks become scores:
s = s_max + 1 - rank, so that of a hundred ranks the first one scores 100 (GCL, Section 3).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from big_retrieval.errors import UserError

# For a pair with different scores: an error, or which score counts.
DuplicatePolicy = Literal["refuse", "max", "min", "mean", "first"]
Place = Callable[[int], str]  # where a pair stands, for messages
QUERIES, CELLS = 4096, 2**22  # of a block


@dataclass(frozen=True, eq=False)
class Qrels:
    """Judged pairs without duplicates.

    Judged documents that the collection lacks are no pairs, but count in evaluations: nothing finds
    them, and the best possible ranking has them.

    Attributes:
      query: index of the query in its source, int32 [n].
      document: index of the document in its source, int32 [n].
      score: how well the document fits the query, float64 [n], 0 or more.
      missing: [m] queries and scores of judged documents that the collection lacks.
    """

    query: np.ndarray
    document: np.ndarray
    score: np.ndarray
    missing: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros(0))

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def _by_query(self) -> tuple[np.ndarray, ...]:
        """Documents and scores by query, best first, [n + m]; each query's first one, [Q + 1]."""
        query = np.concatenate([self.query, self.missing[0]])
        document = np.concatenate([self.document, np.full(len(self.missing[0]), -1, np.int32)])
        score = np.concatenate([self.score, self.missing[1]])
        order = np.lexsort((document, -score, query))
        ends = np.cumsum(np.bincount(query)) if len(query) else np.zeros(0, np.int64)
        return document[order], score[order], np.concatenate([[0], ends]).astype(np.int64)

    def counts(self) -> np.ndarray:
        """How many documents were judged for each query: int64 [Q], up to the last judged query."""
        return np.diff(self._by_query[2])

    def blocks(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Yields at most `QUERIES` queries at a time, whose lists have at most `CELLS` places."""
        starts = self._by_query[2]
        lengths = np.maximum(starts[queries + 1] - starts[queries], 1)
        first = longest = 0
        for place, length in enumerate(lengths.tolist()):
            longest = max(longest, length)
            count = place + 1 - first
            if count > 1 and (count > QUERIES or count * longest > CELLS):
                yield queries[first:place]
                first, longest = place, length
        if len(queries):
            yield queries[first:]

    def of(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The judged documents of some queries, best first, padded to the longest list J.

        For many queries take `blocks` of them: one may have a long list.

        Returns:
          The documents, int32 [q, J], and their scores, float64 [q, J]. Documents that the
          collection lacks have the index -1; padding has the score 0, too.
        """
        document, score, starts = self._by_query
        numbers = np.asarray(queries, np.int64)
        lengths = starts[numbers + 1] - starts[numbers]  # [q]
        places = np.arange(lengths.max(initial=0))  # [J]
        present = places < lengths[:, None]  # [q, J]
        pairs = np.where(present, starts[numbers][:, None] + places, 0)  # [q, J]
        documents = np.where(present, document[pairs], -1).astype(np.int32)
        return documents, np.where(present, score[pairs], 0.0)


def check_scores(score: np.ndarray, column: str, place: Place) -> None:
    """Raises for the first score that is missing, negative or infinite.

    Args:
      score: [n].

    Raises:
      UserError: names the place and the value.
    """
    bad = np.flatnonzero(~(np.isfinite(score) & (score >= 0)))
    if not len(bad):
        return
    first, value = int(bad[0]), float(score[bad[0]])
    more = f" ({len(bad):,} such pairs)" if len(bad) > 1 else ""
    if np.isnan(value):
        raise UserError(f"{place(first)}: {column!r} has no number{more}; give every pair one.")
    wanted = "it must be 0 or more, and finite"
    raise UserError(f"{place(first)}: {column!r} is {value:g}; {wanted}{more}.")


def distinct(
    query: np.ndarray,
    document: np.ndarray,
    score: np.ndarray,
    place: Place,
    duplicates: DuplicatePolicy,
) -> tuple[np.ndarray, np.ndarray]:
    """Marks the first of equal pairs, and combines the scores of equal pairs.

    Args:
      query: a number for each query, [n].
      document: a number for each document, [n].
      score: [n].
      duplicates: which of a pair's different scores counts, or their mean; "refuse": an error.

    Returns:
      bool [n], False for a pair that an equal pair precedes; and the scores, float64 [n].

    Raises:
      UserError: a pair has two scores and `duplicates` is "refuse"; names both places.
    """
    first = np.ones(len(query), bool)
    if not len(query):
        return first, score
    width = int(document.max()) + 1
    keys = query.astype(np.int64) * width + document  # [n]
    order = np.argsort(keys, kind="stable")
    later = np.concatenate([[False], keys[order][1:] == keys[order][:-1]])  # [n], as sorted
    other = later & np.concatenate([[False], score[order][1:] != score[order][:-1]])
    if other.any() and duplicates == "refuse":
        here = int(np.flatnonzero(other)[0])
        earlier, later = int(order[here - 1]), int(order[here])
        raise UserError(
            f"{place(later)}: this pair has the score {score[later]:g}, but {score[earlier]:g} in "
            f"{place(earlier)}; keep one of them, or set `duplicates` of the data to 'max', 'min', "
            "'mean' or 'first' (--duplicates=max, of commands that have it)."
        )
    first[order[later]] = False
    starts = np.flatnonzero(~later)
    counting = np.array(score, np.float64)  # [n]
    if other.any():
        counting[order[starts]] = _combined(score[order], starts, duplicates)
    return first, counting


def _combined(score: np.ndarray, starts: np.ndarray, duplicates: DuplicatePolicy) -> np.ndarray:
    """One score for each run of scores [n] that begins at one of `starts` [k]: float64 [k]."""
    if duplicates == "first":
        return score[starts]
    if duplicates == "mean":
        return np.add.reduceat(score, starts) / np.diff(np.append(starts, len(score)))
    return (np.maximum if duplicates == "max" else np.minimum).reduceat(score, starts)


def scores_of_ranks(rank: np.ndarray, s_max: float, place: Place) -> np.ndarray:
    """s = s_max + 1 - rank: s_max for rank 1, and 1 for the last possible rank, s_max.

    Args:
      rank: from 1, the best, [n].
      s_max: the score of rank 1.

    Returns:
      float64 [n].

    Raises:
      UserError: a rank below 1 or above s_max.
    """
    bad = np.flatnonzero(~((rank >= 1) & (rank <= s_max)))
    if len(bad):
        raise UserError(
            f"{place(int(bad[0]))}: the rank is {rank[bad[0]]:g}, not from 1 to {s_max:g}; correct "
            "it, or set s_max of the data to the last rank."
        )
    return s_max + 1 - rank


def ranks_of_clicks(query: np.ndarray, clicks: np.ndarray) -> np.ndarray:
    """The rank of each pair by clicks within its query; ties share the better rank: 1, 2, 2, 4.

    Args:
      query: a number for each query, [n].
      clicks: [n].

    Returns:
      float64 [n], from 1.
    """
    order = np.lexsort((-clicks, query))
    places = np.arange(len(order))
    same_query = query[order][1:] == query[order][:-1]
    same_clicks = same_query & (clicks[order][1:] == clicks[order][:-1])
    starts = np.maximum.accumulate(np.where(np.append(False, same_query), 0, places))
    ties = np.maximum.accumulate(np.where(np.append(False, same_clicks), 0, places))
    ranks = np.empty(len(order))
    ranks[order] = ties - starts + 1
    return ranks
