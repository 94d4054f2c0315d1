"""The queries of a ranking evaluator: which are asked, what they find, and its relevance.

In some data sets queries are documents, too (BEIR's ArguAna), and each would find itself. BEIR's
evaluator skips such answers; the qrels stay as they are.
"""

import json
import logging
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from big_retrieval.data.formats.columns import match
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics, parse_metric
from big_retrieval.io.regular import read_text

if TYPE_CHECKING:
    from big_retrieval.evals.ranking import Ranking

log = logging.getLogger(__name__)
SEPARATOR = "_{!@#~}_"  # behind each text that the id of a query is made of, by GCL's authors


@dataclass(frozen=True)
class Ranked:
    """The rankings of some queries.

    Attributes:
      queries: their numbers, [q].
      found: numbers of the documents, best first, int [q, depth]; -1 behind the last one.
      scores: of the system, [q, depth].
      relevance: of the documents, [q, depth]; 0 where nobody judged.
      judged: all relevance of each query, [q, J], filled up with 0.
    """

    queries: np.ndarray
    found: np.ndarray
    scores: np.ndarray
    relevance: np.ndarray
    judged: np.ndarray


@dataclass(frozen=True)
class JudgedQueries:
    """Judged queries and documents as a ranking evaluator asks for them, whatever system ranks.

    Attributes:
      config: the evaluator's configuration.
      source: judged pairs with their queries and documents.
    """

    config: "Ranking"
    source: JudgedSource

    @cached_property
    def asked(self) -> np.ndarray:
        """The numbers of the queries that are asked, ascending, [q].

        Raises:
          UserError: `config.query_file` is something else, or has other queries.
        """
        chosen = chosen_queries(self.config, len(self.source.queries))
        if not self.config.query_file:
            return chosen
        return np.intersect1d(chosen, queries_of_file(self.config.query_file, self.source.queries))

    @cached_property
    def same_id(self) -> np.ndarray:
        """The document of each query's own id, which the query does not find, [Q]; -1: none."""
        return same_id_documents(self.config, self.source)

    @property
    def search_depth(self) -> int:
        """How many documents to look for, so that `depth` are left without the query's own id."""
        return self.config.depth + int((self.same_id >= 0).any())

    @property
    def metric_depth(self) -> int:
        """As `search_depth`, but no more than the metrics look at, where all of them have an @k."""
        cuts = [parse_metric(name).k for name in self.config.metrics]
        most = min(self.config.depth, max(k or self.config.depth for k in cuts))
        return most + self.search_depth - self.config.depth

    def ranked(self, queries: np.ndarray, found: np.ndarray, scores: np.ndarray) -> Ranked:
        """Rankings with their relevance, without the documents that have the query's own id.

        Args:
          queries: their numbers, [q].
          found: numbers of documents, best first, [q, `search_depth` at most]; -1: none.
          scores: of the documents, of the same shape.
        """
        found, scores = without(found, scores, self.same_id[queries], self.config.depth)
        documents, relevance = self.source.qrels.of(queries)  # [q, J] each
        of_found = relevance_of(found, documents, relevance)
        return Ranked(queries, found, scores, of_found, relevance)

    def values(self, ranked: Ranked) -> dict[str, np.ndarray]:
        """Metric -> its value for each of some queries, [q]."""
        c = self.config
        return graded_metrics(ranked.relevance, ranked.judged, c.metrics, c.err_gain)

    def summary(self, by: str, notes: str) -> str:
        """A line about what is measured.

        Args:
          by: what ranks, such as " by BM25".
          notes: about the data.
        """
        source, count = self.source, int(np.sum(self.same_id[self.asked] >= 0))
        missing = len(source.qrels.missing[0])
        lost = f" and {missing:,} of documents that are missing, which count as not found"
        same = f"; {count:,} of the queries are documents, too, which they do not find"
        return (
            f"{len(self.asked):,} queries against {len(source.documents):,} documents{by}, "
            f"{len(source.qrels):,} qrels{lost if missing else ''}{notes}{same if count else ''}"
        )


def lacking(counts: dict[str, int]) -> str:
    """Notes about what rows lack, such as " (3 without image)"; "" where nothing lacks."""
    words = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f" ({', '.join(words)})" if words else ""


