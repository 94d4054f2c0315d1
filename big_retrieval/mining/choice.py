"""Which of the documents that were found for a query become its hard negatives."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from big_retrieval.data.text.normalize import WORD, find_words, normalize_text
from big_retrieval.mining.options import MiningOptions

SYMBOL = r"[^\p{Z}\p{C}]"  # any other character that can be seen


@dataclass(frozen=True)
class QueryResults:
    """The documents that a search found for a query.

    Attributes:
      query: its number.
      documents: their numbers, best first, [n].
      scores: of these, [n].
      right: the numbers of its right documents, and of those of other queries with its text.
      best_right: the best score of a right document, found or not; NaN if no right document has a
        score.
    """

    query: int
    documents: Sequence[int]
    scores: Sequence[float]
    right: Collection[int]
    best_right: float


@dataclass(frozen=True)
class Chosen:
    """A hard negative: the document, its score, and its rank among all that were found, from 1."""

    document: int
    score: float
    rank: int


def choose(
    found: QueryResults,
    options: MiningOptions,
    text_of: Callable[[int], str],
    answers: Sequence[str],
    dropped: Counter[str],
    itself: Callable[[int], bool] = lambda number: False,
) -> list[Chosen]:
    """The hard negatives of a query, best first.

    Left out are: right documents, the query itself, documents with the text of a right document or
    of an earlier negative, documents whose scores are too near to the best right document's or
    above it, and documents that contain an answer (as DPR's evaluation decides).

    Args:
      found: the ranking.
      options: how negatives are chosen.
      text_of: title and text of a document.
      answers: known answers to the query.
      dropped: counts what was left out, by reason.
      itself: whether a document is the query.
    """
    most = ceiling(found.best_right, options)
    known = {_key(text_of(number)) for number in found.right}
    words = [words_of(answer) for answer in answers]
    left: list[Chosen] = []
    wrong = 0  # that were passed, to skip the first ones
    for rank, (number, score) in enumerate(zip(found.documents, found.scores, strict=True), 1):
        if options.count and len(left) == options.count and not options.draw:
            break
        if number in found.right or itself(number):
            dropped["right" if number in found.right else "the query itself"] += 1
            continue
        wrong += 1
        text = text_of(number)
        why = (
            "first ranks" if wrong <= options.skip
            else "score too near" if not score <= most
            else "same text" if _key(text) in known
            else "answer inside" if has_answer(text, words)
            else ""
        )  # fmt: skip
        if why:
            dropped[why] += 1
            continue
        known.add(_key(text))
        left.append(Chosen(number, score, rank))
    return _drawn(left, found.query, options) if options.draw else left


def ceiling(right: float, options: MiningOptions) -> float:
    """The highest score that a negative may have; infinite without a limit.

    Args:
      right: the best score of a right document; NaN: unknown, and then there is no limit.
      options: has the margins.
    """
    limits = [np.inf]
    if not np.isnan(right):
        limits += [right - options.margin] if options.margin is not None else []
        # A share of a negative score (a distance) is further below it, not nearer to 0.
        limits += [right - (1 - options.share) * abs(right)] if options.share is not None else []
    return float(min(limits))


def _drawn(left: list[Chosen], query: int, options: MiningOptions) -> list[Chosen]:
    """Draws some of the negatives by the seed and the query's number; best first."""
    if not options.count or len(left) <= options.count:
        return left
    rng = np.random.default_rng([options.seed, query])
    places = np.sort(rng.choice(len(left), options.count, replace=False))
    return [left[place] for place in places.tolist()]


def _key(text: str) -> str:
    """Equal for copies of a text."""
    return normalize_text(text, ignore_case=True)


def words_of(text: str) -> tuple[str, ...]:
    """The words of a text and all other characters that can be seen, as in DPR's evaluation."""
    return tuple(find_words(text, f"{WORD}|{SYMBOL}"))


def has_answer(text: str, answers: Sequence[tuple[str, ...]]) -> bool:
    """Whether the text contains all words of an answer, one behind the other.

    Args:
      text: of a passage.
      answers: the words of each answer (`words_of`); an answer without words is in no text.
    """
    wanted = [answer for answer in answers if answer]
    if not wanted:
        return False
    words = words_of(text)
    places: dict[str, list[int]] = {}
    for place, word in enumerate(words):
        places.setdefault(word, []).append(place)
    return any(
        words[start : start + len(answer)] == answer
        for answer in wanted
        for start in places.get(answer[0], ())
    )
