"""What is measured: both sides of an evaluator, encoded once, and a judge of what is found."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.config import Config, Ranking, is_lexical
from big_retrieval.data.build import make_readers, make_reading, make_source
from big_retrieval.data.fields.reader import FieldReader, Text, source_texts
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import UserError
from big_retrieval.evals.bags import fields_in_mode, in_mode
from big_retrieval.evals.evaluators import make_evaluators
from big_retrieval.evals.fields import average
from big_retrieval.evals.graded import parse_metric
from big_retrieval.evals.modes import Mode, Side, parse_mode
from big_retrieval.evals.own import depth_with_own
from big_retrieval.evals.ranking import RankingEvaluator, chosen_queries
from big_retrieval.evals.retrieval import RetrievalEvaluator
from big_retrieval.inference.encoder import Embeddings
from big_retrieval.inference.load import TrainedModel
from big_retrieval.tradeoff.asking import SAMPLE
from big_retrieval.tradeoff.gates import Gate, gates_of
from big_retrieval.tradeoff.judges import GradedScorer, Judge, Paired

log = logging.getLogger(__name__)
SIDES: tuple[Side, Side] = ("query", "document")
WHOLE = parse_mode("top_k=all", "")  # everything, as the model gave it


@dataclass(frozen=True)
class System:
    """A model with an evaluator's queries and documents.

    Attributes:
      title: of the evaluator.
      topology: of the embeddings.
      gates: "query" and "document" -> the gates of the sweep; of dense models "exact" alone.
      rows: of a side in a mode: CSR [n, V] or embeddings [n, M, N]; queries are those that are
        asked, documents those that can be found.
      judge: of what is found.
      metrics: that it gives.
      depth: documents of a query that they look at, at most; one more where a query's own document
        is found and left out.
      samples: query field -> texts of some queries, None of images.
      records: documents that there are, found or not.
    """

    title: str
    topology: str
    gates: Mapping[Side, Sequence[Gate]]
    rows: Callable[[Side, Mode], Embeddings]
    judge: Judge
    metrics: tuple[str, ...]
    depth: int
    samples: Mapping[str, Sequence[Text] | None]
    records: int


def choose(config: Config, name: str) -> str:
    """The name of the evaluator that is measured.

    Args:
      config: of the run.
      name: as asked for; "": the only one that ranks documents.

    Raises:
      UserError: there is none of this name, it ranks nothing, or there are several.
    """
    ranks = [key for key, ev in sorted(config.evals.items()) if ev.ranks]
    known = ", ".join(ranks) or "none"
    if not name and len(ranks) != 1:
        raise UserError(f"--eval is missing: which of the run's evaluators ({known}) to measure.")
    if name and name not in config.evals:
        raise UserError(f"--eval is {name!r}, which config.evals lacks; those that rank: {known}.")
    if name and name not in ranks:
        raise UserError(f"--eval is {name!r}, which classifies; name one that ranks: {known}.")
    return name or ranks[0]


def make_subject(
    model: TrainedModel,
    name: str,
    queries: Sequence[str],
    documents: Sequence[str],
) -> System:
    """Encodes both sides of an evaluator.

    Args:
      model: of the run.
      name: of the evaluator, from `choose`.
      queries: their gates; none: the default ones.
      documents: theirs.

    Raises:
      UserError: gates that the model cannot have, or data that cannot be read.
    """
    ev = model.config.evals[name]
    config = dataclasses.replace(model.config, evals={name: ev})
    sources = {name: make_source(ev.data)}
    readers, reading = make_readers(config, model.tokenizer), make_reading(config.loader)
    made = make_evaluators(config, sources, readers, model.encoder, reading)
    (evaluator,) = made.values()
    evaluator.check()
    gates = sweep(config, ev, queries, documents)
    if isinstance(evaluator, RankingEvaluator):
        source = evaluator.source
        log.info(
            f"encoding {len(source.queries):,} queries and {len(source.documents):,} documents"
        )
        return ranked(name, evaluator, model.weights, config, gates)
    if isinstance(evaluator, RetrievalEvaluator):
        log.info(f"encoding {len(evaluator.source):,} records")
        return paired(name, evaluator, model.weights, config, gates)
    raise TypeError(evaluator)  # `choose` saw to it


def side_fields(config: Config, ev: Any) -> dict[Side, list[str]]:
    """The fields of both sides of an evaluator that have a weight."""
    named = ev.reads()
    if named:
        return {"query": [named["query"]], "document": [named["document"]]}
    out: dict[Side, list[str]] = {"query": [], "document": []}
    for name, field in config.encoded.items():
        if field.weight > 0:
            out["query" if field.side == "query" else "document"].append(name)
    return out


def metrics_of(ev: Any) -> tuple[str, ...]:
    """The metrics of a ranking or retrieval evaluator that a plot can show."""
    return tuple(ev.metrics) if ev.judged else tuple(f"R@{k}" for k in ev.recall_at)


def sparse(config: Config, ev: Any) -> bool:
    """Whether all fields of an evaluator have lexical heads."""
    return is_lexical(config, *(name for part in side_fields(config, ev).values() for name in part))


def sweep(
    config: Config, ev: Any, queries: Sequence[str], documents: Sequence[str]
) -> dict[Side, list[Gate]]:
    """The gates of both sides of an evaluator; of dense models "exact" alone.

    Args:
      config: of the model.
      ev: the evaluator's.
      queries: as the flag has them; none: the default ones. Of dense models neither is read.
      documents: as the flag has them.

    Raises:
      UserError: gates that the model cannot have.
    """
    sides = side_fields(config, ev)
    if not sparse(config, ev):
        return {
            "query": [Gate("exact", "query", WHOLE)],
            "document": [Gate("exact", "document", WHOLE)],
        }
    return {
        "query": gates_of(queries, "query", config.fields, sides["query"]),
        "document": gates_of(documents, "document", config.fields, sides["document"]),
    }


def ranked(
    name: str,
    evaluator: RankingEvaluator,
    weights: Any,
    config: Config,
    gates: Mapping[Side, Sequence[Gate]],
) -> System:
    """The queries of a ranking evaluator against its documents."""
    c, source = evaluator.config, evaluator.source
    asked = chosen_queries(c, len(source.queries))
    encoded = {side: evaluator.encode(weights, side) for side in SIDES}
    findable = np.flatnonzero(encoded["document"].any(evaluator.weights_of("document")))
    kept = {"query": asked, "document": findable}
    modes = {side: [gate.mode for gate in gates[side]] for side in SIDES}
    bow = {side: evaluator.bow(encoded[side], side, modes[side]) for side in SIDES}

    def rows(side: Side, mode: Mode) -> Embeddings:
        part = fields_in_mode(encoded[side], mode, side, bow[side])
        weighed = evaluator.weights_of(side)
        return average(evaluator.topology, part.embeddings, weighed, part.present)[kept[side]]

    own, (judged, relevance) = evaluator.own[asked], source.qrels.of(asked)
    sayable = encoded["query"].any(evaluator.weights_of("query"))[asked]
    readers = {n: evaluator.readers[n] for n in side_fields(config, c)["query"]}
    samples = {}
    for each, reader in readers.items():
        present = asked[encoded["query"].present[each][asked]]
        samples[each] = _texts(source.queries, reader, [(record, 0) for record in present.tolist()])
    return System(
        title=name,
        topology=config.topology,
        gates=gates,
        rows=rows,
        judge=GradedScorer(c, findable, sayable, judged, relevance, own),
        metrics=metrics_of(c),
        depth=depth_with_own(depth_of(c), own),
        samples=samples,
        records=len(source.documents),
    )


def depth_of(config: Ranking) -> int:
    """Documents of a query that the metrics look at."""
    parsed = [parse_metric(name) for name in config.metrics]
    cuts = [each.k for each in parsed if each.k is not None]
    return min(config.depth, max(cuts)) if len(cuts) == len(parsed) else config.depth


def paired(
    name: str,
    evaluator: RetrievalEvaluator,
    weights: Any,
    config: Config,
    gates: Mapping[Side, Sequence[Gate]],
) -> System:
    """The embeddings of a retrieval evaluator's query field against those of its document field."""
    c, encoded = evaluator.config, evaluator.encode(weights)
    sides = {"query": encoded[c.query], "document": encoded[c.document]}
    bow = {
        side: evaluator.bow(sides[side])
        for side, found in gates.items()
        if sides[side].reader.field.modality == "text"
        and any(gate.mode.needs_words(side) for gate in found)
    }

    def rows(side: Side, mode: Mode) -> Embeddings:
        return in_mode(sides[side].embeddings, mode, side, bow.get(side))

    asking = sides["query"]
    return System(
        title=f"{name} ({c.query} to {c.document})",
        topology=config.topology,
        gates=gates,
        rows=rows,
        judge=Paired(c.recall_at, asking.owners, sides["document"].owners),
        metrics=metrics_of(c),
        depth=max(c.recall_at),
        samples={c.query: _texts(asking.source, asking.reader, asking.items.tolist())},
        records=sides["document"].embeddings.shape[0],
    )


def _texts(source: RecordSource, reader: FieldReader, items: Sequence[Any]) -> list[Text] | None:
    """Texts of a field evenly chosen among (record, place) of all; None of other fields."""
    if reader.field.modality != "text":
        return None
    chosen = [items[number] for number in evenly(len(items), SAMPLE)]
    return [source_texts(source, record, reader)[place] for record, place in chosen]


def evenly(count: int, most: int) -> list[int]:
    """At most so many numbers below `count`, as far apart as they can be."""
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
