"""Metrics of a run file against qrels: those of trec_eval, for every judged query."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.formats.arrow import read_csv
from big_retrieval.data.formats.columns import scan
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import renamed
from big_retrieval.data.formats.whole import judged_lines
from big_retrieval.data.judged.pairing import Pairing
from big_retrieval.data.judged.qrels import DuplicatePolicy
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics
from big_retrieval.evals.graded_order import order
from big_retrieval.evals.trec import Run

log = logging.getLogger(__name__)
NAMES = ("query", "document", "score")
FileQrels = dict[str, dict[str, float]]  # query -> document -> relevance


def read_qrels(path: Path, duplicates: DuplicatePolicy = "refuse") -> FileQrels:
    """The qrels of a file: TREC's qrels, three columns, or BEIR's with their header line.

    A relevance below 0 counts 0.

    Raises:
      UserError: it is no such file, or judges a pair twice with different relevance, which
        `duplicates` refuses.
    """
    try:
        lines: Any = judged_lines(path, *NAMES)
        table: Table = _with_header(path) if lines is None else lines
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    found = scan(table, NAMES[:2], NAMES[2:])
    pairing = Pairing(
        found.texts["query"],
        found.texts["document"],
        found.numbers["score"],
        names=NAMES,
        place=table.place,
        negative="zero",
        duplicates=duplicates,
    )
    sides = pairing.sides(None, None)
    out: FileQrels = {}
    ids = (found.texts[name].take(sides.pairs).to_pylist() for name in NAMES[:2])
    for query, document, value in zip(*ids, sides.qrels.score.tolist(), strict=True):
        out.setdefault(query, {})[document] = value
    return out


def _with_header(path: Path) -> Table:
    """A tab-separated file whose first line names the columns of query, document and relevance."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        names = file.readline().rstrip("\r\n").split("\t")
    if len(names) not in (3, 4):
        raise UserError(
            f"{path} holds no qrels: its lines need query, document and relevance, or TREC's "
            "query, 0, document and relevance."
        )
    return renamed(read_csv(path, "\t"), dict(zip((names[0], *names[-2:]), NAMES, strict=True)))


def values_of_run(
    run: Run, qrels: FileQrels, metrics: Sequence[str]
) -> tuple[list[str], dict[str, np.ndarray]]:
    """Metrics of every judged query; one that the run lacks has 0.

    Documents are ordered as trec_eval does: by score as float32, equal ones by their ids, the last
    one first.

    Args:
      run: query -> documents and scores.
      qrels: the qrels.
      metrics: names such as `nDCG@10`.

    Returns:
      The ids of the queries [q], and metric -> float64 [q].

    Raises:
      UserError: an unknown metric, or no judged query in the run.
    """
    if not qrels.keys() & run.keys():
        raise UserError("no query of the run is judged: run and qrels name other queries.")
    found = {document for ranking in run.values() for document, _ in ranking}
    if found and not any(found & judged.keys() for judged in qrels.values()):
        one, other = min(found), next(iter(next(iter(qrels.values()))))
        log.warning(
            f"no document of the run is judged for any query: is {one!r} named as the qrels "
            f"name theirs, such as {other!r}?"
        )
    queries = sorted(qrels)
    values = [_values(run.get(query, []), qrels[query], metrics) for query in queries]
    return queries, {name: np.array([each[name] for each in values]) for name in metrics}


def _values(
    found: Sequence[tuple[str, float]], judged: dict[str, float], metrics: Sequence[str]
) -> dict[str, float]:
    relevance = np.array([[judged.get(document, 0.0) for document, _ in found]])  # [1, n]
    with np.errstate(over="ignore"):  # trec_eval, too, holds what is beyond float32 as infinite
        scores = np.array([[score for _, score in found]]).astype(np.float32)
    if found:
        ids = np.array([[document for document, _ in found]])
        relevance = np.take_along_axis(relevance, order(scores, relevance, ids), 1)
    whole = np.array([list(judged.values())])
    made = partial(graded_metrics, relevance.reshape(1, -1), whole, metrics)
    return {name: float(value[0]) for name, value in made().items()}
