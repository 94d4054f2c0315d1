"""Numbers the queries and documents of judged pairs, and says which pairs are skipped.

All of this works on arrays, so that ten million pairs take seconds.
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
    """A file of queries or documents, with its ids.

    Attributes:
      ids: of the rows, without duplicates.
      columns: the file's columns; without the column of ids if records have it under its name.
    """

    table: Table
    key: str
    ids: pa.Array
    columns: frozenset[str]


@dataclass(frozen=True)
class PairedRows:
    """Which rows the pairs, queries and documents stand in.

    Attributes:
      pairs: the row of each pair whose document exists, int64 [n].
      queries: the row of each query, int64 [Q]; without a file of queries, in the pairs' file.
      documents: the row of each document, int64 [D]; likewise.
      notes: a sentence for each reason to skip pairs, with their number.
    """

    qrels: Qrels
    pairs: np.ndarray
    queries: np.ndarray
    documents: np.ndarray
    notes: tuple[str, ...]


class Pairing:
    """Judged pairs; each step may skip some.

    Args:
      found: the ids and scores of all pairs, as texts and numbers.

    Raises:
      UserError: a pair without an id (unless `skip_unknown_ids`), or with a bad score or rank; a
        pair with two scores that are refused.
    """

    def __init__(self, found: Scan, config: "Graded", place: Callable[[int], str]):
        self._config, self._place = config, place
        self._names = (config.query, config.document)
        self._ids: list[Any] = [found.texts[name] for name in self._names]
        self.notes: list[str] = []
        score = found.numbers[config.score]
        self._rows, self._score = np.arange(len(score)), score  # [n]
        (self._query, queries), (self._document, documents) = (
            encode(ids.fill_null("")) for ids in self._ids
        )
        self._different = (queries, documents)
        for ids, name in zip(self._ids, self._names, strict=True):
            kept = np.asarray(ids.is_valid())[self._rows]
            self._keep(kept, f"have no {name}", config.skip_unknown_ids)
        below = self._score < 0
        if config.negative == "zero" and below.any():
            self._score = np.where(below, 0, self._score)
            count = int(below.sum())
            self.notes.append(f"{count:,} pairs have a {config.score} below 0, which counts as 0")
        qrels.check_scores(self._score, config.score, self._at)
        self._merge_duplicates()
        self._make_scores()

    def _merge_duplicates(self) -> None:
        """Keeps one number of a duplicate pair by the policy, which is inverted for ranks."""
        policy = self._config.duplicates
        if self._config.score_from == "rank":
            inverted: dict[DuplicatePolicy, DuplicatePolicy] = {"max": "min", "min": "max"}
            policy = inverted.get(policy, policy)
        pairs = self._query, self._document, self._score
        first, self._score = qrels.distinct(*pairs, self._at, policy)
        why = "repeat an earlier pair"
        if policy != "refuse":
            why = f"repeat an earlier pair; of different numbers the {policy} counts"
        self._keep(first, why)

    def _make_scores(self) -> None:
        """Makes scores of ranks or clicks; skips pairs without a click or with too low a score."""
        kind, lowest = self._config.score_from, self._config.min_relevance
        if kind == "clicks":
            self._keep(self._score > 0, "have no clicks")
            self._score = qrels.ranks_of_clicks(self._query, self._score)
        if kind != "score":
            self._score = qrels.scores_of_ranks(self._score, self._config.s_max, self._at)
        self._keep(self._score >= lowest, f"score below {lowest:g}")

    def resolve(self, queries: JudgedFile | None, documents: JudgedFile | None) -> PairedRows:
        """Numbers queries and documents.

        Args:
          queries: the file of queries; None: the queries of the pairs, in their order.
          documents: likewise; all documents are numbered, judged or not.

        Raises:
          UserError: a pair has an unknown query and must not be skipped, or no pair is left.
        """
        known = None  # the row of each different query
        if queries is not None:
            known = match(self._different[0], queries.ids)
            why = f"have a {self._names[0]} that {queries.table.name} lacks"
            allowed = self._config.skip_unknown_ids
            self._keep(known[self._query] >= 0, why, allowed, self._ids[0])
        query, query_rows = _numbered(self._query, known, self._rows)
        if documents is not None:
            document = match(self._different[1], documents.ids)[self._document]
            document_rows = np.arange(len(documents.ids))
        else:
            document, document_rows = _numbered(self._document, None, self._rows)
        here = document >= 0
        if documents is not None and not here.all():
            self._note_missing(here, query, documents)
        chosen = self._config.where  # then the pairs that are left out have the other queries
        if queries is not None and len(query_rows) < len(queries.ids) and not chosen:
            left, whole = len(queries.ids) - len(query_rows), len(queries.ids)
            name = queries.table.name
            self.notes.append(f"{left:,} of {whole:,} rows of {name} are not judged")
        query, document = query.astype(np.int32), document.astype(np.int32)
        missing = query[~here], self._score[~here]
        found = Qrels(query[here], document[here], self._score[here], missing)
        return PairedRows(found, self._rows[here], query_rows, document_rows, tuple(self.notes))

    def _note_missing(self, here: np.ndarray, query: np.ndarray, documents: JudgedFile) -> None:
        """Notes the pairs whose documents are missing; raises if that are all."""
        why = f"have a {self._names[1]} that {documents.table.name} lacks"
        if not here.any():
            raise UserError(f"no pair is left: all {len(here):,} {why}; check the data's columns.")
        first = int(np.flatnonzero(~here)[0])
        name = f"{self._ids[1][int(self._rows[first])].as_py()!r:.80} in {self._at(first)}"
        alone = len(np.unique(query)) - len(np.unique(query[here]))
        self.notes.append(
            f"{int((~here).sum()):,} of {len(here):,} pairs {why}, the first one {name}: "
            f"evaluations count these documents as not found (queries without another: {alone:,}), "
            "and nothing is trained on them"
        )

    def _at(self, index: int) -> str:
        return self._place(int(self._rows[index]))

    def _keep(self, kept: np.ndarray, why: str, allowed: bool = True, ids: Any = None) -> None:
        """Skips all other pairs; raises if that is not allowed or no pair is left."""
        count, whole = int((~kept).sum()), len(kept)
        if count and not allowed:
            first = int(np.flatnonzero(~kept)[0])
            which = "in " if ids is None else f"{ids[int(self._rows[first])].as_py()!r:.80} in "
            raise UserError(
                f"{count:,} of {whole:,} pairs {why}, the first one {which}{self._at(first)}; "
                "correct the files, or skip such pairs with skip_unknown_ids=True of the data."
            )
        if count == whole:
            raise UserError(f"no pair is left: all {whole:,} {why}; check the data's columns.")
        if not count:
            return
        self.notes.append(f"{count:,} of {whole:,} pairs are skipped: they {why}")
        self._rows, self._score = self._rows[kept], self._score[kept]
        self._query, self._document = self._query[kept], self._document[kept]


def _numbered(
    codes: np.ndarray, known: np.ndarray | None, pairs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers the items of the pairs by their rows in a file, else in the pairs.

    Args:
      codes: of each pair, [n].
      known: the row of each code; None: there is no file.
      pairs: the row of each pair, [n], increasing.

    Returns:
      The number of each pair, int64 [n], and the row of each number.
    """
    rows = codes if known is None else known[codes]
    different, first, numbers = np.unique(rows, return_index=True, return_inverse=True)
    return numbers, pairs[first] if known is None else different


def owner(texts: pa.Array, paired: PairedRows) -> Literal["query", "document", ""]:
    """Infers whether a column of the pairs describes the query, the document, or both ("").

    The column belongs to the side within whose items its values change less.

    If each document belongs to one query, a value that never changes within a query cannot change
    within a document either. So if values change within neither, the column belongs to the side
    with fewer items.

    Args:
      texts: the column, of all rows of the pairs' file; null where a row has no text.
      paired: the pairs, which have no files of queries and documents.
    """
    codes, _ = encode(texts.fill_null(""))
    here, found = codes[paired.pairs], paired.qrels
    changes = [
        int((here != codes[rows][numbers]).sum())
        for rows, numbers in ((paired.queries, found.query), (paired.documents, found.document))
    ]
    if changes == [0, 0]:
        changes = [len(paired.queries), len(paired.documents)]
    if changes[0] == changes[1]:
        return ""
    return "query" if changes[0] < changes[1] else "document"
