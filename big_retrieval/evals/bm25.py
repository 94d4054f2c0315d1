"""BM25 by the library bm25s, as a baseline for models."""

import collections
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from big_retrieval.config import Config
from big_retrieval.data.sources import RecordSource, texts_of
from big_retrieval.data.text.normalize import find_words
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.evaluators import BoundEvaluator, EvaluatorContext
from big_retrieval.evals.judged import lacking
from big_retrieval.evals.modes import SIDES
from big_retrieval.evals.ranking import Ranking, records_of
from big_retrieval.evals.rankings import Rankings
from big_retrieval.evals.top_k import check_depth, top

log = logging.getLogger(__name__)


class Bm25:
    """Index of documents for BM25 in Lucene's form.

    A document's score is the sum over the query's words of log(1 + (N - n + 0.5) / (n + 0.5)) times
    f / (f + k1 (1 - b + b length / mean length)), where n of N documents contain the word, and this
    document contains it f times. `find_words` splits texts, without stop words and stemming.

    Args:
      documents: texts; the search never returns an empty text.
      k1: saturation of repeated words; larger values let repetitions count more.
      b: penalty of long documents, from 0 to 1.

    Attributes:
      index: index of the library bm25s; None if no document has a word.
    """

    def __init__(self, documents: Sequence[str], *, k1: float = 1.2, b: float = 0.75):
        library = _library()
        words_by_document = list(map(find_words, documents))
        self.index: Any = None
        if any(words_by_document):
            self.index = library.BM25(method="lucene", k1=k1, b=b, backend="numpy")
            self.index.index(words_by_document, show_progress=False)

    def search(
        self, queries: Sequence[str], depth: int, positives: Sequence[Sequence[int]] = ()
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Searches for the best documents of every query.

        Args:
          depth: maximum number of documents per query, at least 1.
          positives: documents of each query whose best score is also returned; empty for none.

        Returns:
          - Document indices, int32 [Q, depth], best first, the lower index of equal scores first.
            Documents without a word of the query are not ranked: the row is padded with -1.
          - Scores, float32 [Q, depth]; padded with -inf.
          - Best score of each query's positives, ranked or not, float32 [Q]; NaN without positives.
        """
        check_depth(depth)
        indices = np.full((len(queries), depth), -1, np.int32)
        scores = np.full((len(queries), depth), -np.inf, np.float32)
        best = np.array([0.0 if len(documents) else np.nan for documents in positives], np.float32)
        for row, query in enumerate(map(find_words, queries)):
            tokens = self.word_ids(query)
            if self.index is None or not tokens:
                continue
            values = self.index.get_scores_from_ids(tokens)  # [D]
            if positives and len(positives[row]):
                best[row] = values[list(positives[row])].max()
            hits, values = top(values, depth)
            indices[row, : len(hits)], scores[row, : len(hits)] = hits, values
        return indices, scores, best

    def word_ids(self, words: list[str]) -> list[int]:
        """Returns the library's ids of the words that occur in the documents."""
        return [] if self.index is None else self.index.get_tokens_ids(words)

    def parts(self, query: str, document: int) -> list[tuple[str, float]]:
        """Returns the contribution of each word of a query to a document's score, largest first."""
        if self.index is None:
            return []
        counts = collections.Counter(find_words(query))
        lists, parts = self.index.scores, []
        for word, count in counts.items():
            for word_id in self.word_ids([word]):
                span = slice(*lists["indptr"][word_id : word_id + 2])
                value = lists["data"][span][lists["indices"][span] == document].sum()
                parts.append((word, count * float(value)))
        return sorted((pair for pair in parts if pair[1]), key=lambda pair: -pair[1])


def _library() -> Any:
    try:
        # Not at the top: the import starts jax's backend, which --distributed must do.
        import bm25s
    except ImportError:
        raise UserError("BM25 needs bm25s: install the extra big_retrieval[bm25].") from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # else it logs every index
    return bm25s


@dataclass(frozen=True)
class Bm25Ranking(Ranking):
    """`Ranking` by BM25 instead of the model, on the same queries and documents.

    A record's text joins all text fields of its side with their titles, without their prefixes; of
    several texts in a column, the first counts, as for a model. A query without results counts 0.
    Among equal scores, the lower document index comes first, as usual for BM25; ties do not count
    against it. Field weightings and modes do not apply.
    """

    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # text columns of each side

    def check_data(self, context: EvaluatorContext) -> None:
        for side in SIDES:
            source = records_of(context, side)
            for column in self.columns[side] if len(source) else ():
                _first_text(source, 0, column)

    def run(self, context: EvaluatorContext, weights: Any = None) -> dict[str, float]:
        judged, source = self.judgements(context), context.source
        queries = side_texts(source.queries, self.columns["query"], judged.asked)
        documents = side_texts(source.documents, self.columns["document"])
        if not any(documents):
            columns = " and ".join(map(repr, self.columns["document"]))
            raise UserError(
                f"{source.documents.name} has no text in {columns}, so BM25 has nothing to rank. "
                "Name another column in config.fields."
            )
        depth = min(judged.search_depth, len(documents))
        hits, scores, _ = Bm25(documents).search(queries, depth)
        with Rankings(context.rankings, source, context.extras) as writer:
            means = judged.means(judged.blocks(hits, scores), writer)
        is_other = (hits >= 0) & (hits != judged.same_id[judged.asked][:, None])
        notes = {
            "queries without text": sum(not text for text in queries),
            "documents without text": sum(not text for text in documents),
            "queries without any result": int(np.sum(~is_other.any(axis=1))),
        }
        log.info(judged.summary(" by BM25", lacking(notes)))
        return means


def make_bm25_evaluators(
    config: Config, sources: Mapping[str, RecordSource]
) -> tuple[dict[str, BoundEvaluator], list[str]]:
    """Builds the ranking evaluators of a config with BM25 as the system.

    Returns the evaluators by prefix, such as `ranking/test`, and the prefixes of all others.
    """
    out: dict[str, BoundEvaluator] = {}
    skipped = []
    for name, evaluator in sorted(config.evals.items()):
        if not evaluator.judged:
            skipped.append(evaluator.prefix(name))
            continue
        keys = {key.name: getattr(evaluator, key.name) for key in fields(Ranking)}
        ranking = Bm25Ranking(**keys, columns=text_columns(config))
        context = EvaluatorContext(name, sources.get(name), {}, None, None)  # type: ignore
        out[evaluator.prefix(name)] = BoundEvaluator(ranking, context)
    if not out:
        raise UserError(
            "--bm25 needs an evaluator of the type 'ranking'; config.evals has "
            f"{', '.join(skipped) or 'no evaluator'}."
        )
    return out, skipped


def text_columns(config: Config) -> dict[str, tuple[str, ...]]:
    """Returns the text columns of each side, sorted by field name, titles before texts."""
    out = {}
    for side in SIDES:
        texts: list[Any] = [config.fields[name] for name in sorted(config.side(side, "text"))]
        columns = [column for f in texts for column in (f.title, f.column) if column]
        if not columns:
            raise UserError(f"--bm25 needs a text field on the {side} side of config.fields.")
        out[side] = tuple(dict.fromkeys(columns))
    return out


def side_texts(
    source: RecordSource, columns: Sequence[str], records: np.ndarray | None = None
) -> list[str]:
    """Joins the first texts of all columns, of all `records` by default; "" without a text."""
    indices = range(len(source)) if records is None else np.asarray(records).tolist()
    return [
        " ".join(filter(None, (_first_text(source, index, column) for column in columns)))
        for index in indices
    ]


def _first_text(source: RecordSource, index: int, column: str) -> str:
    try:
        return texts_of(source, index, column)[0]
    except Damaged:
        return ""
