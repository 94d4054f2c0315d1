"""BM25 as one more model of a sweep: its weights of words in the same index, searched the same way.

The library bm25s makes the weights; a query is how often it has each word.
"""

from typing import Any

import numpy as np

from big_retrieval.config import Config, Ranking
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals.bm25 import Bm25
from big_retrieval.evals.bm25_evaluator import side_texts, text_columns
from big_retrieval.evals.modes import Mode, Side, parse_mode
from big_retrieval.evals.own import depth_with_own, own_documents
from big_retrieval.evals.ranking import chosen_queries
from big_retrieval.inference.encoder import Embeddings
from big_retrieval.tradeoff.asking import SAMPLE
from big_retrieval.tradeoff.gates import BM25, Gate
from big_retrieval.tradeoff.judges import GradedScorer
from big_retrieval.tradeoff.subjects import SIDES, System, depth_of, evenly, metrics_of


def ranking_of(config: Config, name: str) -> Ranking:
    """An evaluator that BM25 can answer.

    Raises:
      UserError: it does not rank judged documents, or a side has no text field.
    """
    ev: Any = config.evals[name]
    if not ev.judged:
        raise UserError(
            f"--bm25 needs an evaluator of the type 'ranking', and evals.{name} is of the type "
            f"{ev.type!r}: leave it out, or name another by --eval."
        )
    text_columns(config)
    return ev


def make_bm25_subject(config: Config, name: str) -> System:
    """BM25 for the queries and documents of a ranking evaluator.

    Args:
      config: of a model, whose text fields say which columns are read.
      name: of the evaluator.

    Raises:
      UserError: as `ranking_of`; or the library bm25s is not installed.
    """
    ev, columns = ranking_of(config, name), text_columns(config)
    source: Any = make_source(ev.data)
    asked = chosen_queries(ev, len(source.queries))
    queries = side_texts(source.queries, columns["query"], asked)
    documents = side_texts(source.documents, columns["document"])
    index = Bm25(documents)
    found = {"query": index.counts(queries), "document": index.weights()}
    judged, relevance = source.qrels.of(asked)
    own = own_documents(ev, source)[asked]

    def rows(side: Side, mode: Mode) -> Embeddings:
        return found[side]

    everything = parse_mode("bag", "")  # no network encodes anything
    return System(
        title=name,
        topology="inner",
        gates={side: [Gate(BM25, side, everything)] for side in SIDES},
        rows=rows,
        judge=GradedScorer(
            ev, np.arange(len(documents)), np.ones(len(asked), bool), judged, relevance, own
        ),
        metrics=metrics_of(ev),
        depth=depth_with_own(depth_of(ev), own),
        samples={"query": [queries[n] for n in evenly(len(queries), SAMPLE)]},
        records=len(documents),
    )
