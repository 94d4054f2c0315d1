"""Examples of rankings for the report: selected by rule, written to examples/<evaluator>.json.

All processes score embeddings; the first one reads texts and pictures and writes the files.
Nothing is encoded again. Only the scores of the selected queries are kept in memory.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.data.sources import evenly_spaced
from big_retrieval.evals.groups import FieldItems
from big_retrieval.evals.ranks import DocumentScorer, Score, answers
from big_retrieval.evals.thumbnails import show_item
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.extras import Extras
from big_retrieval.sparse.listing import shared

SPREAD, DEEPEST, SURPRISING = 5, 4, 4  # examples per group and direction
TOP = 5  # documents per example
MATCHED = 5  # words per document, of lexical models
MOST_MARGINS = 4096  # maximum number of queries whose score margin is computed
log = logging.getLogger(__name__)

Make = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Show:
    """Writer of the examples of one evaluator, called once.

    Attributes:
      write: called with a function that builds the examples.
      names: queries to show in addition, named as in rankings/*/queries.csv.
      found: the evaluator adds the names that it has.
    """

    write: Callable[[Make], None]
    names: Sequence[str] = ()
    found: set[str] = field(default_factory=set)

    def __call__(self, make: Make) -> None:
        """Writes the result of `make`."""
        self.write(make)


class Folder:
    """Folder of examples of a run, which the first process writes.

    Args:
      workdir: the run folder.
      step: step of the evaluated weights.
      extras: turns a file that cannot be written into a warning.
      names: as in `Show`.
    """

    def __init__(self, workdir: Path, step: int, extras: Extras, names: Sequence[str] = ()) -> None:
        self._root, self._step, self._extras = workdir / "examples", step, extras
        self._names, self._found = names, set[str]()

    def show(self, evaluator: str) -> Show:
        """Returns the writer of an evaluator, which is given by its prefix (`retrieval/test`)."""

        def write(make: Make) -> None:
            if jax.process_index() != 0:
                return
            name = f"{re.sub(r'[^A-Za-z0-9_.-]', '-', evaluator)}.json"
            with self._extras(f"{self._root.name}/{name}"):
                self._root.mkdir(parents=True, exist_ok=True)
                content = {"evaluator": evaluator, "step": self._step, **make()}
                write_bytes(self._root / name, to_json(content))

        return Show(write, self._names, self._found)

    def warn_of_unknown(self) -> None:
        """Warns of names that no evaluator has; called after all evaluators."""
        if unknown := [name for name in self._names if name not in self._found]:
            log.warning(
                f"--show: {len(unknown)} of {len(self._names)} names are no query of a retrieval "
                f"evaluator, such as {unknown[0]!r}; --rankings writes the names to queries.csv"
            )


def worst(values: np.ndarray, owners: np.ndarray, number: int) -> np.ndarray:
    """Returns the indices of the largest finite values [Q], at most one per owner [Q].

    Returns:
      int64 [at most `number`], largest value first; the first one of equal values.
    """
    chosen: list[int] = []
    seen: set[int] = set()
    for place in np.argsort(-np.where(np.isfinite(values), values, -np.inf), kind="stable"):
        if len(chosen) == number or not np.isfinite(values[place]):
            break
        if int(owners[place]) not in seen:
            seen.add(int(owners[place]))
            chosen.append(int(place))
    return np.array(chosen, np.int64)


@lru_cache(maxsize=32)
def _scorer(score: Score) -> Callable[..., jax.Array]:
    def scores(queries: jax.Array, ids: jax.Array, documents: jax.Array, owners: jax.Array):
        return score(queries, documents)  # [C, D]

    return scores


@lru_cache(maxsize=32)
def _margin(score: Score) -> Callable[..., jax.Array]:
    def margin(queries: jax.Array, ids: jax.Array, documents: jax.Array, owners: jax.Array):
        scores = score(queries, documents)  # [C, D]
        right = answers(ids, owners)  # [C, D]
        best = jnp.max(jnp.where(right, scores, -jnp.inf), axis=1)  # [C]
        return jnp.max(jnp.where(right, -jnp.inf, scores), axis=1) - best  # [C]

    return margin


@dataclass(frozen=True)
class QueryGroup:
    """Queries, and the rule that selected them."""

    name: str
    how: str
    queries: np.ndarray


@dataclass(frozen=True)
class Direction:
    """Selected queries of one direction, with their scores of all documents.

    Attributes:
      first: side of the queries.
      second: side of the documents.
      ranks: rank of the best positive of every query, [Q].
      groups: the selected queries.
      scores: query index -> scores of all documents, [D].
      words: names of the V terms of lexical embeddings; empty for dense ones.
    """

    first: FieldItems
    second: FieldItems
    ranks: np.ndarray
    groups: Sequence[QueryGroup]
    scores: dict[int, np.ndarray]
    words: Sequence[str] = ()

    def describe(self) -> dict[str, Any]:
        """Returns the content for JSON; reads texts and pictures."""
        return {
            "name": f"{self.first.field}_to_{self.second.field}",
            "query": self.first.field,
            "answer": self.second.field,
            "queries": len(self.ranks),
            "answers": len(self.second.owners),
            "failed": int(np.sum(self.ranks > 1)),
            "groups": [
                {
                    "name": group.name,
                    "how": group.how,
                    "examples": [self._example(query) for query in group.queries.tolist()],
                }
                for group in self.groups
            ],
        }

    def _example(self, query: int) -> dict[str, Any]:
        scores = self.scores[query]  # [D]
        right = answers(self.first.ids[[query]], self.second.ids)[0]  # [D]
        if self.first.further is not None:
            also = self.first.further[query]
            right[also[also >= 0]] = True
        top = best_first(scores, right, TOP)
        found: dict[str, Any] = {
            "place": query,
            "query": _item(self.first, query),
            "rank": int(self.ranks[query]),
            "right_answers": int(right.sum()),
            "answers": [self._answer(query, place, right) for place in top.tolist()],
        }
        if right.any() and not right[top].any():
            best = int(np.flatnonzero(right)[best_first(scores[right], right[right], 1)[0]])
            found["right"] = self._answer(query, best, right)
        return found

    def _answer(self, query: int, place: int, right: np.ndarray) -> dict[str, Any]:
        score = float(self.scores[query][place])
        found: dict[str, Any] = {
            **_item(self.second, place),
            "score": round(score, 6) if np.isfinite(score) else None,
            "right": bool(right[place]),
        }
        if self.words:
            first = self.first.embeddings[[query]]  # CSR [1, V]
            second = self.second.embeddings[[place]]
            found["matched"] = matched_words(first, second, self.words)
        return found


def matched_words(query: Embeddings, answer: Embeddings, words: Sequence[str]) -> list[list[Any]]:
    """Returns the words with the largest shares of a score, [word, share] each, largest first.

    Args:
      query: CSR [1, V].
      answer: CSR [1, V].
      words: names of the V terms.
    """
    matched = shared(query, answer, words).words[:MATCHED]
    return [[word, round(share, 4)] for word, _, share in matched if np.isfinite(share)]


def _item(side: FieldItems, place: int) -> dict[str, Any]:
    record, text = side.items[place].tolist()
    return show_item(side.source, side.reader, record, text)


def best_first(scores: np.ndarray, right: np.ndarray, number: int) -> np.ndarray:
    """Returns the indices of the best documents, int64 [min(number, D)].

    As in ranks, negatives come first among equal scores, and NaN counts against the positives.

    Args:
      scores: [D].
      right: True for positives, bool [D].
      number: maximum number of documents.
    """
    number = min(number, len(scores))
    keys = -np.where(np.isnan(scores), np.where(right, -np.inf, np.inf), scores)  # [D]
    limit = np.partition(keys, number - 1)[number - 1] if number else -np.inf
    near = np.flatnonzero(keys <= limit)
    return near[np.lexsort((near, right[near], keys[near]))][:number]


def choose(
    first: FieldItems,
    second: FieldItems,
    ranks: np.ndarray,
    *,
    score: Score,
    encoder: Encoder,
    chunk: int,
    show: Show,
) -> Direction:
    """Selects queries of one direction and scores all documents for them; runs on every process.

    Args:
      first: side of the queries.
      second: side of the documents.
      ranks: rank of the best positive of each query, [Q].
      score: a topology's score on blocks.
      chunk: maximum number of queries scored at a time.
      show: its `names` (as in `first.names()`) are selected, too.
    """
    scorer = DocumentScorer(second.embeddings, score=score, encoder=encoder, chunk=chunk)
    owners = encoder.whole(second.ids)

    def compute(make: Callable[[Score], Callable[..., Any]], queries: np.ndarray) -> np.ndarray:
        return scorer.map(make, first.embeddings[queries], first.ids[queries], owners)

    failed = np.flatnonzero(ranks > 1)
    deepest = worst(np.where(ranks > 1, ranks, np.nan), first.different, DEEPEST)
    others = np.setdiff1d(failed, deepest)
    sample = others[evenly_spaced(len(others), MOST_MARGINS)]
    margins = compute(_margin, sample) if len(sample) else np.zeros(0)
    margins = np.where(margins > 0, margins, np.nan)
    surprising = sample[worst(margins, first.different[sample], SURPRISING)]
    even = evenly_spaced(len(ranks), SPREAD)
    among = f", among {len(sample):,} of them evenly spaced" if len(sample) < len(others) else ""
    groups = [
        QueryGroup(
            "spread", f"{len(even)} of {len(ranks):,} queries, evenly spaced in the data.", even
        ),
        QueryGroup(
            "deepest",
            "The queries whose first right answer ranks worst, one of a record or group.",
            deepest,
        ),
        QueryGroup(
            "surprising",
            "Of the other queries without a right answer at rank 1 those where the best wrong "
            f"answer leads by the largest margin of score, one of a record or group{among}.",
            surprising,
        ),
    ]
    indices = {name: index for index, name in enumerate(first.names())} if show.names else {}
    named = {name: indices[name] for name in show.names if name in indices}
    show.found.update(named)
    if named:
        rule = "Queries that --show names."
        groups.insert(0, QueryGroup("chosen", rule, np.array(list(named.values()))))
    queries = np.unique(np.concatenate([group.queries for group in groups]))
    table = compute(_scorer, queries)  # [chosen, D]
    scores = dict(zip(queries.tolist(), table, strict=True))
    return Direction(first, second, ranks, groups, scores, _words(first, second, encoder))


def _words(first: FieldItems, second: FieldItems, encoder: Encoder) -> Sequence[str]:
    """Returns the names of the terms of lexical embeddings; empty for dense ones."""
    terms = encoder.terms(first.field) if scipy.sparse.issparse(first.embeddings) else None
    tokenizer = first.reader.tokenizer or second.reader.tokenizer
    return () if terms is None else terms.names(tokenizer)
