"""Examples of what a model finds: chosen by rule, written to examples/<evaluator>.json.

Every process takes part where embeddings are scored; texts and pictures are read, and files
written, by the first process alone. Nothing is encoded again, and besides the chunks of the
evaluation itself only the scores of the few chosen queries are held.
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

SPREAD, DEEPEST, SURPRISING = 5, 4, 4  # examples of each kind and direction
TOP = 5  # answers of an example
MATCHED = 5  # words of an answer of a lexical model
MOST_MARGINS = 4096  # queries whose margin of score is computed
log = logging.getLogger(__name__)

Make = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Show:
    """Takes the examples of one evaluator, which calls it once.

    Attributes:
      write: called with a function that makes the examples.
      names: of queries that are shown in any case, as in rankings/*/queries.csv.
      found: takes those of the names that the evaluator has.
    """

    write: Callable[[Make], None]
    names: Sequence[str] = ()
    found: set[str] = field(default_factory=set)

    def __call__(self, make: Make) -> None:
        """Writes what `make` returns."""
        self.write(make)


class Folder:
    """Where the examples of a run go: examples/<evaluator>.json, on the first process."""

    def __init__(self, workdir: Path, step: int, extras: Extras, names: Sequence[str] = ()) -> None:
        """Prepares; writes nothing yet.

        Args:
          workdir: the run folder.
          step: of the weights that the examples show.
          extras: makes a file that cannot be written a warning.
          names: see `Show`.
        """
        self._root, self._step, self._extras = workdir / "examples", step, extras
        self._names, self._found = names, set[str]()

    def show(self, evaluator: str) -> Show:
        """What an evaluator calls once with a function that makes its examples.

        Args:
          evaluator: the prefix of its metrics, such as `retrieval/test`.
        """

        def write(make: Make) -> None:
            if jax.process_index() != 0:
                return
            name = f"{re.sub(r'[^A-Za-z0-9_.-]', '-', evaluator)}.json"
            with self._extras(f"{self._root.name}/{name}"):
                self._root.mkdir(parents=True, exist_ok=True)
                found = {"evaluator": evaluator, "step": self._step, **make()}
                write_bytes(self._root / name, to_json(found))

        return Show(write, self._names, self._found)

    def warn_of_unknown(self) -> None:
        """Warns of names that no evaluator had; after all evaluators."""
        if unknown := [name for name in self._names if name not in self._found]:
            log.warning(
                f"--show: {len(unknown)} of {len(self._names)} names are no query of a retrieval "
                f"evaluator, such as {unknown[0]!r}; --rankings writes the names to queries.csv"
            )


def worst(values: np.ndarray, owners: np.ndarray, number: int) -> np.ndarray:
    """The places of the largest finite values, one per owner, the first of equal ones.

    Args:
      values: [Q]; what is not finite does not count.
      owners: [Q].
      number: how many at most.

    Returns:
      int64 [<= number], largest value first.
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
    """Some queries and the rule that chose them."""

    name: str
    how: str
    queries: np.ndarray


@dataclass(frozen=True)
class Direction:
    """The chosen queries of one direction, with the scores of all their answers.

    Attributes:
      first: the queries' side.
      second: the answers' side.
      ranks: of all queries, [Q].
      groups: what was chosen.
      scores: query -> scores of all answers, [D].
      words: of the terms of lexical embeddings; (): embeddings are dense.
    """

    first: FieldItems
    second: FieldItems
    ranks: np.ndarray
    groups: Sequence[QueryGroup]
    scores: dict[int, np.ndarray]
    words: Sequence[str] = ()

    def describe(self) -> dict[str, Any]:
        """All of it, ready for JSON; reads texts and pictures."""
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
    """The words with the largest shares of a score, [word, share] each, largest first.

    Args:
      query: lexical, CSR [1, V].
      answer: the same.
      words: of the V terms.
    """
    matched = shared(query, answer, words).words[:MATCHED]
    return [[word, round(share, 4)] for word, _, share in matched if np.isfinite(share)]


def _item(side: FieldItems, place: int) -> dict[str, Any]:
    record, text = side.items[place].tolist()
    return show_item(side.source, side.reader, record, text)


def best_first(scores: np.ndarray, right: np.ndarray, number: int) -> np.ndarray:
    """The places of the best answers in the order that ranks count in: ties and NaN against right.

    Args:
      scores: [D].
      right: bool [D].
      number: how many at most.

    Returns:
      int64 [min(number, D)].
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
    """Chooses queries of one direction and scores their answers; on every process.

    Args:
      first: the queries' side.
      second: the answers' side.
      ranks: of the best right answer of each query, [Q].
      score: a topology's score on blocks.
      encoder: knows the devices.
      chunk: queries scored at a time, at most.
      show: names further queries, as `first.names()` has them, and takes those that are found.
    """
    scorer = DocumentScorer(second.embeddings, score=score, encoder=encoder, chunk=chunk)
    owners = encoder.whole(second.ids)

    def compute(make: Callable[[Score], Callable[..., Any]], queries: np.ndarray) -> np.ndarray:
        return scorer.map(make, first.embeddings[queries], first.ids[queries], owners)

    failed = np.flatnonzero(ranks > 1)
    deepest = worst(np.where(ranks > 1, ranks, np.nan), first.different, DEEPEST)
    rest = np.setdiff1d(failed, deepest)
    asked = rest[evenly_spaced(len(rest), MOST_MARGINS)]
    margins = compute(_margin, asked) if len(asked) else np.zeros(0)
    margins = np.where(margins > 0, margins, np.nan)
    surprising = asked[worst(margins, first.different[asked], SURPRISING)]
    even = evenly_spaced(len(ranks), SPREAD)
    among = f", among {len(asked):,} of them evenly spaced" if len(asked) < len(rest) else ""
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
    places = {name: place for place, name in enumerate(first.names())} if show.names else {}
    known = {name: places[name] for name in show.names if name in places}
    show.found.update(known)
    if known:
        groups.insert(
            0, QueryGroup("chosen", "Queries that --show names.", np.array(list(known.values())))
        )
    queries = np.unique(np.concatenate([group.queries for group in groups]))
    table = compute(_scorer, queries)  # [chosen, D]
    scores = dict(zip(queries.tolist(), table, strict=True))
    return Direction(first, second, ranks, groups, scores, _words(first, second, encoder))


def _words(first: FieldItems, second: FieldItems, encoder: Encoder) -> Sequence[str]:
    """What the terms of lexical embeddings are called; () of dense ones."""
    terms = encoder.terms(first.field) if scipy.sparse.issparse(first.embeddings) else None
    tokenizer = first.reader.tokenizer or second.reader.tokenizer
    return () if terms is None else terms.names(tokenizer)
