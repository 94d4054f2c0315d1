"""BM25 by the library bm25s, to compare models with: what shared words alone find."""

import collections
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.config import Config
from big_retrieval.data.sources import RecordSource, texts_of
from big_retrieval.data.text.normalize import find_words
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.evaluators import BoundEvaluator, EvaluatorContext
from big_retrieval.evals.graded import mean_metrics
from big_retrieval.evals.judged import lacking
from big_retrieval.evals.modes import SIDES
from big_retrieval.evals.ranking import Ranking
from big_retrieval.evals.rankings import Rankings
from big_retrieval.evals.top_k import check_depth, top

log = logging.getLogger(__name__)


class Bm25:
    """Documents, ranked for queries by BM25 in Lucene's form.

    A document's score is the sum over the query's words of log(1 + (N - n + 0.5) / (n + 0.5)) times
    f / (f + k1 (1 - b + b length / mean length)), where n of N documents have the word, this one f
    times. Words are those of `find_words`; none is left out or stemmed.

    Args:
      documents: texts; an empty one is never found.
      k1: how slowly further occurrences of a word stop to count.
      b: how much long documents are held back, from 0 to 1.

    Raises:
      UserError: the library is not installed.
    """

    def __init__(self, documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75):
        self._library, self._index = _library(), None
        self._documents = len(documents)
        words = list(map(find_words, documents))
        if any(words):
            self._index = self._library.BM25(method="lucene", k1=k1, b=b, backend="numpy")
            self._index.index(words, show_progress=False)

    def search(
        self, queries: Sequence[str], depth: int, right: Sequence[Sequence[int]] = ()
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The best documents of every query.

        Args:
          queries: texts.
          depth: documents of a query at most.
          right: for each query some documents; (): none.

        Returns:
          Indices of documents, int32 [Q, depth], best first, of equal scores the earlier document;
          and their scores, float32 [Q, depth]. Documents without a word of the query are not
          ranked: behind the last one that has, the index is -1 and the score -inf. And the best
          score of the documents in `right`, found or not, float32 [Q]; NaN where there are none.

        Raises:
          UserError: depth is below 1.
        """
        check_depth(depth)
        indices = np.full((len(queries), depth), -1, np.int32)
        scores = np.full((len(queries), depth), -np.inf, np.float32)
        best = np.array([0.0 if len(found) else np.nan for found in right], np.float32)
        for number, query in enumerate(map(find_words, queries)):
            known = [] if self._index is None else self._index.get_tokens_ids(query)
            if self._index is None or not known:
                continue
            values = self._index.get_scores_from_ids(known)  # [D]
            if right and len(right[number]):
                best[number] = values[list(right[number])].max()
            found, values = top(values, depth)
            indices[number, : len(found)], scores[number, : len(found)] = found, values
        return indices, scores, best

    def parts(self, query: str, document: int) -> list[tuple[str, float]]:
        """What each word of a query adds to a document's score, largest first.

        Args:
          query: a text.
          document: its index.
        """
        if self._index is None:
            return []
        counts = collections.Counter(find_words(query))
        lists, found = self._index.scores, []
        for word, count in counts.items():
            for column in self._index.get_tokens_ids([word]):
                here = slice(*lists["indptr"][column : column + 2])
                value = lists["data"][here][lists["indices"][here] == document].sum()
                found.append((word, count * float(value)))
        return sorted((each for each in found if each[1]), key=lambda each: -each[1])

    @property
    def _width(self) -> int:
        """W."""
        return 1 if self._index is None else len(self._index.scores["indptr"]) - 1

    def weights(self) -> scipy.sparse.csr_array:
        """What each word adds to a document's score when a query has it, float32 [D, W]."""
        if self._index is None:
            return scipy.sparse.csr_array((self._documents, self._width), dtype=np.float32)
        found = self._index.scores
        lists = (found["data"], found["indices"], found["indptr"])
        whole = scipy.sparse.csc_array(lists, shape=(self._documents, self._width))
        return scipy.sparse.csr_array(whole.tocsr(), dtype=np.float32)

    def counts(self, queries: Sequence[str]) -> scipy.sparse.csr_array:
        """How often queries have each word, float32 [Q, W]; times `weights` they are the scores."""
        rows = [
            [] if self._index is None else self._index.get_tokens_ids(words)
            for words in map(find_words, queries)
        ]
        pointers = np.cumsum([0, *map(len, rows)])
        columns = np.array([column for row in rows for column in row], np.int64)
        ones = np.ones(len(columns), np.float32)
        out = scipy.sparse.csr_array((ones, columns, pointers), shape=(len(rows), self._width))
        out.sum_duplicates()
        return out


def _library() -> Any:
    try:
        import bm25s  # here, not above: it starts jax's backend, which --distributed must do first
    except ImportError:
        raise UserError(
            "BM25 needs the library bm25s, which is not installed; install the extra "
            "big_retrieval[bm25]."
        ) from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it tells of every index
    return bm25s


@dataclass(frozen=True)
class Bm25Ranking(Ranking):
    """The metrics of `Ranking`, of the same queries and documents, by BM25 in place of the model.

    A record's text joins all text fields of its side with their titles, without their prefixes; of
    several texts in a column it has the first, as for a model. A query without any result counts 0.
    Of documents with equal scores the earlier one comes first, as BM25 is commonly measured; ties
    are not counted against it as they are against a model, whose scores hardly ever tie. Field
    weightings and modes do not apply to words.

    Attributes:
      columns: the columns of each side's texts.
    """

    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def check_data(self, context: EvaluatorContext) -> None:
        """Reads the first texts of both sides.

        Raises:
          UserError: there is no such column, or it holds no texts.
        """
        queries, documents = context.source.queries, context.source.documents
        for side, source in (("query", queries), ("document", documents)):
            for column in self.columns[side] if len(source) else ():
                _first_text(source, 0, column)  # "" where this one has none; they are counted later

    def run(self, context: EvaluatorContext, weights: Any = None) -> dict[str, float]:
        """Ranks the documents for all queries; there are no examples, and `weights` are not used.

        Raises:
          UserError: no document has a text, or the library bm25s is not installed.
        """
        judged, source = self.judgements(context), context.source
        queries = side_texts(source.queries, self.columns["query"], judged.asked)
        documents = side_texts(source.documents, self.columns["document"])
        if not any(documents):
            told = " and ".join(map(repr, self.columns["document"]))
            raise UserError(
                f"{source.documents.name} has no text in {told}, so BM25 has nothing to rank; name "
                "another column in config.fields."
            )
        depth = min(judged.search_depth, len(documents))
        found, scores, _ = Bm25(documents).search(queries, depth)
        ranked = judged.ranked(judged.asked, found, scores)
        values = judged.values(ranked)
        notes = {
            "queries without text": sum(not text for text in queries),
            "documents without text": sum(not text for text in documents),
            "queries without any result": int(np.sum(ranked.found[:, 0] < 0)),
        }
        log.info(judged.summary(" by BM25", lacking(notes)))
        if context.rankings is not None:
            with Rankings(context.rankings, source, context.extras) as writer:
                writer.add(judged.asked, ranked.found, ranked.scores, values)
        return mean_metrics(values)


def make_bm25_evaluators(
    config: Config, sources: Mapping[str, RecordSource]
) -> tuple[dict[str, BoundEvaluator], list[str]]:
    """The ranking evaluators of a config, answered by BM25.

    Args:
      config: checked.
      sources: records of each ranking evaluator, by its name.

    Returns:
      The evaluators by the prefix of their metrics, such as `ranking/test`, and the prefixes of the
      others, which BM25 cannot answer.

    Raises:
      UserError: there is no ranking evaluator, or no text field on a side.
    """
    names = {name: part.prefix(name) for name, part in sorted(config.evals.items())}
    out: dict[str, BoundEvaluator] = {}
    for name, prefix in names.items():
        part: Any = config.evals[name]
        if part.judged:
            keys = {key.name: getattr(part, key.name) for key in fields(Ranking)}
            ranking = Bm25Ranking(**keys, columns=text_columns(config))
            context = EvaluatorContext(name, sources.get(name), {}, None, None)  # type: ignore
            out[prefix] = BoundEvaluator(ranking, context)
    if not out:
        have = ", ".join(names.values()) or "none at all"
        raise UserError(
            f"--bm25 needs an evaluator of the type 'ranking', but config.evals has {have}; add "
            "one."
        )
    return out, [prefix for prefix in names.values() if prefix not in out]


def text_columns(config: Config) -> dict[str, tuple[str, ...]]:
    """Side -> the columns of its text fields, each once, in the order of the fields' names.

    The column of a field's titles stands in front of that of its texts.

    Raises:
      UserError: a side has no text field.
    """
    out = {}
    for side in SIDES:
        texts: list[Any] = [config.fields[name] for name in sorted(config.side(side, "text"))]
        columns = [column for f in texts for column in (f.title, f.column) if column]
        if not columns:
            raise UserError(
                f"--bm25 compares words, but config.fields has no text field on the {side} side; "
                "add one, or give a config that has."
            )
        out[side] = tuple(dict.fromkeys(columns))
    return out


def side_texts(
    source: RecordSource, columns: Sequence[str], records: np.ndarray | None = None
) -> list[str]:
    """The text of each record: the first one of every column, joined by a space.

    Args:
      source: queries or documents.
      columns: of texts; one that a record lacks adds nothing.
      records: whose text is wanted, [n]; None: of all.

    Returns:
      n texts, "" where no column has one.
    """
    return [
        " ".join(
            text for column in columns if (text := _first_text(source, int(index), column)) != ""
        )
        for index in (range(len(source)) if records is None else records)
    ]


def _first_text(source: RecordSource, index: int, column: str) -> str:
    try:
        return texts_of(source, index, column)[0]
    except Damaged:
        return ""
