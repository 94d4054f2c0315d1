"""Graded ranking metrics of judged queries against all documents, over several fields."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import scipy.sparse

from big_retrieval import config as configs
from big_retrieval.config import Field
from big_retrieval.config.topologies import Topology
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.evals import examples, graded_examples
from big_retrieval.evals.bags import bags_of, in_mode
from big_retrieval.evals.encoding import EncodedFields, average, encode_fields, placed
from big_retrieval.evals.graded import mean_metrics
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.judged import JudgedQueries, Ranked, lacking
from big_retrieval.evals.modes import Mode, Side, parse_mode, parse_weighting
from big_retrieval.evals.rankings import Rankings
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.inference.encoder import Embeddings, Encoder
from big_retrieval.runtime.extras import Extras

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
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None

    @cached_property
    def judged(self) -> JudgedQueries:
        """The queries that are asked, and what their answers are worth."""
        return JudgedQueries(self.config, self.source)

    def check(self) -> None:
        """Chooses the queries, and reads the first records of both sides.

        Raises:
          UserError: a field does not fit them, or `query_file` has other queries.
        """
        assert self.judged.asked is not None
        try_record(self.source.queries, self.readers_of("query"))
        try_record(self.source.documents, self.readers_of("document"))

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Encodes all fields once and ranks the documents for every weighting of their fields.

        Args:
          weights: the parameters.
          show: takes examples of what was found, where they are wanted.
          rankings: folder for the rankings by the config's weights; None: they are not written.
          extras: says that rankings cannot be written; None: that is an error.

        Returns:
          `nDCG@10` and so on; `<weights>/nDCG@10` of other weightings, `<mode>/nDCG@10` of modes.
        """
        queries, documents = self.encode(weights, "query"), self.encode(weights, "document")
        present = {**queries.present, **documents.present}
        notes = lacking({f"without {name}": int(np.sum(~x)) for name, x in present.items()})
        log.info(self.judged.summary("", notes))
        known, path = self.weights_of("document"), "config.evals.<name>.documents"
        further = {text: parse_weighting(text, known, path) for text in self.config.documents}
        embeddings = self.average(queries, "query")
        shown: list[Ranked] = []
        with self._writer(rankings, extras) as writer:
            values = []
            for ranked in self.rank(embeddings, queries, documents, known):
                values.append(self.judged.values(ranked))
                shown = shown or [ranked]
                if writer is not None:
                    writer.add(ranked.queries, ranked.found, ranked.scores, values[-1])
            out = _means(values, "")
            first = dict([*out.items()][:1])
            if note := few_queries_note(first, len(self.judged.asked)):
                log.info(note)
            for name, found in self._further(queries, documents, embeddings, further):
                values = [self.judged.values(ranked) for ranked in found]
                out |= _means(values, name)
                if writer is not None:
                    for part in values:
                        writer.add_values({f"{name}/{x}": each for x, each in part.items()})
        if show is not None:
            show(lambda: self._examples(shown[0], embeddings, documents))
        return out

    def _further(
        self,
        queries: EncodedFields,
        documents: EncodedFields,
        embeddings: Embeddings,
        weightings: Mapping[str, Mapping[str, float]],
    ) -> Iterator[tuple[str, Iterator[Ranked]]]:
        """Yields the names and the rankings of further weightings, and modes of a lexical model."""
        for name, weighting in weightings.items():
            yield name, self.rank(embeddings, queries, documents, weighting)
        modes = [parse_mode(text, "config.evals.<name>.modes") for text in self.config.modes]
        bow = self.bow(queries, "query", modes), self.bow(documents, "document", modes)
        for mode in modes:
            changed = self.average(queries, "query", mode, bow[0])
            found = self.in_mode(documents, "document", mode, bow[1])
            yield mode.name, self.rank(changed, queries, found, self.weights_of("document"))

    def bow(
        self, encoded: EncodedFields, side: Side, modes: Iterable[Mode]
    ) -> dict[str, scipy.sparse.csr_array]:
        """The bags of words of a side's text fields, [n, V], where one of the modes asks for them.

        Args:
          encoded: the side's lexical fields.
          side: which one.
          modes: of a lexical model.
        """
        out: dict[str, Any] = {}
        if not any(mode.needs_words(side) for mode in modes):
            return out
        for name, present in encoded.present.items():
            terms, reader = self.encoder.terms(name), self.readers[name]
            assert terms is not None  # checks.evals saw to it
            if reader.field.modality == "text":
                records = np.flatnonzero(present)
                items = np.stack([records, np.zeros_like(records)], axis=1)
                normalise = self.encoder.normalises(name)
                bags = bags_of(terms, self.records(side), reader, items, normalise)
                out[name] = placed(bags, records, len(present))
        return out

    def in_mode(
        self,
        encoded: EncodedFields,
        side: Side,
        mode: Mode,
        bow: Mapping[str, scipy.sparse.csr_array],
    ) -> EncodedFields:
        """The lexical fields of a side as a mode has them.

        Args:
          encoded: the fields.
          side: of the fields.
          mode: the mode.
          bow: what `bow` gives for it.
        """
        found = encoded.embeddings.items()
        embeddings = {name: in_mode(x, mode, side, bow.get(name)) for name, x in found}
        return EncodedFields(embeddings, encoded.present)

    def average(
        self,
        encoded: EncodedFields,
        side: Side,
        mode: Mode | None = None,
        bow: Mapping[str, scipy.sparse.csr_array] | None = None,
    ) -> Embeddings:
        """The average of a side's fields by the config's weights, [n, M, N] or CSR [n, V].

        Args:
          encoded: the fields.
          side: of the fields.
          mode: of a lexical model; None: as encoded.
          bow: what `bow` gives for the mode.
        """
        if mode is not None:
            encoded = self.in_mode(encoded, side, mode, bow or {})
        return average(self.topology, encoded.embeddings, self.weights_of(side), encoded.present)

    def _writer(
        self, folder: Path | None, extras: Extras | None
    ) -> contextlib.AbstractContextManager[Rankings | None]:
        """What writes rankings to a folder; nothing without one, and on all processes but one."""
        if folder is None or jax.process_index() != 0:
            return contextlib.nullcontext()
        return Rankings(folder, self.source, extras)

    def encode(self, weights: Any, side: Side) -> EncodedFields:
        """The fields of all queries, or of all documents, by the model's parameters."""
        readers = self.readers_of(side)
        return encode_fields(self.encoder, weights, self.records(side), readers, self.reading)

    def records(self, side: Side) -> RecordSource:
        """The queries or the documents."""
        return self.source.queries if side == "query" else self.source.documents

    def readers_of(self, side: Side) -> dict[str, FieldReader]:
        """How the fields of a side are read."""
        return {name: self.readers[name] for name, f in self.fields.items() if f.side == side}

    def weights_of(self, side: Side) -> dict[str, float]:
        """The config's weights of the fields of a side."""
        return {name: f.weight for name, f in self.fields.items() if f.side == side}

    def rank(
        self,
        embeddings: Embeddings,
        queries: EncodedFields,
        documents: EncodedFields,
        weighting: Mapping[str, float],
    ) -> Iterator[Ranked]:
        """The rankings of the queries that are asked, some thousands at a time.

        Args:
          embeddings: of all queries, [Q, M, N].
          queries: their fields.
          documents: their fields.
          weighting: documents' field -> its weight.
        """
        mixed = average(self.topology, documents.embeddings, weighting, documents.present)
        present = np.flatnonzero(documents.any(weighting))  # numbers of documents that can be found
        scorer = DocumentScorer(
            mixed[present],
            score=self.topology.score,
            encoder=self.encoder,
            chunk=self.config.chunk,
        )
        sayable = queries.any(self.weights_of("query"))
        asked, rows = self.judged.asked, len(self.source.documents)

        def row(q: int, ids: np.ndarray, relevance: np.ndarray) -> np.ndarray:
            out = np.zeros(rows)
            out[ids[q][ids[q] >= 0]] = relevance[q][ids[q] >= 0]
            return out[present]

        for start in range(0, len(asked), QUERIES):
            part = asked[start : start + QUERIES]
            ids, relevance = self.source.qrels.of(part)  # [q, J] each
            found, scores = scorer.best(
                embeddings[part],
                self.judged.search_depth,
                partial(row, ids=ids, relevance=relevance),
            )
            found = np.where(sayable[part][:, None], present[found], -1)
            yield self.judged.ranked(part, found, scores)

    def _examples(
        self, ranked: Ranked, embeddings: Any, documents: EncodedFields
    ) -> dict[str, Any]:
        how: Any = {"topology": self.topology, "encoder": self.encoder, "readers": self.readers}
        matched = graded_examples.matching(
            embeddings, documents, self.weights_of("document"), **how
        )
        sides = {"query": self.readers_of("query"), "document": self.readers_of("document")}
        return graded_examples.describe(
            self.config.type, self.source, sides, ranked, self.judged.values(ranked), matched,
            self.config.shown,
        )  # fmt: skip


def _means(found: list[dict[str, np.ndarray]], name: str) -> dict[str, float]:
    """The means over all queries, of metrics of some queries at a time; names begin with `name`."""
    whole = {metric: np.concatenate([f[metric] for f in found]) for metric in found[0]}
    means = mean_metrics(whole).items()
    return {f"{name}/{metric}" if name else metric: value for metric, value in means}
