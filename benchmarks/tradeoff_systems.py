"""What `benchmarks.tradeoff` measures: an evaluator's queries and documents, by a model or BM25."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse

from big_retrieval.config import Config, is_lexical
from big_retrieval.data.build import make_readers, make_reading, make_source
from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import Text, source_texts
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.data.text.normalize import find_words
from big_retrieval.errors import UserError
from big_retrieval.evals.bm25 import Bm25, side_texts, text_columns
from big_retrieval.evals.evaluators import EvaluatorContext, make_evaluators
from big_retrieval.evals.graded import mean_metrics, order, parse_metric
from big_retrieval.evals.groups import positives_of
from big_retrieval.evals.judged import JudgedQueries, joined
from big_retrieval.evals.modes import SIDES, Mode, Side, in_mode, misfit, parse_mode
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

BLOCK = 1024  # queries compared at a time
SAMPLE = 64  # queries whose encoding is timed
Gates = Mapping[Side, Mapping[str, Mode]]  # side -> gate -> mode that leaves the other side alone
EXACT: Gates = {side: {"exact": parse_mode("top_k=all", "")} for side in SIDES}  # of a dense model
Scorer = Callable[[np.ndarray, np.ndarray], dict[str, float]]


@dataclass(frozen=True)
class System:
    """A model, or BM25, with an evaluator's queries and documents.

    Attributes:
      gates: gates to measure by side.
      rows: encodes a side in a mode: CSR [n, V] or embeddings [n, M, N].
      scorer: gives the evaluator's metrics from the indices of the found documents [Q, depth], -1
        for none, and their scores.
      samples: query field -> texts of some queries; None: images.
      depth: number of documents per query that the metrics look at.
    """

    gates: Gates
    rows: Callable[[Side, Mode], Embeddings]
    scorer: Scorer
    samples: Mapping[str, Sequence[Text] | None]
    depth: int


def gates_of(config: Config, name: str, given: Mapping[Side, Sequence[str]]) -> Gates:
    """Returns the gates of an evaluator's sides; only "exact" for a dense model.

    Args:
      config: config of the model.
      name: evaluator.
      given: side -> "bag" (queries) or "binary" (documents) for bags of words, numbers of terms,
        and "all".

    Raises:
      UserError: the evaluator ranks nothing, a gate is unknown, or the model cannot have it.
    """
    if not isinstance(config.evals.get(name), Ranking | Retrieval):
        ranking = [x for x, ev in config.evals.items() if isinstance(ev, Ranking | Retrieval)]
        raise UserError(
            f"--eval is {name!r}; evaluators that rank: {', '.join(ranking) or 'none'}."
        )
    compared = config.evals[name].compared(config)
    if not is_lexical(config, *compared["query"], *compared["document"]):
        return EXACT
    gates: dict[Side, dict[str, Mode]] = {side: {} for side in SIDES}
    for side in SIDES:
        for gate in given[side]:
            narrowed = f"{gate}/all" if side == "query" else f"all/{gate}"
            is_bag = gate == {"query": "bag", "document": "binary"}[side]
            mode = parse_mode(gate if is_bag else f"top_k={narrowed}", f"the gate of a {side}")
            if why := misfit(mode, side, config.fields, compared[side]):
                raise UserError(f"{gate} is no gate of a {side}: {why}.")
            gates[side][gate] = mode
    out: Gates = {**gates}
    return out


def model_system(model: TrainedModel, name: str, gates: Gates) -> System:
    """Encodes both sides of an evaluator, a `Ranking` or a `Retrieval`.

    Raises:
      UserError: data cannot be read.
    """
    ev = model.config.evals[name]
    config = replace(model.config, evals={name: ev})
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    made = make_evaluators(config, {name: make_source(ev.data)}, readers, model.encoder, reading)
    part, context = next(iter(made.values()))
    part.check_data(context)
    make: Any = judged_system if isinstance(part, Ranking) else paired_system
    return make(part, context, model.weights, gates)


def judged_system(part: Ranking, context: EvaluatorContext, weights: Any, gates: Gates) -> System:
    """The queries of a `Ranking` against its documents."""
    judged = part.judgements(context)
    source, asked = judged.source, judged.asked
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
    for field, weight in weights_of(context, "query").items():
        items = [(n, 0) for n in asked[encoded["query"].present[field][asked]].tolist()]
        if weight > 0:
            samples[field] = _texts(source.queries, context.readers[field], items)
    return System(gates, rows, scorer, samples, metric_depth(judged))


def metric_depth(judged: JudgedQueries) -> int:
    """Returns `search_depth`, but at most the largest k of the metrics if all have an @k."""
    cuts = [parse_metric(name).k for name in judged.ranking.metrics]
    depth = min(judged.ranking.depth, max(k or judged.ranking.depth for k in cuts))
    return depth + judged.search_depth - judged.ranking.depth


def judged_scores(judged: JudgedQueries, found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """Returns the mean of each metric; of equal scores the less relevant document comes first."""
    parts: list[dict[str, np.ndarray]] = []
    for ranked in judged.blocks(found, scores):
        relevance = ties_against(ranked.relevance, ranked.scores)
        parts.append(judged.values(replace(ranked, relevance=relevance)))
    return mean_metrics(joined(parts))


def paired_system(part: Retrieval, context: EvaluatorContext, weights: Any, gates: Gates) -> System:
    """The query field of a `Retrieval` against its document field."""
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

    scorer = recall_scorer(part.recall_at, positives_of(queries, documents))
    samples = {part.query: _texts(queries.source, queries.reader, queries.items.tolist())}
    return System(gates, rows, scorer, samples, max(part.recall_at))


def recall_scorer(recall_at: Sequence[int], positives: Positives) -> Scorer:
    """Returns a scorer of R@k, the share of queries that find a right document among k.

    Of equal scores, wrong documents come first.
    """

    def scorer(found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        right = ties_against(contain(positives, found).astype(np.float64), scores) > 0
        return {f"R@{k}": float(right[:, :k].any(axis=1).mean()) for k in recall_at}

    return scorer


def bm25_system(config: Config, name: str) -> System:
    """BM25 over the texts of a `Ranking`, in an inverted index like those of the models.

    A query's row counts its words. A document's row has, for each of its words, what BM25 adds to
    the score, so the index finds what the library bm25s finds.

    Raises:
      UserError: the evaluator has another type or no texts, or the library is not installed.
    """
    ev = config.evals[name]
    if not isinstance(ev, Ranking):
        raise UserError(f"--bm25 needs a Ranking, and evals.{name} is a {type(ev).__name__}.")
    columns, source = text_columns(config), make_source(ev.data)
    judged = JudgedQueries(ev, source)  # type: ignore[arg-type]
    queries = side_texts(judged.source.queries, columns["query"], judged.asked)
    texts = side_texts(judged.source.documents, columns["document"])
    index, documents = Bm25(texts), len(texts)
    rows = {"query": word_counts(index, queries), "document": word_weights(index, documents)}
    mode = Mode("bm25", "query", dict.fromkeys(SIDES))  # no network encodes anything
    gates: Gates = {side: {"bm25": mode} for side in SIDES}
    samples = {"query": [queries[n] for n in evenly_spaced(len(queries), SAMPLE)]}
    scorer = partial(judged_scores, judged)
    return System(gates, lambda side, mode: rows[side], scorer, samples, metric_depth(judged))


def word_weights(index: Bm25, documents: int) -> scipy.sparse.csr_array:
    """Returns the contribution of each word to each document's score, float32 [D, W]."""
    if index.index is None:
        return scipy.sparse.csr_array((documents, 1), dtype=np.float32)
    scores = index.index.scores
    lists = (scores["data"], scores["indices"], scores["indptr"])
    columns = scipy.sparse.csc_array(lists, shape=(documents, len(scores["indptr"]) - 1))
    return scipy.sparse.csr_array(columns.tocsr(), dtype=np.float32)


