"""Examples of retrieval in both directions: selected queries and their best documents.

All processes score embeddings; the first one reads texts and pictures. Nothing is encoded again.
Only the scores of the selected queries are kept in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from big_retrieval.data.sources import evenly_spaced
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems, positives_of
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import DocumentScorer, Score
from big_retrieval.evals.retrieval import RetrievalResult
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report import gradcam
from big_retrieval.report.example_files.selection import (
    DEEPEST,
    SPREAD,
    TOP,
    best_first,
    group_content,
    matched_words,
    rounded,
    term_names,
    worst,
)
from big_retrieval.report.thumbnails import show_item


@dataclass(frozen=True)
class SelectedQueries:
    """Selected queries of one direction, with their scores of all documents.

    Attributes:
      first: side of the queries.
      second: side of the documents.
      positives: of the queries among the documents.
      ranks: rank of the best positive of every query, [Q].
      groups: name, rule and query indices of each group.
      scores: query index -> scores of all documents, [D].
      words: names of the V terms of lexical embeddings; empty for dense ones.
    """

    first: FieldItems
    second: FieldItems
    positives: Positives
    ranks: np.ndarray
    groups: Sequence[tuple[str, str, np.ndarray]]
    scores: dict[int, np.ndarray]
    words: Sequence[str]

    def content(self) -> dict[str, Any]:
        """Returns the content for JSON; reads texts and pictures."""
        query, answer = self.first.field, self.second.field
        return {
            "name": f"{query}_to_{answer}",
            "query": query,
            "answer": answer,
            "queries": len(self.ranks),
            "answers": len(self.second.owners),
            "failed": int(np.sum(self.ranks > 1)),
            "groups": [group_content(*group, self._example) for group in self.groups],
        }

    def _example(self, query: int) -> dict[str, Any]:
        scores = self.scores[query]  # [D]
        is_positive = self.positives.mask(query)  # [D]
        top = best_first(scores, is_positive, TOP)
        example: dict[str, Any] = {
            "place": query,
            "query": _item(self.first, query),
            "rank": int(self.ranks[query]),
            "right_answers": int(is_positive.sum()),
            "answers": [self._answer(query, index, is_positive) for index in top.tolist()],
        }
        positives = np.flatnonzero(is_positive)
        if len(positives) and not is_positive[top].any():
            best = best_first(scores[positives], is_positive[positives], 1)[0]
            example["right"] = self._answer(query, int(positives[best]), is_positive)
        return example

    def _answer(self, query: int, document: int, is_positive: np.ndarray) -> dict[str, Any]:
        answer: dict[str, Any] = {
            **_item(self.second, document),
            "score": rounded(self.scores[query][document]),
            "right": bool(is_positive[document]),
        }
        if self.words:
            sides = self.first.embeddings[[query]], self.second.embeddings[[document]]  # CSR [1, V]
            answer["matched"] = matched_words(*sides, self.words)
        return answer


def _item(side: FieldItems, index: int) -> dict[str, Any]:
    record, text = side.items[index].tolist()
    return show_item(side.source, side.reader, record, text)


def retrieval_content(
    result: RetrievalResult, directions: Sequence[SelectedQueries], context: EvaluatorContext
) -> dict[str, Any]:
    """Returns the content of the file: examples of each direction, and Grad-CAM of some records."""
    first, second, _ = result.directions[0]
    attributions = gradcam.of_records(
        context.encoder,
        result.weights,
        context.source,
        context.readers,
        (first.field, second.field),
    )
    return {
        "directions": [direction.content() for direction in directions],
        **({"attributions": attributions} if attributions else {}),
    }


def select_queries(
    result: RetrievalResult, names: Sequence[str], context: EvaluatorContext
) -> list[SelectedQueries]:
    """Selects queries of both directions and scores all documents for them; on every process."""
    options: Any = {"score": context.topology.score, "encoder": context.encoder}
    return [
        select_direction(*direction, names=names, chunk=result.chunk, **options)
        for direction in result.directions
    ]


def select_direction(
    first: FieldItems,
    second: FieldItems,
    ranks: np.ndarray,
    *,
    names: Sequence[str],
    score: Score,
    encoder: Encoder,
    chunk: int,
) -> SelectedQueries:
    """Selects queries of one direction and scores all documents for them.

    Args:
      first: side of the queries.
      second: side of the documents.
      ranks: rank of the best positive of each query, [Q].
      names: queries to select in addition, named as in `first.names()`.
      score: a topology's score on blocks.
      chunk: maximum number of queries scored at a time.
    """
    scorer = DocumentScorer(second.embeddings, score=score, encoder=encoder, chunk=chunk)
    positives = positives_of(first, second)
    deepest = worst(np.where(ranks > 1, ranks, np.nan), first.different, DEEPEST)
    even = evenly_spaced(len(ranks), SPREAD)
    groups = [
        ("spread", f"{len(even)} of {len(ranks):,} queries, evenly spaced in the data.", even),
        (
            "deepest",
            "The queries whose first right answer ranks worst, one of a record or group.",
            deepest,
        ),
    ]
    index_of = {name: index for index, name in enumerate(first.names())} if names else {}
    if chosen := [index_of[name] for name in dict.fromkeys(names) if name in index_of]:
        groups.insert(0, ("chosen", "Queries that --show names.", np.array(chosen)))
    queries = np.unique(np.concatenate([indices for *_, indices in groups]))
    rows = scorer.map(_scores, first.embeddings[queries], queries)
    scores = dict(zip(queries.tolist(), rows, strict=True))  # [D] each
    readers = first.reader, second.reader
    words = term_names(encoder, first.field, first.embeddings, readers)
    return SelectedQueries(first, second, positives, ranks, groups, scores, words)


@lru_cache(maxsize=32)
def _scores(score: Score) -> Callable[..., jax.Array]:
    def scores(queries: jax.Array, ids: jax.Array, documents: jax.Array) -> jax.Array:
        return score(queries, documents)  # [C, D]

    return scores
