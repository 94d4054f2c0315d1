"""The metrics of a run file by its qrels, query by query, as trec_eval has them."""

import logging
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

import numpy as np

from big_retrieval.errors import UserError
from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.evals.trec import FileQrels, Run

log = logging.getLogger(__name__)
Values = tuple[list[str], Mapping[str, np.ndarray]]  # ids of queries, metric -> value of each


def values_of_run(run: Run, qrels: FileQrels, metrics: Sequence[str]) -> Values:
    """Metrics of every judged query, those of trec_eval; one that the run lacks has 0.

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
    _check_ids(run, qrels)
    if not qrels.keys() & run.keys():
        raise UserError("no query of the run is judged: run and qrels name other queries.")
    queries = sorted(qrels)
    if lacking := len(qrels.keys() - run.keys()):
        log.info(f"{lacking:,} of {len(qrels):,} judged queries have no results and count 0")
    if ignored := len(run.keys() - qrels.keys()):
        log.info(f"{ignored:,} of {len(run):,} queries of the run are not judged and not counted")
    values = [_values(run.get(query, []), qrels[query], metrics) for query in queries]
    return queries, {name: np.array([each[name] for each in values]) for name in metrics}


def _check_ids(run: Run, qrels: FileQrels) -> None:
    """Warns where the run and the qrels seem to write ids in different ways."""
    found = {document for ranking in run.values() for document, _ in ranking}
    judged = {document for each in qrels.values() for document in each}
    if found and not found & judged:
        log.warning(
            f"no document of the run is judged for any query: is {min(found)!r} named as the qrels "
            f"name theirs, such as {min(judged)!r}?"
        )
    escaped = [each for each in found - judged if unquote(each) in judged - found]
    escaped += [each for each in run.keys() - qrels.keys() if unquote(each) in qrels]
    if escaped:
        log.warning(
            f"{len(escaped):,} ids of the run are not in the qrels, such as {min(escaped)!r}, but "
            f"{unquote(min(escaped))!r} is: if an older version wrote blanks as %20, write it again"
        )


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
    values = graded_metrics(relevance.reshape(1, -1), whole, metrics)
    return {name: float(value[0]) for name, value in values.items()}
