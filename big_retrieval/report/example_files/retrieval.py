"""Examples of retrieval in both directions: selected queries and their best documents.

All processes score embeddings; the first process reads texts and pictures. Nothing is encoded
again. Only the scores of the selected queries are kept in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems, positives_of
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranks import DocumentScorer, Score
from big_retrieval.evals.retrieval import RetrievalResult
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report import gradcam
from big_retrieval.report.example_files.selection import (
    DEEPEST,
    TOP,
    Group,
    best_first,
    direction_content,
    even_group,
    groups_content,
    matched_words,
    rounded,
    term_names,
    worst,
)
from big_retrieval.report.thumbnails import show_item


@dataclass(frozen=True)
class SelectedQueries:
    """Selected queries of one direction, with their scores of all documents."""

    first: FieldItems  # queries
    second: FieldItems  # documents
    positives: Positives
    ranks: np.ndarray  # rank of the best positive of every query, [Q]
    groups: Sequence[Group]
    scores: dict[int, np.ndarray]  # scores of all documents, [D], by query index
    words: Sequence[str]  # names of the V terms of lexical embeddings; empty for dense embeddings

    def content(self) -> dict[str, Any]:
        """Returns the content for JSON; reads texts and pictures."""
        fields = self.first.field, self.second.field
        counts = len(self.ranks), len(self.second.owners)
        groups = groups_content(self.groups, self._example)
        return direction_content(fields, counts, int(np.sum(self.ranks > 1)), groups)

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
    names = [side.field for side in result.directions[0][:2]]
    attributions = gradcam.of_records(
        context.encoder, result.weights, context.source, context.readers, names
    )
    content = {"directions": [direction.content() for direction in directions]}
    return content | ({"attributions": attributions} if attributions else {})


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
    """Selects queries (`first`) and scores all documents (`second`) for them.

    Args:
      ranks: rank of the best positive of each query, [Q].
      names: queries to select in addition, named as in `first.names()`.
    """
    scorer = DocumentScorer(second.embeddings, score=score, encoder=encoder, chunk=chunk)
    positives = positives_of(first, second)
    deepest = worst(np.where(ranks > 1, ranks, np.nan), first.different, DEEPEST)
    rule = "The queries whose first right answer ranks worst, one per record or group."
    groups = [even_group(len(ranks)), ("deepest", rule, deepest)]
    index_of = {name: index for index, name in enumerate(first.names())} if names else {}
    if selected := [index_of[name] for name in dict.fromkeys(names) if name in index_of]:
        groups.insert(0, ("chosen", "Queries of --show.", np.array(selected)))
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
