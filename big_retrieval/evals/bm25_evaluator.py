"""Ranking evaluators answered by BM25 instead of a model: what shared words alone find."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import Config
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource, texts_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals import examples
from big_retrieval.evals.bm25 import bm25_rankings
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.graded_order import relevance_of
from big_retrieval.evals.own import depth_with_own, left_out, own_documents, without_own
from big_retrieval.evals.ranking import chosen_queries
from big_retrieval.evals.rankings import open_rankings
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)
SIDES = ("query", "document")


@dataclass(frozen=True)
class Bm25Evaluator:
    """The metrics of a `RankingEvaluator`, of the same queries and documents, by BM25.

    A text is that of all text fields of its side with their titles, without their prefixes; of
    several texts in a column it is the first, as for a model. A query without any result counts 0.
    Of documents with equal scores the earlier one comes first, as BM25 is commonly measured; ties
    are not counted against it as they are against a model, whose scores hardly ever tie.

    Attributes:
      config: the evaluator's configuration; its ways to weigh fields do not apply to words.
      source: judged pairs with their queries and documents.
      columns: "query" and "document" -> the columns of the side's texts.
    """

    config: configs.Ranking
    source: JudgedSource
    columns: Mapping[str, Sequence[str]]

    def check(self) -> None:
        """Reads the first texts of both sides.

        Raises:
          UserError: there is no such column, or it holds no texts.
        """
        for side, source in self._sources().items():
            for column in self.columns[side] if len(source) else ():
                try:
                    texts_of(source, 0, column)
                except Damaged:
                    continue  # this one has none; they are counted later

    def run(
        self,
        weights: Any = None,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Ranks the documents for all queries that are asked.

        Args:
          weights: of no model; nothing reads them.
          show: not called: there are no examples of words.
          rankings: folder for the rankings; None: they are not written.
          extras: says that rankings cannot be written; None: that is an error.

        Returns:
          `nDCG@10` and so on.

        Raises:
          UserError: no document has a text, or the library bm25s is not installed.
        """
        c, sources = self.config, self._sources()
        asked = chosen_queries(c, len(self.source.queries))
        queries = side_texts(sources["query"], self.columns["query"], asked)
        documents = side_texts(sources["document"], self.columns["document"])
        self._check_any(documents)
        own = own_documents(c, self.source)[asked]
        depth = min(depth_with_own(c.depth, own), len(documents))
        found, scores = bm25_rankings(queries, documents, depth)
        found, scores = without_own(found, scores, own, c.depth)
        ids, relevance = self.source.qrels.of(asked)  # [q, J] each
        values = graded_metrics(
            relevance_of(found, ids, relevance), relevance, c.metrics, c.err_gain
        )
        log.info(
            f"{len(asked):,} queries against {len(documents):,} documents by BM25, "
            f"{len(self.source.qrels):,} qrels{_lacking(found, queries, documents)}"
            f"{left_out(own)}"
        )
        if rankings is not None:
            with open_rankings(rankings, self.source, extras) as writer:
                writer.add(asked, found, scores, values)
        return mean_metrics(values)

    def _check_any(self, documents: Sequence[str]) -> None:
        """Raises where no document has a text."""
        if not any(documents):
            told = " and ".join(map(repr, self.columns["document"]))
            raise UserError(
                f"{self.source.documents.name} has no text in {told}, so BM25 has nothing to rank; "
                "name another column in config.fields."
            )

    def _sources(self) -> dict[str, RecordSource]:
        return {"query": self.source.queries, "document": self.source.documents}


def make_bm25_evaluators(
    config: Config, sources: Mapping[str, RecordSource]
) -> tuple[dict[str, Bm25Evaluator], list[str]]:
    """The ranking evaluators of a config, answered by BM25.

    Args:
      config: checked.
      sources: evaluator name -> its records; those of ranking evaluators are enough.

    Returns:
      The evaluators by the prefix of their metrics, such as `ranking/test`, and the prefixes of the
      others, which BM25 cannot answer.

    Raises:
      UserError: there is no ranking evaluator, or no text field on a side.
    """
    names = {name: f"{ev.type}/{name}" for name, ev in sorted(config.evals.items())}
    out: dict[str, Bm25Evaluator] = {}
    for name, prefix in names.items():
        ev: Any = config.evals[name]
        if ev.judged:
            source: Any = sources.get(name)  # checks.evals saw that it is a judged one
            out[prefix] = Bm25Evaluator(ev, source, text_columns(config))
    if not out:
        have = ", ".join(names.values()) or "none at all"
        raise UserError(
            f"--bm25 needs an evaluator of the type 'ranking', but config.evals has {have}; add "
            "one."
        )
    return out, [prefix for prefix in names.values() if prefix not in out]


def text_columns(config: Config) -> dict[str, tuple[str, ...]]:
    """Side -> the columns of its text fields, each once, in the order of the fields' names.

    The column of a field's titles stands in front of that of its texts.

    Raises:
      UserError: a side has no text field.
    """
    out = {}
    for side in SIDES:
        fields = [f for _, f in sorted(config.fields.items()) if f.side == side]
        texts = [f for f in fields if f.modality == "text"]
        columns = [column for f in texts for column in (f.title, f.column) if column]
        if not columns:
            raise UserError(
                f"--bm25 compares words, but config.fields has no text field on the {side} side; "
                "add one, or give a config that has."
            )
        out[side] = tuple(dict.fromkeys(columns))
    return out


def side_texts(
    source: RecordSource, columns: Sequence[str], records: np.ndarray | None = None
) -> list[str]:
    """The text of each record: the first one of every column, joined by a space.

    Args:
      source: queries or documents.
      columns: of texts; one that a record lacks adds nothing.
      records: whose text is wanted, [n]; None: of all.

    Returns:
      n texts, "" where no column has one.
    """
    return [
        " ".join(
            text for column in columns if (text := _first_text(source, int(index), column)) != ""
        )
        for index in (range(len(source)) if records is None else records)
    ]


def _first_text(source: RecordSource, index: int, column: str) -> str:
    try:
        return texts_of(source, index, column)[0]
    except Damaged:
        return ""


def _lacking(found: np.ndarray, queries: Sequence[str], documents: Sequence[str]) -> str:
    """What is said of texts that are not there, and of queries that find nothing."""
    counts = {
        "queries without text": sum(not text for text in queries),
        "documents without text": sum(not text for text in documents),
        "queries without any result": int(np.sum(found[:, 0] < 0)),
    }
    words = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f" ({', '.join(words)})" if words else ""
