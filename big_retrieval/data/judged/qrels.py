"""Judged pairs of queries and documents, with their scores.

Scores are 0 (not relevant) or higher. Ranks and clicks become scores: s = s_max + 1 - rank (GCL,
Section 3).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from big_retrieval.errors import UserError

# Score of a pair with different scores; "refuse" raises an error.
DuplicatePolicy = Literal["refuse", "max", "min", "mean", "first"]
Place = Callable[[int], str]  # returns the location of a pair for messages
QUERIES, CELLS = 4096, 2**22  # maximum size of a block


@dataclass(frozen=True, eq=False)
class Qrels:
    """Judged pairs without duplicates.

    Judged documents that are missing in the collection are not pairs. Evaluations count them: no
    search finds them, but the ideal ranking contains them.

    Attributes:
      query: index of the query in its source, int32 [n].
      document: index of the document in its source, int32 [n].
      score: relevance, float64 [n], 0 or higher.
      missing: queries and scores of missing documents, [m] each.
    """

    query: np.ndarray
    document: np.ndarray
    score: np.ndarray
    missing: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int32), np.zeros(0))

    def __len__(self) -> int:
        return len(self.query)

    @cached_property
    def _by_query(self) -> tuple[np.ndarray, ...]:
        """Documents and scores by query, best first, [n + m]; start of each query, [Q + 1]."""
        query = np.concatenate([self.query, self.missing[0]])
        document = np.concatenate([self.document, np.full(len(self.missing[0]), -1, np.int32)])
        score = np.concatenate([self.score, self.missing[1]])
        order = np.lexsort((document, -score, query))
        ends = np.cumsum(np.bincount(query)) if len(query) else np.zeros(0, np.int64)
        return document[order], score[order], np.concatenate([[0], ends]).astype(np.int64)

    def counts(self) -> np.ndarray:
        """Returns the number of judged documents per query, int64 [last judged query + 1]."""
        return np.diff(self._by_query[2])

    def blocks(self, queries: np.ndarray) -> Iterator[np.ndarray]:
        """Yields at most `QUERIES` queries at a time, with at most `CELLS` entries in `of`."""
        starts = self._by_query[2]
        lengths = np.maximum(starts[queries + 1] - starts[queries], 1)
        first = longest = 0
        for index, length in enumerate(lengths.tolist()):
            longest = max(longest, length)
            count = index + 1 - first
            if count > 1 and (count > QUERIES or count * longest > CELLS):
                yield queries[first:index]
                first, longest = index, length
        if len(queries):
            yield queries[first:]

    def for_queries(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the judged documents of queries, best first, padded to the longest list J.

        For many queries, use `blocks`: one query may have a long list.

        Returns:
          Documents, int32 [q, J], and scores, float64 [q, J]. Missing documents and padding have
          the index -1; padding has the score 0.
        """
        document, score, starts = self._by_query
        rows = np.asarray(queries, np.int64)
        lengths = starts[rows + 1] - starts[rows]  # [q]
        places = np.arange(lengths.max(initial=0))  # [J]
        present = places < lengths[:, None]  # [q, J]
        pairs = np.where(present, starts[rows][:, None] + places, 0)  # [q, J]
        documents = np.where(present, document[pairs], -1).astype(np.int32)
        return documents, np.where(present, score[pairs], 0.0)


def check_scores(score: np.ndarray, column: str, place: Place) -> None:
    """Raises a UserError for the first score [n] that is missing, negative or infinite."""
    bad = np.flatnonzero(~(np.isfinite(score) & (score >= 0)))
    if not len(bad):
        return
    first, value = int(bad[0]), float(score[bad[0]])
    label = "missing" if np.isnan(value) else f"{value:g}"
    more = f" ({len(bad):,} such pairs)" if len(bad) > 1 else ""
    where = f"{place(first)}: {column!r} is {label}"
    raise UserError(f"{where}; it must be 0 or more, and finite{more}.")


def distinct(
    query: np.ndarray,
    document: np.ndarray,
    score: np.ndarray,
    place: Place,
    duplicates: DuplicatePolicy,
) -> tuple[np.ndarray, np.ndarray]:
    """Marks the first of equal pairs, and combines the scores of equal pairs.

    Args:
      query: id of each query, [n] integers.
      document: id of each document, [n] integers.
      score: [n].

    Returns:
      bool [n], False for a pair that repeats an earlier pair; and the scores, float64 [n].

    Raises:
      UserError: a pair has two scores and `duplicates` is "refuse"; with both locations.
    """
    first = np.ones(len(query), bool)
    if not len(query):
        return first, score
    width = int(document.max()) + 1
    keys = query.astype(np.int64) * width + document  # [n]
    order = np.argsort(keys, kind="stable")
    later = np.concatenate([[False], keys[order][1:] == keys[order][:-1]])  # [n], as sorted
    differs = later & np.concatenate([[False], score[order][1:] != score[order][:-1]])
    if differs.any() and duplicates == "refuse":
        index = int(np.flatnonzero(differs)[0])
        earlier, later = int(order[index - 1]), int(order[index])
        raise UserError(
            f"{place(later)}: this pair has the score {score[later]:g}, but {score[earlier]:g} in "
            f"{place(earlier)}. Keep one of them, or set `duplicates` of the data to 'max', 'min', "
            "'mean' or 'first' (--duplicates=max of some commands)."
        )
    first[order[later]] = False
    starts = np.flatnonzero(~later)
    scores = np.array(score, np.float64)  # [n]
    if differs.any():
        scores[order[starts]] = _combined(score[order], starts, duplicates)
    return first, scores


def _combined(score: np.ndarray, starts: np.ndarray, duplicates: DuplicatePolicy) -> np.ndarray:
    """Combines the scores [n] of equal pairs, which begin at `starts` [k]; float64 [k]."""
    if duplicates == "first":
        return score[starts]
    if duplicates == "mean":
        return np.add.reduceat(score, starts) / np.diff(np.append(starts, len(score)))
    return (np.maximum if duplicates == "max" else np.minimum).reduceat(score, starts)


def scores_of_ranks(rank: np.ndarray, s_max: float, place: Place) -> np.ndarray:
    """Returns s_max + 1 - rank, float64 [n]; raises a UserError for a rank outside 1 to s_max."""
    bad = np.flatnonzero(~((rank >= 1) & (rank <= s_max)))
    if len(bad):
        raise UserError(
            f"{place(int(bad[0]))}: the rank is {rank[bad[0]]:g}, not from 1 to {s_max:g}. Correct "
            "it, or set s_max of the data to the last rank."
        )
    return s_max + 1 - rank


def ranks_of_clicks(query: np.ndarray, clicks: np.ndarray) -> np.ndarray:
    """Returns the rank of each pair [n] by clicks within its query, float64 [n] from 1.

    Ties share the better rank: 1, 2, 2, 4.
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
