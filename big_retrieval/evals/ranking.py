"""Graded ranking metrics of judged queries against all documents, over several fields."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import ImageField, TextField
from big_retrieval.data.batches import FieldSpec, try_record
from big_retrieval.data.judgements import JudgedSource
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import Source
from big_retrieval.encoding import Encoder
from big_retrieval.evals import examples, graded_examples
from big_retrieval.evals.bags import bags_of, in_mode
from big_retrieval.evals.fields import EncodedFields, average, encode_fields, placed
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.graded_order import grades_of
from big_retrieval.evals.modes import Mode, parse_mode
from big_retrieval.evals.rankings import Rankings
from big_retrieval.evals.ranks import best
from big_retrieval.evals.weightings import parse_weighting
from big_retrieval.similarity import Topology

QUERIES = 4096  # whose rankings are held at a time


@dataclass(frozen=True)
class Ranked:
    """The rankings of some queries.

    Attributes:
      queries: their numbers, [q].
      found: numbers of the documents, best first, int [q, depth]; -1 behind the last one.
      scores: of the model, [q, depth].
      grades: of the documents, [q, depth]; 0 where nobody judged.
      judged: all grades of each query, [q, J], filled up with 0.
    """

    queries: np.ndarray
    found: np.ndarray
    scores: np.ndarray
    grades: np.ndarray
    judged: np.ndarray


@dataclass(frozen=True)
class RankingEvaluator:
    """nDCG, ERR, RBP and their kin, for the config's weights of fields and for others.

    Every judged query is asked against all documents of its source. What nobody judged has grade 0;
    ties count against the model; a query or document without any of the fields is never found.

    Attributes:
      config: the evaluator's configuration.
      source: judged pairs with their queries and documents.
      fields: field name -> its configuration.
      specs: field name -> how it is read.
      topology: averages and scores points.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """

    config: configs.Ranking
    source: JudgedSource
    fields: Mapping[str, ImageField | TextField]
    specs: Mapping[str, FieldSpec]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None

    def check(self) -> None:
        """Reads the first records of both sides.

        Raises:
          UserError: a field does not fit them.
        """
        try_record(self.source.queries, self._specs("query"))
        try_record(self.source.documents, self._specs("document"))

    def run(
        self,
        weights: Any,
        say: Callable[[str], None] = lambda text: None,
        show: examples.Show | None = None,
        rankings: Path | None = None,
    ) -> dict[str, float]:
        """Encodes all fields once and ranks the documents for every way to weigh them.

        Args:
          weights: the parameters.
          say: prints a line to the user.
          show: takes examples of what was found, where they are wanted.
          rankings: folder for the rankings by the config's weights; None: they are not written.

        Returns:
          `nDCG@10` and so on; `<weights>/nDCG@10` of every other way, `<mode>/nDCG@10` of modes.
        """
        asked = chosen_queries(self.config, len(self.source.queries))
        queries = self._encode(weights, self.source.queries, "query")
        documents = self._encode(weights, self.source.documents, "document")
        say(
            f"{len(asked):,} queries against {len(self.source.documents):,} documents, "
            f"{len(self.source.judgements):,} judgements{_lacking(queries, documents)}"
        )
        ways = {"": self._weights("document")} | self._ways()
        points = average(self.topology, queries.points, self._weights("query"), queries.there)
        out: dict[str, float] = {}
        shown: list[Any] = []
        for way, shares in ways.items():
            values: dict[str, list[np.ndarray]] = {}
            with self._writer(None if way else rankings) as writer:
                for ranked in self.rank(points, queries, documents, shares, asked):
                    found = self.metrics(ranked)
                    for name, value in found.items():
                        values.setdefault(name, []).append(value)
                    if show is not None and not way and not shown:
                        shown.append(ranked)
                    if writer is not None:
                        writer.add(ranked.queries, ranked.found, ranked.scores, found)
            means = mean_metrics({name: np.concatenate(v) for name, v in values.items()})
            out |= {f"{way}/{name}" if way else name: value for name, value in means.items()}
        out |= self._in_modes(queries, documents, asked)
        if show is not None:
            show(lambda: self._examples(shown[0]))
        return out

    def _in_modes(
        self, queries: EncodedFields, documents: EncodedFields, asked: np.ndarray
    ) -> dict[str, float]:
        """The metrics of further ways to search with a lexical model."""
        out: dict[str, float] = {}
        for text in self.config.modes:
            mode = parse_mode(text, "config.evals.<name>.modes")
            sides: dict[Any, EncodedFields] = {
                side: self._side_in_mode(encoded, mode, side, source)
                for side, encoded, source in (
                    ("query", queries, self.source.queries),
                    ("document", documents, self.source.documents),
                )
            }
            asking, shares = sides["query"], self._weights("document")
            points = average(self.topology, asking.points, self._weights("query"), asking.there)
            ranked = self.rank(points, asking, sides["document"], shares, asked)
            found = [self.metrics(part) for part in ranked]
            means = mean_metrics({n: np.concatenate([f[n] for f in found]) for n in found[0]})
            out |= {f"{text}/{name}": value for name, value in means.items()}
        return out

    def _side_in_mode(
        self, encoded: EncodedFields, mode: Mode, side: Any, source: Source
    ) -> EncodedFields:
        """The fields of a side as a mode has them."""
        points = {}
        for name, found in encoded.points.items():
            columns, words = self.encoder.columns(name), None
            assert columns is not None  # checks.evals saw to it
            if self.specs[name].kind == "text" and mode.needs_words(side):
                records = np.flatnonzero(encoded.there[name])
                items = np.stack([records, np.zeros_like(records)], axis=1)
                normed = self.encoder.normalises(name)
                words = bags_of(columns, source, self.specs[name], items, normed)
                words = placed(words, records, found.shape[0])
            points[name] = in_mode(found, mode, side, words)
        return EncodedFields(points, encoded.there)

    def _writer(self, folder: Path | None) -> contextlib.AbstractContextManager[Rankings | None]:
        """What writes rankings to a folder; nothing without one, and on all processes but one."""
        if folder is None or jax.process_index() != 0:
            return contextlib.nullcontext()
        return Rankings(folder, self.source)

    def metrics(self, ranked: Ranked) -> dict[str, np.ndarray]:
        """Metric -> its value for each of some queries, [q]."""
        c = self.config
        return graded_metrics(ranked.grades, ranked.judged, c.metrics, c.err_gain)

    def _encode(self, weights: Any, source: Source, side: str) -> EncodedFields:
        return encode_fields(self.encoder, weights, source, self._specs(side), self.reading)

    def _specs(self, side: str) -> dict[str, FieldSpec]:
        return {name: self.specs[name] for name, f in self.fields.items() if f.side == side}

    def _weights(self, side: str) -> dict[str, float]:
        return {name: f.weight for name, f in self.fields.items() if f.side == side}

    def _ways(self) -> dict[str, dict[str, float]]:
        known, path = self._weights("document"), "config.evals.<name>.documents"
        return {text: parse_weighting(text, known, path) for text in self.config.documents}

    def rank(
        self,
        points: np.ndarray,
        queries: EncodedFields,
        documents: EncodedFields,
        shares: Mapping[str, float],
        asked: np.ndarray,
    ) -> Iterator[Ranked]:
        """The rankings of the queries that are asked, some thousands at a time.

        Args:
          points: of all queries, [Q, M, N].
          queries: their fields.
          documents: their fields.
          shares: documents' field -> its weight.
          asked: numbers of the queries, [q].
        """
        mixed = average(self.topology, documents.points, shares, documents.there)
        there = np.flatnonzero(documents.any(shares))  # numbers of the documents that can be found
        sayable = queries.any(self._weights("query"))
        rows = len(self.source.documents)

        def row(q: int, ids: np.ndarray, grades: np.ndarray) -> np.ndarray:
            return _row(ids[q], grades[q], rows)[there]

        for start in range(0, len(asked), QUERIES):
            part = asked[start : start + QUERIES]
            ids, grades = self.source.judgements.of(part)  # [q, J] each
            found, scores = best(
                points[part],
                mixed[there],
                score=self.topology.score,
                encoder=self.encoder,
                depth=self.config.depth,
                chunk=self.config.chunk,
                grades=partial(row, ids=ids, grades=grades),
            )
            found = np.where(sayable[part][:, None], there[found], -1)
            yield Ranked(part, found, scores, grades_of(found, ids, grades), grades)

    def _examples(self, ranked: Ranked) -> dict[str, Any]:
        values = self.metrics(ranked)
        sides = {side: self._specs(side) for side in ("query", "document")}
        return graded_examples.describe(self.config.type, self.source, sides, ranked, values)


def chosen_queries(config: configs.Ranking, count: int) -> np.ndarray:
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


def traffic(evaluators: Mapping[str, Any], found: Mapping[str, float]) -> dict[str, float]:
    """The averages over ranking evaluators by their share of the traffic.

    Args:
      evaluators: by prefix, such as `ranking/in_domain`; those without a share do not count.
      found: the metrics of the evaluators that have run.

    Returns:
      `ranking/traffic/...`, for metrics that all evaluators with a share have; nothing where one
      of them has not run.
    """
    settings = {f"{prefix}/": getattr(each, "config", None) for prefix, each in evaluators.items()}
    shares = {
        prefix: config.traffic
        for prefix, config in settings.items()
        if isinstance(config, configs.Ranking) and config.traffic > 0
    }
    total, out = sum(shares.values()), {}
    first = next(iter(shares), "")
    for name in found if shares else ():
        metric = name.removeprefix(first)
        if name.startswith(first) and all(prefix + metric in found for prefix in shares):
            value = sum(share * found[prefix + metric] for prefix, share in shares.items())
            out[f"ranking/traffic/{metric}"] = value / total
    return out


def _row(ids: np.ndarray, grades: np.ndarray, documents: int) -> np.ndarray:
    """The grades of all documents for one query, [D]."""
    out = np.zeros(documents)
    out[ids[ids >= 0]] = grades[ids >= 0]
    return out


def _lacking(queries: EncodedFields, documents: EncodedFields) -> str:
    """What is said of fields that some rows lack."""
    sides = {**queries.there, **documents.there}
    lacking = {name: int(np.sum(~there)) for name, there in sides.items()}
    words = [f"{count:,} without {name}" for name, count in lacking.items() if count]
    return f" ({', '.join(words)})" if words else ""
