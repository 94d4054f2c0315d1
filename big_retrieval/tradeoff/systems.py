"""The measured systems: an evaluator's queries and documents, encoded by a model or BM25."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import numpy as np

from big_retrieval.config import Config, schema
from big_retrieval.data.build import make_readers, make_reading, make_source
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.errors import UserError
from big_retrieval.evals.bags import in_mode
from big_retrieval.evals.bm25 import Bm25, side_texts, text_columns
from big_retrieval.evals.evaluators import EvaluatorContext, make_evaluators
from big_retrieval.evals.graded import mean_metrics, order
from big_retrieval.evals.groups import positives_of
from big_retrieval.evals.judged import JudgedQueries, joined
from big_retrieval.evals.modes import SIDES, Mode, Side
from big_retrieval.evals.positives import Positives
from big_retrieval.evals.ranking import (
    Ranking,
    average_side,
    bags_of_side,
    encode_side,
    fields_in_mode,
    weights_of,
)
from big_retrieval.evals.retrieval import Retrieval, bags_of_items
from big_retrieval.inference.encoder import Embeddings
from big_retrieval.inference.load import TrainedModel
from big_retrieval.tradeoff.gates import WHOLE, Gates
from big_retrieval.tradeoff.latency import SAMPLE

log = logging.getLogger(__name__)
BM25 = "bm25"  # the one gate of BM25, whose weights no model gave
Scorer = Callable[[np.ndarray, np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class SearchTask:
    """Which queries and documents are searched; all systems of a plot have the same task.

    Attributes:
      title: of the evaluator.
      metrics: their names.
      depth: how many documents of a query the metrics look at; one more if the document with the
        query's own id is skipped.
      queries: how many queries.
      documents: how many documents, found or not.
    """

    title: str = field(compare=False)
    metrics: tuple[str, ...]
    depth: int
    queries: int
    documents: int


@dataclass(frozen=True)
class System:
    """A model, or BM25, with an evaluator's queries and documents.

    Attributes:
      task: which queries and documents.
      topology: of the embeddings.
      gates: the gates to measure, by side; only "exact" for a dense model.
      rows: encodes a side in a mode: CSR [n, V] or embeddings [n, M, N] of the queries, or of the
        documents that can be found.
      scorer: gives the evaluator's metrics from the numbers of the found documents [Q, depth], -1
        for none, and their scores.
      samples: query field -> texts of some queries; None: images.
    """

    task: SearchTask
    topology: str | Mapping[str, Any]
    gates: Gates
    rows: Callable[[Side, Mode], Embeddings]
    scorer: Scorer
    samples: Mapping[str, Sequence[Text] | None]


def choose(config: Config, name: str) -> str:
    """The name of the evaluator that is measured.

    Args:
      config: of the run.
      name: given by the user; "": the only evaluator that ranks documents.

    Raises:
      UserError: no evaluator has this name, it does not rank documents, or several evaluators do.
    """
    ranking = [key for key, ev in sorted(config.evals.items()) if ev.search_metrics]
    known = ", ".join(ranking) or "none"
    if not name and len(ranking) != 1:
        raise UserError(f"--eval is missing: which of the run's evaluators ({known}) to measure.")
    if name and name not in config.evals:
        raise UserError(f"--eval is {name!r}, which config.evals lacks; those that rank: {known}.")
    if name and name not in ranking:
        raise UserError(f"--eval is {name!r}, which classifies; name one that ranks: {known}.")
    return name or ranking[0]


def model_system(model: TrainedModel, name: str, gates: Gates) -> System:
    """Encodes both sides of an evaluator.

    Args:
      model: of the run.
      name: of the evaluator, from `choose`.
      gates: from `gates_of`.

    Raises:
      UserError: data that cannot be read.
    """
    ev = model.config.evals[name]
    config = dataclasses.replace(model.config, evals={name: ev})
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    made = make_evaluators(config, {name: make_source(ev.data)}, readers, model.encoder, reading)
    part, context = next(iter(made.values()))
    part.check_data(context)
    make: Any = judged_system if ev.judged else paired_system
    return make(part, context, model.weights, config, gates)


def judged_system(
    part: Ranking, context: EvaluatorContext, weights: Any, config: Config, gates: Gates
) -> System:
    """The queries of a `Ranking` against its documents."""
    judged = part.judgements(context)
    source, asked = judged.source, judged.asked
    log.info(f"encoding {len(source.queries):,} queries and {len(source.documents):,} documents")
    encoded = {side: encode_side(context, weights, side) for side in SIDES}
    bow = {side: bags_of_side(context, encoded[side], side, gates[side].values()) for side in SIDES}
    present = {side: encoded[side].any(weights_of(context, side)) for side in SIDES}
    findable, sayable = np.flatnonzero(present["document"]), present["query"][asked][:, None]
    kept = {"query": asked, "document": findable}

    def rows(side: Side, mode: Mode) -> Embeddings:
        fields = fields_in_mode(encoded[side], side, mode, bow[side])
        return average_side(context, fields, side)[kept[side]]

    def scorer(found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        return judged_scores(judged, np.where((found >= 0) & sayable, findable[found], -1), scores)

    samples: dict[str, Any] = {}
    for query_field, weight in weights_of(context, "query").items():
        items = [(n, 0) for n in asked[encoded["query"].present[query_field][asked]].tolist()]
        if weight > 0:
            samples[query_field] = _texts(source.queries, context.readers[query_field], items)
    task = judged_task(context.name, judged)
    return System(task, plain_topology(config), gates, rows, scorer, samples)


def plain_topology(config: Config) -> str | Mapping[str, Any]:
    """Returns the topology as config.json and the About of an index have it."""
    return cast(Any, schema.to_plain(config.topology))


def judged_task(name: str, judged: JudgedQueries) -> SearchTask:
    """The judged queries of an evaluator against all documents."""
    metrics, documents = judged.part.search_metrics, len(judged.source.documents)
    return SearchTask(name, metrics, judged.metric_depth, len(judged.asked), documents)


def judged_scores(judged: JudgedQueries, found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """The mean of each metric; of documents with equal scores the least relevant comes first.

    Args:
      judged: the queries.
      found: numbers of documents, [q, depth]; -1: none.
      scores: of the documents, [q, depth].
    """
    parts: list[dict[str, np.ndarray]] = []
    for ranked in judged.blocks(found, scores):
        relevance = ties_against(ranked.relevance, ranked.scores)
        parts.append(judged.values(dataclasses.replace(ranked, relevance=relevance)))
    return mean_metrics(joined(parts))


def paired_system(
    part: Retrieval, context: EvaluatorContext, weights: Any, config: Config, gates: Gates
) -> System:
    """The query field of a `Retrieval` against its document field."""
    log.info(f"encoding {len(context.source):,} records")
    encoded = part.encode(context, weights)
    sides = {"query": encoded[part.query], "document": encoded[part.document]}
    bow = {
        side: bags_of_items(context.encoder, sides[side])
        for side in SIDES
        if sides[side].reader.field.modality == "text"
        and any(mode.needs_words(side) for mode in gates[side].values())
    }
    queries, documents = sides["query"], sides["document"]

    def rows(side: Side, mode: Mode) -> Embeddings:
        return in_mode(sides[side].embeddings, mode, side, bow.get(side))

    task = SearchTask(
        f"{context.name} ({part.query} to {part.document})", part.search_metrics,
        max(part.recall_at),
        len(queries.owners), len(documents.owners),
    )  # fmt: skip
    scorer = recall_scorer(part.recall_at, positives_of(queries, documents))
    samples = {part.query: _texts(queries.source, queries.reader, queries.items.tolist())}
    return System(task, plain_topology(config), gates, rows, scorer, samples)


def recall_scorer(recall_at: Sequence[int], positives: Positives) -> Scorer:
    """The share of queries that find a right document; of equal scores wrong documents come first.

    Args:
      recall_at: the k of R@k.
      positives: of the queries among the documents.
    """

    def scorer(found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        right = ties_against(positives.contain(found).astype(np.float64), scores) > 0
        return {f"R@{k}": float(right[:, :k].any(axis=1).mean()) for k in recall_at}

    return scorer


def check_bm25(config: Config, name: str) -> None:
    """Raises a UserError unless an evaluator ranks judged documents, and both sides have texts."""
    ev = config.evals[name]
    if not ev.judged:
        raise UserError(
            f"--bm25 needs an evaluator of the type 'ranking', and evals.{name} is of the type "
            f"{ev.type!r}: leave it out, or name another by --eval."
        )
    text_columns(config)


def bm25_system(config: Config, name: str) -> System:
    """BM25 over the texts of an evaluator that passed `check_bm25`.

    A query's row counts the words of the query. A document's row has, for each word of the
    document, what BM25 adds to the score. So an inverted index finds what the library bm25s finds.

    Raises:
      UserError: the library is not installed.
    """
    ev: Any = config.evals[name]
    columns, source = text_columns(config), make_source(ev.data)
    judged = JudgedQueries(ev, source)  # type: ignore[arg-type]
    queries = side_texts(judged.source.queries, columns["query"], judged.asked)
    index = Bm25(side_texts(judged.source.documents, columns["document"]))
    rows = {"query": index.counts(queries), "document": index.weights()}
    bow_mode = Mode(BM25, "query", WHOLE.top_k)  # no network encodes anything
    gates: Gates = {side: {BM25: bow_mode} for side in SIDES}
    samples = {"query": [queries[n] for n in evenly_spaced(len(queries), SAMPLE)]}
    scorer = partial(judged_scores, judged)
    task = judged_task(name, judged)
    return System(task, "inner", gates, lambda side, mode: rows[side], scorer, samples)


def ties_against(relevance: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Relevance in rank order [Q, depth]; of equal scores the lower relevance comes first."""
    return np.take_along_axis(relevance, order(scores, relevance), axis=1)


def _texts(source: RecordSource, reader: FieldReader, items: Sequence[Any]) -> list[Text] | None:
    """Evenly spaced texts of a text field; None for other fields."""
    if reader.field.modality != "text":
        return None
    chosen = [items[number] for number in evenly_spaced(len(items), SAMPLE)]
    return [source_texts(source, record, reader)[place] for record, place in chosen]