def chosen_queries(config: "Ranking", count: int) -> np.ndarray:
    """The numbers of the queries that are asked, ascending: all, those for dev, or the others.

    Args:
      config: `queries`, `dev_share` and `dev_seed` count.
      count: queries that there are.
    """
    if config.queries == "all":
        return np.arange(count)
    order = np.random.default_rng(config.dev_seed).permutation(count)
    dev = max(1, round(config.dev_share * count))
    return np.sort(order[:dev] if config.queries == "dev" else order[dev:])


def queries_of_file(file: str, queries: RecordSource) -> np.ndarray:
    """The numbers of the queries that are the keys of a JSON file, ascending.

    Args:
      file: an object by query. GCL's authors name a query by its text and a separator behind it.
      queries: all of them, which know their ids.

    Raises:
      UserError: it is no such file, or none of its keys is the id of a query.
    """
    try:
        whole = json.loads(read_text(file))
    except (OSError, ValueError) as problem:
        raise UserError(f"{file} cannot be read as a JSON file ({problem}).") from None
    if not isinstance(whole, dict) or not whole:
        raise UserError(f"{file} is no JSON object whose keys are queries.")
    ids: Any = getattr(queries, "ids", None)
    known = pa.array(map(str, range(len(queries)))) if ids is None else ids()
    names = [name.removesuffix(SEPARATOR) for name in whole]
    found = match(pa.array(names), known)
    if (found < 0).all():
        raise UserError(
            f"{file} has no query of the data: it has such as {names[0]!r}, they {known[0]!s}; "
            "name the column with these ids in config.evals.<name>.data.query."
        )
    if missing := int(np.sum(found < 0)):
        log.warning(f"{missing:,} of {len(names):,} queries of {file} are not in the data")
    return np.unique(found[found >= 0])


def same_id_documents(config: "Ranking", source: JudgedSource) -> np.ndarray:
    """The document of each query's own id, where the evaluator skips such documents.

    Args:
      config: of the evaluator.
      source: its queries and documents.

    Returns:
      Numbers of documents, int64 [Q], -1: none is skipped.
    """
    drops = config.data.same_ids if config.same_id == "auto" else config.same_id == "drop"
    queries, documents = (getattr(side, "ids", None) for side in (source.queries, source.documents))
    if not drops or queries is None or documents is None:
        return np.full(len(source.queries), -1)
    return match(queries(), documents())


def without(
    found: np.ndarray, scores: np.ndarray, skipped: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rankings without one document of each query.

    Args:
      found: numbers of documents, best first, [q, any number]; -1: none.
      scores: of the documents, of the same shape.
      skipped: the document of each query, [q]; -1: none.
      depth: documents of a query that stay, at most.

    Returns:
      Both, [q, depth at most]; -1 and -inf behind the last document.
    """
    skips = (found == skipped[:, None]) & (skipped >= 0)[:, None]  # [q, depth]
    order = np.argsort(skips, axis=1, kind="stable")[:, :depth]
    found, scores = np.where(skips, -1, found), np.where(skips, -np.inf, scores)
    return np.take_along_axis(found, order, 1), np.take_along_axis(scores, order, 1)


def relevance_of(documents: np.ndarray, judged: np.ndarray, relevance: np.ndarray) -> np.ndarray:
    """The relevance of ranked documents.

    Args:
      documents: int [Q, depth], numbers of documents; -1: none.
      judged: int [Q, J], numbers of the judged documents of each query; filled up with -1.
      relevance: [Q, J], their relevance.

    Returns:
      float64 [Q, depth], 0 for documents that were not judged.

    Raises:
      UserError: a document is judged twice for a query.
    """
    base = 2 + int(max(documents.max(initial=-1), judged.max(initial=-1)))
    queries = np.arange(len(judged), dtype=np.int64)[:, None]
    known = judged >= 0
    keys = (queries * base + judged)[known]
    order = np.argsort(keys)
    keys, values = keys[order], np.asarray(relevance, np.float64)[known][order]
    if (keys[1:] == keys[:-1]).any():
        raise UserError("a document is judged twice for the same query; keep one relevance.")
    if not len(keys):
        return np.zeros(documents.shape)
    wanted = queries * base + documents  # [Q, depth]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    present = (keys[found] == wanted) & (documents >= 0)
    return np.where(present, values[found], 0.0)
