"""Graded ranking metrics of judged queries against all documents, over several fields."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import scipy.sparse

from big_retrieval.config import AtLeast1, Config, NotNegative, Scenes, Source, register
from big_retrieval.config.evals import Evaluator, once
from big_retrieval.config.ranges import ShareInside
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.encoding import EncodedFields, average, chosen_rows, placed
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.graded import parse_metric
from big_retrieval.evals.intervals import few_queries_note
from big_retrieval.evals.judged import JudgedQueries, Ranked, lacking
from big_retrieval.evals.modes import (
    SIDES,
    Mode,
    Side,
    bags_of_texts,
    check_modes,
    in_mode,
    mode_prefixes,
    parse_mode,
    parse_weighting,
)
from big_retrieval.evals.rankings import Rankings
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.inference.encoder import Embeddings

log = logging.getLogger(__name__)


class RankingResult(NamedTuple):
    """Rankings by the config's weights, for examples."""

    ranked: Ranked  # rankings of the first queries (`Qrels.blocks`)
    values: Mapping[str, np.ndarray]  # metrics of these queries, [q] by name
    queries: Embeddings  # of all queries
    documents: EncodedFields  # of all documents; dense embeddings may be overwritten
    shown: int | None  # number of documents to show and to sum the relevance of


@register("evaluator")
@dataclass(frozen=True)
class Ranking(Evaluator):
    """Graded ranking metrics of judged queries against all documents of a source.

    A document without a judgement has relevance 0, and ties count against the model. A query that
    lacks all fields has no results, and a document that lacks all fields is never found. `same_id`
    can also remove the document with the query's id.
    """

    judged: ClassVar[bool] = True
    replaced: ClassVar[bool] = True
    type: Literal["ranking"] = "ranking"
    data: Source = field(default_factory=Scenes)  # a source of judged pairs
    queries: Literal["all", "dev", "test"] = "all"
    # JSON file whose keys are the only queries to search, such as the judged queries of GCL's
    # authors: {query: {document: score}}; the relevance comes from the data
    query_file: str = ""
    dev_share: ShareInside = 0.2  # share of queries for dev, drawn by `dev_seed`
    dev_seed: int = 0
    # additional weightings of the document fields, such as "image" or "image=0.9,title=0.1";
    # nothing is encoded twice
    documents: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()  # search modes of lexical models, as in Retrieval
    metrics: tuple[str, ...] = ("nDCG@10", "ERR", "RBP@0.9", "MRR", "R@10")
    err_gain: Literal["exponential", "linear"] = "exponential"  # linear: the GCL paper's text
    depth: AtLeast1 = 1000  # number of ranked documents per query
    # "drop" removes the document with the query's id, as BEIR's evaluator does; "auto" drops it in
    # Beir data only, and only if no such document is relevant
    same_id: Literal["auto", "drop", "keep"] = "auto"
    rankings: bool = False  # at the end, write rankings and each query's metrics to rankings/
    traffic: NotNegative = 0.0  # weight in `ranking/traffic`, the average over evaluators
    # number of documents per query that reports show and sum the relevance of; None for 5 and 10
    shown: AtLeast1 | None = None
    chunk: AtLeast1 = 256
    every: int | None = None

    def check(self, config: Config, path: str) -> Iterator[str]:
        if not self.data.graded:
            yield (
                f"{path}.data has the type {self.data.type!r}, which has no judged pairs. Use a "
                "source of the type 'graded' or 'beir'."
            )
        if not self.metrics:
            yield f"{path}.metrics is empty; name some, such as ('nDCG@10', 'ERR')."
        try:
            for metric in self.metrics:
                parse_metric(metric)
            for text in self.documents:
                parse_weighting(text, self.compared(config)["document"], f"{path}.documents")
        except UserError as error:
            text = str(error)
            yield text if path in text else f"{path}.metrics: {text}"
        yield from check_modes(self, config, path)

    def metric_names(self, config: Config) -> Sequence[str]:
        prefixes = mode_prefixes((*self.documents, *self.modes))
        return [f"{prefix}{metric}" for prefix in prefixes for metric in self.metrics]

    @once
    def judgements(self, context: EvaluatorContext) -> JudgedQueries:
        """Returns the queries to search for, and the relevance of their documents."""
        return JudgedQueries(self, context.source)

    def check_data(self, context: EvaluatorContext) -> None:
        _ = self.judgements(context).asked  # reads `query_file`
        for side in SIDES:
            context.try_fields(*readers_of(context, side), source=records_of(context, side))

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Encodes all fields once and ranks the documents for every weighting and mode.

        Returns:
          `nDCG@10`, ... by the config's weights; `<weights>/nDCG@10`, ... for each entry of
          `documents`; `<mode>/nDCG@10`, ... for each mode.
        """
        judged = self.judgements(context)
        queries, documents = (encode_side(context, weights, side) for side in SIDES)
        present = {**queries.present, **documents.present}
        notes = lacking({f"without {name}": int(np.sum(~x)) for name, x in present.items()})
        log.info(judged.summary("", notes))
        embeddings = average_side(context, queries, "query")
        with Rankings(context.rankings, context.source, context.extras) as writer:
            by_prefix = self._rankings(context, queries, documents, embeddings)
            _, rankings = next(by_prefix)  # by the config's weights
            first = next(rankings)
            out = judged.means(itertools.chain([first], rankings), writer)
            for prefix, rankings in by_prefix:
                out |= judged.means(rankings, writer, prefix)
        if note := few_queries_note(dict([*out.items()][:1]), len(judged.asked)):
            log.info(note)
        if context.show is not None:
            values = judged.values(first)
            context.show(RankingResult(first, values, embeddings, documents, self.shown))
        return out

    def _rankings(
        self,
        context: EvaluatorContext,
        queries: EncodedFields,
        documents: EncodedFields,
        embeddings: Embeddings,
    ) -> Iterator[tuple[str, Iterator[Ranked]]]:
        """Yields prefix of metrics and rankings: by the config, each of `documents`, each mode."""
        config_weights = weights_of(context, "document")
        yield "", self.rank(context, embeddings, queries, documents, config_weights)
        for text in self.documents:
            weighting = parse_weighting(text, config_weights, f"{context.path}.documents")
            yield f"{text}/", self.rank(context, embeddings, queries, documents, weighting)
        modes = [parse_mode(text, f"{context.path}.modes") for text in self.modes]
        bow = [
            bags_of_side(context, encoded, side, modes)
            for encoded, side in zip((queries, documents), SIDES, strict=True)
        ]
        for mode in modes:
            changed = average_side(context, fields_in_mode(queries, "query", mode, bow[0]), "query")
            fields = fields_in_mode(documents, "document", mode, bow[1])
            yield f"{mode.name}/", self.rank(context, changed, queries, fields, config_weights)

    def rank(
        self,
        context: EvaluatorContext,
        embeddings: Embeddings,
        queries: EncodedFields,
        documents: EncodedFields,
        weighting: Mapping[str, float],
    ) -> Iterator[Ranked]:
        """Yields the rankings of some queries at a time.

        Args:
          embeddings: averaged fields of all queries, [Q, M, N].
          documents: fields of all documents; overwritten if there is only one ranking.
          weighting: weight of each document field.
        """
        judged, source = self.judgements(context), context.source
        # A single ranking may overwrite the fields, so the host needs only one dense array.
        overwrite = not self.documents and not self.modes
        fields, has = documents.embeddings, documents.present
        mixed = average(context.topology, fields, weighting, has, overwrite=overwrite)
        present = np.flatnonzero(documents.any(weighting))  # documents with at least one field
        scorer = DocumentScorer(
            chosen_rows(mixed, present, overwrite=overwrite),
            score=context.topology.score,
            encoder=context.encoder,
            chunk=self.chunk,
        )
        has_field = queries.any(weights_of(context, "query"))

        def row(q: int, ids: np.ndarray, relevance: np.ndarray) -> np.ndarray:
            out = np.zeros(len(source.documents))
            out[ids[q][ids[q] >= 0]] = relevance[q][ids[q] >= 0]
            return out[present]

        for indices in source.qrels.blocks(judged.asked):
            ids, relevance = source.qrels.for_queries(indices)  # [q, J] each
            row_of = partial(row, ids=ids, relevance=relevance)
            hits, scores = scorer.best(embeddings[indices], judged.search_depth, row_of)
            hits = np.where(has_field[indices][:, None], present[hits], -1)
            yield judged.ranked(indices, hits, scores)


def records_of(context: EvaluatorContext, side: Side) -> RecordSource:
    """Returns the queries or the documents of judged data."""
    return context.source.queries if side == "query" else context.source.documents


def readers_of(context: EvaluatorContext, side: Side) -> dict[str, FieldReader]:
    """Returns the readers of a side's fields."""
    return {name: x for name, x in context.readers.items() if x.field.side == side}


