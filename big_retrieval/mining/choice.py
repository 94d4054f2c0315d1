"""Choice of a query's hard negatives among the documents that a search returned."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.data.text.normalize import WORD, find_words, normalize_text
from big_retrieval.mining.options import MiningOptions

SYMBOL = r"[^\p{Z}\p{C}]"  # any other visible character


@dataclass(frozen=True)
class QueryResults:
    """Ranking of a query; all documents are indices in the `Task`.

    Attributes:
      documents: documents [n], best first.
      positives: relevant documents of this query and of other queries with its text.
      best_positive: best score of a relevant document; NaN if unknown.
    """

    documents: Sequence[int]
    scores: Sequence[float]
    positives: Collection[int]
    best_positive: float


@dataclass(frozen=True)
class Chosen:
    """A hard negative: the document, its score, and its rank in the search results, from 1."""

    document: int
    score: float
    rank: int


def choose_negatives(
    results: QueryResults,
    options: MiningOptions,
    text_of: Callable[[int], str],
    answers: Sequence[str],
    dropped: Counter[str],
    itself: Callable[[int], bool] = lambda document: False,
) -> list[Chosen]:
    """Returns the hard negatives of a query, best first.

    Leaves out relevant documents, the query itself, and copies of relevant documents or of earlier
    negatives. Also leaves out documents with too high a score, or with an answer inside (as in
    DPR's evaluation).

    Args:
      text_of: title and text of a document.
      dropped: counts the documents left out, by reason.
      itself: returns True if a document is the query.
    """
    limit = ceiling(results.best_positive, options)
    keys = {_key(text_of(document)) for document in results.positives}
    answer_words = [words_of(answer) for answer in answers]
    negatives: list[Chosen] = []
    candidates = 0  # number of candidates so far, for `skip`
    for rank, (document, score) in enumerate(
        zip(results.documents, results.scores, strict=True), 1
    ):
        if options.count and len(negatives) == options.count:
            break
        if document in results.positives or itself(document):
            dropped["right" if document in results.positives else "the query itself"] += 1
            continue
        candidates += 1
        text = text_of(document)
        reason = (
            "first ranks" if candidates <= options.skip
            else "score too near" if not score <= limit
            else "same text" if _key(text) in keys
            else "answer inside" if has_answer(text, answer_words)
            else ""
        )  # fmt: skip
        if reason:
            dropped[reason] += 1
            continue
        keys.add(_key(text))
        negatives.append(Chosen(document, score, rank))
    return negatives


def ceiling(best: float, options: MiningOptions) -> float:
    """Returns the highest score of a negative, infinite without a limit or score of a positive."""
    limits = [np.inf]
    if not np.isnan(best):
        limits += [best - options.margin] if options.margin is not None else []
        # For a negative score (a distance), `share` must also lower the limit: use |best|.
        limits += [best - (1 - options.share) * abs(best)] if options.share is not None else []
    return float(min(limits))


def _key(text: str) -> str:
    """Returns a key that is equal for copies of a text."""
    return normalize_text(text, ignore_case=True)


def words_of(text: str) -> tuple[str, ...]:
    """Returns the words and other visible characters of a text, as in DPR's evaluation."""
    return tuple(find_words(text, f"{WORD}|{SYMBOL}"))


def has_answer(text: str, answers: Sequence[tuple[str, ...]]) -> bool:
    """Returns True if a text contains the words (`words_of`) of an answer, consecutively.

    Answers without words do not count.
    """
    answers = [answer for answer in answers if answer]
    words = words_of(text) if answers else ()
    indices: dict[str, list[int]] = {}
    for index, word in enumerate(words):
        indices.setdefault(word, []).append(index)
    return any(
        words[start : start + len(answer)] == answer
        for answer in answers
        for start in indices.get(answer[0], ())
    )
