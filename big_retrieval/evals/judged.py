"""Queries of a ranking evaluator, their results, and the relevance of the results.

In some data sets, queries are documents, too (BEIR's ArguAna), and each query would find itself.
BEIR's evaluator skips such documents; the qrels remain unchanged. If qrels call such a document
relevant, the ids are unrelated numbers.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import match
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.rankings import Rankings
from big_retrieval.io.regular import read_text
from big_retrieval.io.space import reason

if TYPE_CHECKING:
    from big_retrieval.evals.ranking import Ranking

log = logging.getLogger(__name__)
SEPARATOR = "_{!@#~}_"  # suffix of each text in the query ids of GCL's authors


@dataclass(frozen=True)
class Ranked:
    """Rankings of q queries."""

    queries: np.ndarray  # query indices, [q]
    documents: np.ndarray  # document indices, best first, int [q, depth]; padded with -1
    scores: np.ndarray  # scores of these documents, [q, depth]
    relevance: np.ndarray  # relevance of these documents, [q, depth]; 0 if not judged
    judged: np.ndarray  # all relevance values of each query, [q, J]; padded with 0


@dataclass(frozen=True)
class JudgedQueries:
    """Queries and relevance of a ranking evaluator, for any system that ranks."""

    ranking: "Ranking"
    source: GradedPairs

    @cached_property
    def asked(self) -> np.ndarray:
        """Indices of the queries to search for, ascending, [q]."""
        indices = select_queries(self.ranking, len(self.source.queries))
        if self.ranking.query_file:
            named = queries_of_file(self.ranking.query_file, self.source.queries)
            indices = np.intersect1d(indices, named)
        if not len(indices):
            raise UserError(
                f"config.evals.<name>.queries={self.ranking.queries!r} selects no query of the "
                "data or of query_file. Change queries, dev_share or query_file."
            )
        return indices

    @cached_property
    def same_id(self) -> np.ndarray:
        """Index of the document with the query's id, which the search skips, [Q]; -1 for none."""
        return same_id_documents(self.ranking, self.source)

    @property
    def search_depth(self) -> int:
        """Number of documents to search, so that `depth` remain without the query's own id."""
        return self.ranking.depth + int((self.same_id >= 0).any())

    def ranked(self, queries: np.ndarray, hits: np.ndarray, scores: np.ndarray) -> Ranked:
        """Adds the relevance to rankings, and removes documents with the query's own id.

        `hits` has document indices, best first, [q, at most `search_depth`]; -1 for none.
        """
        hits, scores = without(hits, scores, self.same_id[queries], self.ranking.depth)
        documents, judged = self.source.qrels.for_queries(queries)  # [q, J] each
        return Ranked(queries, hits, scores, relevance_of(hits, documents, judged), judged)

    def blocks(self, documents: np.ndarray, scores: np.ndarray) -> Iterator[Ranked]:
        """Yields the rankings of some of the queries in `asked` at a time (`Qrels.blocks`).

        Args:
          documents: document indices for all of `asked`, best first, [q, any size]; -1 for none.
            `scores` has the same shape.
        """
        start = 0
        for queries in self.source.qrels.blocks(self.asked):
            rows = slice(start, start := start + len(queries))
            yield self.ranked(queries, documents[rows], scores[rows])

    def values(self, ranked: Ranked) -> dict[str, np.ndarray]:
        """Computes the metrics of each query, [q], by name."""
        c = self.ranking
        return graded_metrics(ranked.relevance, ranked.judged, c.metrics, c.err_gain)

    def means(
        self, rankings: Iterable[Ranked], writer: Rankings, prefix: str = ""
    ) -> dict[str, float]:
        """Averages the metrics over all queries; writes the values, and the run without `prefix`.

        Args:
          prefix: prefix of the metrics, such as "bag/".
        """
        blocks = []
        for ranked in rankings:
            blocks.append({f"{prefix}{name}": x for name, x in self.values(ranked).items()})
            writer.add_values(blocks[-1])
            if not prefix:
                writer.add_run(ranked)
        return mean_metrics(joined(blocks))

    def summary(self, by: str, notes: str) -> str:
        """Returns a log line with the sizes of the data.

        Args:
          by: the system, such as " by BM25".
          notes: text about the data, from `lacking`.
        """
        source, count = self.source, int(np.sum(self.same_id[self.asked] >= 0))
        missing = len(source.qrels.missing[0])
        lost = f" and {missing:,} of missing documents, which count as not found"
        same = f"; {count:,} queries skip the document with their id"
        return (
            f"{len(self.asked):,} queries against {len(source.documents):,} documents{by}, "
            f"{len(source.qrels):,} qrels{lost if missing else ''}{notes}{same if count else ''}"
        )