def weights_of(context: EvaluatorContext, side: Side) -> dict[str, float]:
    """Returns the config's weights of a side's fields."""
    return {name: reader.field.weight for name, reader in readers_of(context, side).items()}


def encode_side(context: EvaluatorContext, weights: Any, side: Side) -> EncodedFields:
    """Encodes the fields of all queries, or of all documents."""
    encoder, readers = context.source_encoder(weights), readers_of(context, side)
    return encoder.encode_fields(records_of(context, side), readers)


def bags_of_side(
    context: EvaluatorContext, encoded: EncodedFields, side: Side, modes: Iterable[Mode]
) -> dict[str, scipy.sparse.csr_array]:
    """Returns the bags of words [n, V] of a side's text fields; empty if no mode needs them."""
    out: dict[str, Any] = {}
    if not any(mode.needs_words(side) for mode in modes):
        return out
    for name, present in encoded.present.items():
        reader = context.readers[name]
        if reader.field.modality == "text":
            records = np.flatnonzero(present)
            items = np.stack([records, np.zeros_like(records)], axis=1)
            bags = bags_of_texts(context.encoder, name, records_of(context, side), reader, items)
            out[name] = placed(bags, records, len(present))
    return out


def fields_in_mode(
    encoded: EncodedFields, side: Side, mode: Mode, bow: Mapping[str, scipy.sparse.csr_array]
) -> EncodedFields:
    """Converts a side's lexical fields to a mode; `bow` is from `bags_of_side`."""
    fields = encoded.embeddings.items()
    embeddings = {name: in_mode(x, mode, side, bow.get(name)) for name, x in fields}
    return EncodedFields(embeddings, encoded.present)


def average_side(context: EvaluatorContext, encoded: EncodedFields, side: Side) -> Embeddings:
    """Averages a side's fields by the config's weights, [n, M, N] or CSR [n, V]."""
    weighting = weights_of(context, side)
    return average(context.topology, encoded.embeddings, weighting, encoded.present)
