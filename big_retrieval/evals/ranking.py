"""Graded ranking metrics of judged queries against all documents, over several fields."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval.config import Field
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.pipeline import Reading
from big_retrieval.evals import examples, graded_examples
from big_retrieval.evals.bags import bags_of, fields_in_mode
from big_retrieval.evals.fields import EncodedFields, average, encode_fields, placed
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.graded_order import Ranked, relevance_of
from big_retrieval.evals.modes import Mode, Side, parse_mode
from big_retrieval.evals.own import depth_with_own, left_out, own_documents, without_own
from big_retrieval.evals.rankings import OptionalRankings, Rankings, open_rankings
from big_retrieval.evals.ranks import best
from big_retrieval.evals.weightings import parse_weighting
from big_retrieval.inference.encoder import Encoder
from big_retrieval.runtime.extras import Extras
from big_retrieval.similarity import Similarity

log = logging.getLogger(__name__)
QUERIES = 4096  # whose rankings are held at a time


@dataclass(frozen=True)
class RankingEvaluator:
    """nDCG, ERR, RBP and their kin, for the config's weights of fields and for others.

    Every judged query is asked against all documents of its source. What nobody judged has
    relevance 0; ties count against the model; a query or document without any of the fields is
    never found, nor, where the config says so, the document with the query's own id.

    Attributes:
      config: the evaluator's configuration.
      source: judged pairs with their queries and documents.
      fields: field name -> its configuration.
      readers: field name -> how it is read.
      topology: averages and scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """

    config: configs.Ranking
    source: JudgedSource
    fields: Mapping[str, Field]
    readers: Mapping[str, FieldReader]
    topology: Similarity
    encoder: Encoder
    reading: Reading | None = None

    def check(self) -> None:
        """Reads the first records of both sides.

        Raises:
          UserError: a field does not fit them.
        """
        try_record(self.source.queries, self.specs_of("query"))
        try_record(self.source.documents, self.specs_of("document"))

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Encodes all fields once and ranks the documents for every way to weigh them.

        Args:
          weights: the parameters.
          show: takes examples of what was found, where they are wanted.
          rankings: folder for the rankings by the config's weights; None: they are not written.
          extras: says that rankings cannot be written; None: that is an error.

        Returns:
          `nDCG@10` and so on; `<weights>/nDCG@10` of every other way, `<mode>/nDCG@10` of modes.
        """
        asked = chosen_queries(self.config, len(self.source.queries))
        queries = self.encode(weights, "query")
        documents = self.encode(weights, "document")
        log.info(
            f"{len(asked):,} queries against {len(self.source.documents):,} documents, "
            f"{len(self.source.qrels):,} qrels{_lacking(queries, documents)}"
            f"{left_out(self.own[asked])}"
        )
        ways = {"": self.weights_of("document")} | self._ways()
        embeddings = average(
            self.topology, queries.embeddings, self.weights_of("query"), queries.present
        )
        out: dict[str, float] = {}
        shown: list[Any] = []
        for way, shares in ways.items():
            values = []
            with self._writer(None if way else rankings, extras) as writer:
                for ranked in self.rank(embeddings, queries, documents, shares, asked):
                    values.append(self.metrics(ranked))
                    if show is not None and not way and not shown:
                        shown.append(ranked)
                    if writer is not None:
                        writer.add(ranked.queries, ranked.found, ranked.scores, values[-1])
            means = _means(values)
            out |= {f"{way}/{name}" if way else name: value for name, value in means.items()}
        out |= self._in_modes(queries, documents, asked)
        if show is not None:
            show(lambda: self._examples(shown[0], embeddings, documents))
        return out

    def _in_modes(
        self, queries: EncodedFields, documents: EncodedFields, asked: np.ndarray
    ) -> dict[str, float]:
        """The metrics of further ways to search with a lexical model."""
        out: dict[str, float] = {}
        modes = [parse_mode(text, "config.evals.<name>.modes") for text in self.config.modes]
        bow = self.bow(queries, "query", modes) | self.bow(documents, "document", modes)
        for mode in modes:
            asking = fields_in_mode(queries, mode, "query", bow)
            found = fields_in_mode(documents, mode, "document", bow)
            embeddings = average(
                self.topology, asking.embeddings, self.weights_of("query"), asking.present
            )
            ranked = self.rank(embeddings, asking, found, self.weights_of("document"), asked)
            means = _means([self.metrics(part) for part in ranked])
            out |= {f"{mode.name}/{name}": value for name, value in means.items()}
        return out

    def bow(
        self, encoded: EncodedFields, side: Side, modes: Sequence[Mode]
    ) -> dict[str, scipy.sparse.csr_array]:
        """The bags of words of a side's text fields, [n, V], where one of the modes asks for them.

        Args:
          encoded: the side's lexical fields.
          side: which one.
          modes: the ways to search.
        """
        out: dict[str, Any] = {}
        if not any(mode.needs_words(side) for mode in modes):
            return out
        source = self.source.queries if side == "query" else self.source.documents
        for name, present in encoded.present.items():
            terms, reader = self.encoder.terms(name), self.readers[name]
            assert terms is not None  # checks.evals saw to it
            if reader.field.modality == "text":
                records = np.flatnonzero(present)
                items = np.stack([records, np.zeros_like(records)], axis=1)
                bags = bags_of(terms, source, reader, items, self.encoder.normalises(name))
                out[name] = placed(bags, records, len(present))
        return out

    @cached_property
    def own(self) -> np.ndarray:
        """The document of each query that it does not find, [Q]; -1: none."""
        return own_documents(self.config, self.source)

    def _writer(
        self, folder: Path | None, extras: Extras | None
    ) -> contextlib.AbstractContextManager[Rankings | OptionalRankings | None]:
        """What writes rankings to a folder; nothing without one, and on all processes but one."""
        if folder is None or jax.process_index() != 0:
            return contextlib.nullcontext()
        return open_rankings(folder, self.source, extras)

    def metrics(self, ranked: Ranked) -> dict[str, np.ndarray]:
        """Metric -> its value for each of some queries, [q]."""
        c = self.config
        return graded_metrics(ranked.relevance, ranked.judged, c.metrics, c.err_gain)

    def encode(self, weights: Any, side: Side) -> EncodedFields:
        """The fields of all queries, or of all documents, by the model's parameters."""
        source = self.source.queries if side == "query" else self.source.documents
        return encode_fields(self.encoder, weights, source, self.specs_of(side), self.reading)

    def specs_of(self, side: Side) -> dict[str, FieldReader]:
        """How the fields of a side are read."""
        return {name: self.readers[name] for name, f in self.fields.items() if f.side == side}

    def weights_of(self, side: Side) -> dict[str, float]:
        """The config's weights of the fields of a side."""
        return {name: f.weight for name, f in self.fields.items() if f.side == side}

    def _ways(self) -> dict[str, dict[str, float]]:
        known, path = self.weights_of("document"), "config.evals.<name>.documents"
        return {text: parse_weighting(text, known, path) for text in self.config.documents}

    def rank(
        self,
        embeddings: np.ndarray,
        queries: EncodedFields,
        documents: EncodedFields,
        shares: Mapping[str, float],
        asked: np.ndarray,
    ) -> Iterator[Ranked]:
        """The rankings of the queries that are asked, some thousands at a time.

        Args:
          embeddings: of all queries, [Q, M, N].
          queries: their fields.
          documents: their fields.
          shares: documents' field -> its weight.
          asked: numbers of the queries, [q].
        """
        mixed = average(self.topology, documents.embeddings, shares, documents.present)
        present = np.flatnonzero(
            documents.any(shares)
        )  # numbers of the documents that can be found
        findable = mixed[present]
        sayable = queries.any(self.weights_of("query"))
        rows, own = len(self.source.documents), self.own

        def row(q: int, ids: np.ndarray, relevance: np.ndarray) -> np.ndarray:
            return _row(ids[q], relevance[q], rows)[present]

        for start in range(0, len(asked), QUERIES):
            part = asked[start : start + QUERIES]
            ids, relevance = self.source.qrels.of(part)  # [q, J] each
            found, scores = best(
                embeddings[part],
                findable,
                score=self.topology.score,
                encoder=self.encoder,
                depth=depth_with_own(self.config.depth, own),
                chunk=self.config.chunk,
                relevance=partial(row, ids=ids, relevance=relevance),
            )
            found = np.where(sayable[part][:, None], present[found], -1)
            found, scores = without_own(found, scores, own[part], self.config.depth)
            yield Ranked(part, found, scores, relevance_of(found, ids, relevance), relevance)

    def _examples(
        self, ranked: Ranked, embeddings: Any, documents: EncodedFields
    ) -> dict[str, Any]:
        how: Any = {"topology": self.topology, "encoder": self.encoder, "readers": self.readers}
        matched = graded_examples.matching(
            embeddings, documents, self.weights_of("document"), **how
        )
        sides = {"query": self.specs_of("query"), "document": self.specs_of("document")}
        return graded_examples.describe(
            self.config.type, self.source, sides, ranked, self.metrics(ranked), matched
        )