def word_counts(index: Bm25, queries: Sequence[str]) -> scipy.sparse.csr_array:
    """Counts the words of queries, float32 [Q, W]; times `word_weights`, these are the scores."""
    rows = [index.word_ids(words) for words in map(find_words, queries)]
    pointers = np.cumsum([0, *map(len, rows)])
    columns = np.array([column for row in rows for column in row], np.int64)
    ones = np.ones(len(columns), np.float32)
    width = 1 if index.index is None else len(index.index.scores["indptr"]) - 1
    out = scipy.sparse.csr_array((ones, columns, pointers), shape=(len(rows), width))
    out.sum_duplicates()
    return out


def contain(positives: Positives, documents: np.ndarray) -> np.ndarray:
    """Returns True for documents [Q, n] that are positives of their query; -1 is none."""
    out = np.zeros(documents.shape, bool)
    for start in range(0, len(positives), BLOCK):
        part = documents[start : start + BLOCK].astype(np.int64)
        rows = positives.rows(slice(start, start + BLOCK))
        pairs: Any = rows.tocoo()
        count = pairs.shape[1]
        known = pairs.row.astype(np.int64) * count + pairs.col
        asked = np.arange(len(part))[:, None] * count + part
        out[start : start + BLOCK] = np.isin(asked, known) & (part >= 0)
    return out


def ties_against(relevance: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Returns relevance in rank order [Q, depth]; of equal scores the lower one comes first."""
    return np.take_along_axis(relevance, order(scores, relevance), axis=1)


def _texts(source: RecordSource, reader: FieldReader, items: Sequence[Any]) -> list[Text] | None:
    """Returns evenly spaced texts of a text field; None for other fields."""
    if reader.field.modality != "text":
        return None
    chosen = [items[number] for number in evenly_spaced(len(items), SAMPLE)]
    return [source_texts(source, record, reader)[place] for record, place in chosen]