def joined(blocks: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenates the metrics, [q] by name, of several blocks."""
    return {name: np.concatenate([values[name] for values in blocks]) for name in blocks[0]}


def lacking(counts: dict[str, int]) -> str:
    """Formats the counts above 0, such as " (3 without image)"; "" if all are 0."""
    texts = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f" ({', '.join(texts)})" if texts else ""


def select_queries(ranking: "Ranking", count: int) -> np.ndarray:
    """Selects from `count` queries by `queries`, `dev_share` and `dev_seed`; ascending indices."""
    if ranking.queries == "all":
        return np.arange(count)
    order = np.random.default_rng(ranking.dev_seed).permutation(count)
    dev = max(1, round(ranking.dev_share * count))
    return np.sort(order[:dev] if ranking.queries == "dev" else order[dev:])


def queries_of_file(file: str, queries: RecordSource) -> np.ndarray:
    """Returns the indices of the queries that are keys of a JSON file, ascending.

    Args:
      file: an object by query id. GCL's authors add a separator to each id.
      queries: all queries of the data.
    """
    try:
        content = json.loads(read_text(file))
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {file} as JSON: {reason(error)}.") from None
    if not isinstance(content, dict) or not content:
        raise UserError(f"{file} must contain a JSON object whose keys are query ids.")
    read_ids: Any = getattr(queries, "ids", None)
    ids = pa.array(map(str, range(len(queries)))) if read_ids is None else read_ids()
    names = [name.removesuffix(SEPARATOR) for name in content]
    indices = match(pa.array(names), ids)
    if (indices < 0).all():
        raise UserError(
            f"{file} has no query of the data: its ids are such as {names[0]!r}, the ids of the "
            f"data such as '{ids[0]!s}'. Name the column of the ids in "
            "config.evals.<name>.data.query."
        )
    if missing := int(np.sum(indices < 0)):
        log.warning(f"{missing:,} of {len(names):,} queries of {file} are not in the data")
    return np.unique(indices[indices >= 0])


def same_id_documents(ranking: "Ranking", source: GradedPairs) -> np.ndarray:
    """Returns the document to skip for each query, the one with its id, int64 [Q]; -1 for none."""
    drops = ranking.data.same_ids if ranking.same_id == "auto" else ranking.same_id == "drop"
    queries, documents = (getattr(side, "ids", None) for side in (source.queries, source.documents))
    if not drops or queries is None or documents is None:
        return np.full(len(source.queries), -1)
    same = match(queries(), documents())
    qrels = source.qrels
    relevant = np.sum((same[qrels.query] == qrels.document) & (qrels.score > 0))
    if ranking.same_id == "auto" and relevant:
        log.warning(
            f"{relevant:,} queries have the id of a document that is relevant to them: ids of "
            "queries and documents are unrelated, and no document is skipped (same_id='drop' of "
            "the evaluator skips these documents, as BEIR does)"
        )
        return np.full(len(same), -1)
    return same


def without(
    documents: np.ndarray, scores: np.ndarray, skipped: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Removes one document per query, `skipped` [q] (-1 for none), from rankings [q, any size].

    Returns document indices and scores, [q, at most depth]; padded with -1 and -inf.
    """
    skips = (documents == skipped[:, None]) & (skipped >= 0)[:, None]  # [q, depth]
    order = np.argsort(skips, axis=1, kind="stable")[:, :depth]
    documents, scores = np.where(skips, -1, documents), np.where(skips, -np.inf, scores)
    return np.take_along_axis(documents, order, 1), np.take_along_axis(scores, order, 1)


def relevance_of(documents: np.ndarray, judged: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """Looks up the relevance of ranked documents, float64 [Q, depth]; 0 if not judged.

    Args:
      documents: document indices, int [Q, depth]; -1 for none.
      judged: judged documents of each query, each once, int [Q, J]; padded with -1.
      relevance: relevance of the judged documents, [Q, J].
    """
    base = 2 + int(max(documents.max(initial=-1), judged.max(initial=-1)))
    queries = np.arange(len(judged), dtype=np.int64)[:, None]
    present = judged >= 0
    keys = (queries * base + judged)[present]
    order = np.argsort(keys)
    keys, values = keys[order], np.asarray(relevance, np.float64)[present][order]
    if not len(keys):
        return np.zeros(documents.shape)
    ranked_keys = queries * base + documents  # [Q, depth]
    index = np.minimum(np.searchsorted(keys, ranked_keys), len(keys) - 1)
    return np.where((keys[index] == ranked_keys) & (documents >= 0), values[index], 0.0)