def _means(found: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """The means over all queries, of metrics of some queries at a time."""
    return mean_metrics({name: np.concatenate([f[name] for f in found]) for name in found[0]})


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
    traffic = {prefix: getattr(config, "traffic", 0) for prefix, config in settings.items()}
    shares = {prefix: share for prefix, share in traffic.items() if share > 0}
    total, out = sum(shares.values()), {}
    first = next(iter(shares), "")
    for name in found if shares else ():
        metric = name.removeprefix(first)
        if name.startswith(first) and all(prefix + metric in found for prefix in shares):
            value = sum(share * found[prefix + metric] for prefix, share in shares.items())
            out[f"ranking/traffic/{metric}"] = value / total
    return out


def _row(ids: np.ndarray, relevance: np.ndarray, documents: int) -> np.ndarray:
    """The relevance of all documents for one query, [D]."""
    out = np.zeros(documents)
    out[ids[ids >= 0]] = relevance[ids >= 0]
    return out


def _lacking(queries: EncodedFields, documents: EncodedFields) -> str:
    """What is said of fields that some rows lack."""
    sides = {**queries.present, **documents.present}
    lacking = {name: int(np.sum(~present)) for name, present in sides.items()}
    words = [f"{count:,} without {name}" for name, count in lacking.items() if count]
    return f" ({', '.join(words)})" if words else ""
