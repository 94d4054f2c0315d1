"""Metrics of a run file and its qrels, query by query, as in trec_eval."""

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.evals.trec import FileQrels, Run

log = logging.getLogger(__name__)
Values = tuple[list[str], Mapping[str, np.ndarray]]  # query ids [q], values [q] by metric


def values_of_run(run: Run, qrels: FileQrels, metrics: Sequence[str]) -> Values:
    """Computes metrics of every judged query; a query that is not in the run counts 0.

    Documents are sorted as in trec_eval: by score in float32, among equal scores by descending id.

    Args:
      metrics: names such as `nDCG@10`.

    Returns:
      Query ids [q], and float64 [q] by metric.

    Raises:
      UserError: a metric is unknown, or the run has no judged query.
    """
    _check_ids(run, qrels)
    if not qrels.keys() & run.keys():
        raise UserError("no query of the run is judged: run and qrels name other queries.")
    queries = sorted(qrels)
    if lacking := len(qrels.keys() - run.keys()):
        log.info(f"{lacking:,} of {len(qrels):,} judged queries have no results and count 0")
    if ignored := len(run.keys() - qrels.keys()):
        log.info(f"{ignored:,} of {len(run):,} queries of the run are not judged and not counted")
    values = [_values(run.get(query, []), qrels[query], metrics) for query in queries]
    return queries, {name: np.array([metric[name] for metric in values]) for name in metrics}


def _check_ids(run: Run, qrels: FileQrels) -> None:
    """Warns if no document of the run is judged."""
    ranked = {document for ranking in run.values() for document, _ in ranking}
    judged = {document for relevance in qrels.values() for document in relevance}
    if ranked and not ranked & judged:
        log.warning(
            f"no document of the run is judged for any query: is {min(ranked)!r} named as the "
            f"qrels name theirs, such as {min(judged)!r}?"
        )


def _values(
    ranking: Sequence[tuple[str, float]], judged: dict[str, float], metrics: Sequence[str]
) -> dict[str, float]:
    relevance = np.array([[judged.get(document, 0.0) for document, _ in ranking]])  # [1, n]
    with np.errstate(over="ignore"):  # too large scores become infinite, as in trec_eval
        scores = np.array([[score for _, score in ranking]]).astype(np.float32)
    if ranking:
        ids = np.array([[document for document, _ in ranking]])
        relevance = np.take_along_axis(relevance, order(scores, relevance, ids), 1)
    all_judged = np.array([list(judged.values())])
    values = graded_metrics(relevance.reshape(1, -1), all_judged, metrics)
    return {name: float(value[0]) for name, value in values.items()}
