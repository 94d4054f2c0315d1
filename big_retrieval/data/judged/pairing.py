"""Resolves the ids of judged pairs to indices, and selects the pairs to keep.

Works on arrays, so ten million pairs take seconds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import Scan, encode, match
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.judged import qrels
from big_retrieval.data.judged.qrels import DuplicatePolicy, Qrels
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.data.judged.open_graded import Graded


@dataclass(frozen=True)
class JudgedFile:
    """A file of queries or documents.

    Attributes:
      ids: unique ids of the rows.
      columns: columns of the file, without the id column if records have its name.
    """

    table: Table
    key: str
    ids: pa.Array
    columns: frozenset[str]


@dataclass(frozen=True)
class PairedRows:
    """Rows of pairs, queries and documents in their files.

    Attributes:
      pairs: row of each pair whose document exists, int64 [n].
      queries: row of each query, int64 [Q]; in the pairs' file if there is no file of queries.
      documents: row of each document, int64 [D]; in the pairs' file if there is no file of
        documents.
      notes: a message per reason to skip pairs, with their number.
    """

    qrels: Qrels
    pairs: np.ndarray
    queries: np.ndarray
    documents: np.ndarray
    notes: tuple[str, ...]


class Pairing:
    """Judged pairs from the rows of a file; each step may skip pairs, and then adds a note."""

    def __init__(self, columns: Scan, config: "Graded", place: Callable[[int], str]):
        self._config, self._place = config, place
        self._names = (config.query, config.document)
        self._ids: list[Any] = [columns.texts[name] for name in self._names]
        self.notes: list[str] = []
        score = columns.numbers[config.score]
        self._rows, self._score = np.arange(len(score)), score  # [n]
        (self._query, queries), (self._document, documents) = (
            encode(ids.fill_null("")) for ids in self._ids
        )
        self._distinct = (queries, documents)
        for ids, name in zip(self._ids, self._names, strict=True):
            has_id = np.asarray(ids.is_valid())[self._rows]
            self._keep(has_id, f"have no {name}", config.skip_unknown_ids)
        below = self._score < 0
        if config.negative == "zero" and below.any():
            self._score = np.where(below, 0, self._score)
            self.notes.append(
                f"{int(below.sum()):,} pairs have a {config.score} below 0, which counts as 0"
            )
        qrels.check_scores(self._score, config.score, self._at)
        self._merge_duplicates()
        self._convert_scores()

    def _merge_duplicates(self) -> None:
        """Keeps one score of a duplicate pair by the policy, which is inverted for ranks."""
        policy = self._config.duplicates
        if self._config.score_from == "rank":
            inverted: dict[DuplicatePolicy, DuplicatePolicy] = {"max": "min", "min": "max"}
            policy = inverted.get(policy, policy)
        pairs = self._query, self._document, self._score
        first, self._score = qrels.distinct(*pairs, self._at, policy)
        reason = "repeat an earlier pair"
        if policy != "refuse":
            reason += f"; of different numbers the {policy} counts"
        self._keep(first, reason)

    def _convert_scores(self) -> None:
        """Converts ranks or clicks to scores; skips pairs without a click or with a low score."""
        score_from, lowest = self._config.score_from, self._config.min_relevance
        if score_from == "clicks":
            self._keep(self._score > 0, "have no clicks")
            self._score = qrels.ranks_of_clicks(self._query, self._score)
        if score_from != "score":
            self._score = qrels.scores_of_ranks(self._score, self._config.s_max, self._at)
        self._keep(self._score >= lowest, f"score below {lowest:g}")

    def resolve(self, queries: JudgedFile | None, documents: JudgedFile | None) -> PairedRows:
        """Assigns indices to queries and documents.

        Args:
          queries: file of the queries; None to number the queries of the pairs as they occur.
          documents: file of the documents, all of which get an index, judged or not; None to
            number the documents of the pairs as they occur.
        """
        rows_by_query = None  # the row of each distinct query
        if queries is not None:
            rows_by_query = match(self._distinct[0], queries.ids)
            reason = f"have a {self._names[0]} that {queries.table.name} lacks"
            allowed = self._config.skip_unknown_ids
            self._keep(rows_by_query[self._query] >= 0, reason, allowed, self._ids[0])
        query, query_rows = _indices(self._query, rows_by_query, self._rows)
        if documents is not None:
            document = match(self._distinct[1], documents.ids)[self._document]
            document_rows = np.arange(len(documents.ids))
        else:
            document, document_rows = _indices(self._document, None, self._rows)
        exists = document >= 0
        if documents is not None and not exists.all():
            self._note_missing(exists, query, documents)
        # With `where`, pairs that are not read may judge the other queries.
        if queries is not None and len(query_rows) < len(queries.ids) and not self._config.where:
            count, total = len(queries.ids) - len(query_rows), len(queries.ids)
            self.notes.append(f"{count:,} of {total:,} rows of {queries.table.name} are not judged")
        query, document = query.astype(np.int32), document.astype(np.int32)
        missing = query[~exists], self._score[~exists]
        judged = Qrels(query[exists], document[exists], self._score[exists], missing)
        return PairedRows(judged, self._rows[exists], query_rows, document_rows, tuple(self.notes))

    def _note_missing(self, exists: np.ndarray, query: np.ndarray, documents: JudgedFile) -> None:
        """Adds a note on pairs with missing documents; raises a UserError if all are missing."""
        reason = f"have a {self._names[1]} that {documents.table.name} lacks"
        if not exists.any():
            raise self._no_pairs(len(exists), reason)
        first = int(np.flatnonzero(~exists)[0])
        name = f"{self._ids[1][int(self._rows[first])].as_py()!r:.80} in {self._at(first)}"
        lost = len(np.unique(query)) - len(np.unique(query[exists]))
        self.notes.append(
            f"{int((~exists).sum()):,} of {len(exists):,} pairs {reason}, the first one {name}: "
            f"evaluations count these documents as not found (queries without another: {lost:,}), "
            "and training skips them"
        )

    def _at(self, index: int) -> str:
        return self._place(int(self._rows[index]))

    def _keep(self, keep: np.ndarray, reason: str, allowed: bool = True, ids: Any = None) -> None:
        """Skips all other pairs; raises if this is not allowed or no pair is left."""
        count, total = int((~keep).sum()), len(keep)
        if count and not allowed:
            first = int(np.flatnonzero(~keep)[0])
            which = "in " if ids is None else f"{ids[int(self._rows[first])].as_py()!r:.80} in "
            raise UserError(
                f"{count:,} of {total:,} pairs {reason}, the first one {which}{self._at(first)}; "
                "correct the files, or skip such pairs with skip_unknown_ids=True of the data."
            )
        if count == total:
            raise self._no_pairs(total, reason)
        if not count:
            return
        self.notes.append(f"{count:,} of {total:,} pairs are skipped: they {reason}")
        self._rows, self._score = self._rows[keep], self._score[keep]
        self._query, self._document = self._query[keep], self._document[keep]

    def _no_pairs(self, count: int, reason: str) -> UserError:
        return UserError(f"no pair is left: all {count:,} {reason}; check the data's columns.")


def _indices(
    codes: np.ndarray, rows_by_code: np.ndarray | None, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Assigns indices from 0 to the queries (or documents) of pairs, ordered by row in a file.

    Args:
      codes: code of each pair's query, [n].
      rows_by_code: row of each code in the file of queries; None if there is no such file.
      pairs: row of each pair in the pairs' file, [n], increasing.

    Returns:
      Index of each pair's query, int64 [n], and the row of each index: in the file of queries, or
      the first row of the query in the pairs' file.
    """
    rows = codes if rows_by_code is None else rows_by_code[codes]
    distinct, first, indices = np.unique(rows, return_index=True, return_inverse=True)
    return indices, pairs[first] if rows_by_code is None else distinct


def owner(texts: pa.Array, paired: PairedRows) -> Literal["query", "document", ""]:
    """Infers whether a column of the pairs describes the query, the document, or both ("").

    A column of queries has one value in all pairs of a query. So the column belongs to the side on
    which fewer pairs differ from the first pair with the same query (or document). If no pair
    differs on either side, the column belongs to the side with fewer items: where each document has
    one query, a column of queries is constant for every document, too.

    Args:
      texts: the column for all rows of the pairs' file; null if a row has no text.
      paired: pairs without files of queries and documents.
    """
    codes, _ = encode(texts.fill_null(""))
    values, judged = codes[paired.pairs], paired.qrels
    changes = [
        int((values != codes[rows][indices]).sum())
        for rows, indices in ((paired.queries, judged.query), (paired.documents, judged.document))
    ]
    if changes == [0, 0]:
        changes = [len(paired.queries), len(paired.documents)]
    if changes[0] == changes[1]:
        return ""
    return "query" if changes[0] < changes[1] else "document"
