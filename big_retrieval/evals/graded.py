"""Metrics of rankings of judged documents, in float64.

Their input is the relevance of each query's ranked documents, in rank order, and of all its judged
documents. Ties and NaN scores count against the model: the less relevant document comes first.
`order` can also break ties as other tools do.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from big_retrieval.errors import UserError

Kind = Literal["nDCG", "ERR", "RBP", "MRR", "MAP", "R", "P"]
Gain = Literal["exponential", "linear"]
MeanOver = Literal["judged", "run"]
Ties = Literal["against", "given"] | np.ndarray

KINDS: tuple[Kind, ...] = ("nDCG", "ERR", "RBP", "MRR", "MAP", "R", "P")
NEED_K = ("R", "P")
EXAMPLES = "nDCG@10, nDCG, ERR, RBP@0.9, MRR, MAP, R@10, P@10"


@dataclass(frozen=True)
class Metric:
    """Parsed name of a metric."""

    kind: Kind
    k: int | None = None  # number of first documents that count; None for all
    p: float = 0.9  # persistence of RBP


def parse_metric(name: str) -> Metric:
    """Parses the name of a metric, such as `nDCG@10`, `ERR` or `RBP@0.9`."""
    kind, at, number = name.partition("@")
    if kind not in KINDS:
        same = [x for x in KINDS if x.lower() == kind.lower()]
        near = same or difflib.get_close_matches(kind, KINDS, 1, 0.5)
        hint = f"did you mean {near[0] + at + number!r}?" if near else f"known: {EXAMPLES}."
        raise UserError(f"the metric {name!r} is unknown; {hint}")
    if kind == "RBP":
        try:
            p = float(number)
        except ValueError:
            p = -1.0
        if not 0 < p < 1:
            raise UserError(f"the metric {name!r} needs a persistence between 0 and 1: RBP@0.9.")
        return Metric(kind, None, p)
    if (at or kind in NEED_K) and not (number.isdecimal() and int(number) > 0):
        raise UserError(f"the metric {name!r} needs a number of documents: {kind}@10.")
    return Metric(kind, int(number) if at else None)


def graded_metrics(
    relevance: np.ndarray,
    judged: np.ndarray,
    metrics: Sequence[str],
    err_gain: Gain = "exponential",
) -> dict[str, np.ndarray]:
    """Computes metrics of every query.

    With s_r the relevance at rank r and s_max the highest relevance judged for the query:

    - nDCG@k: sum_r s_r / log2(r + 1), divided by its value for the best order of all judged
      documents.
    - ERR: sum_r R_r / r prod_{i<r} (1 - R_i), where R_r = (2^s_r - 1) / 2^s_max as in GCL's code,
      or s_r / (s_max + 1) as in GCL's text (`err_gain` linear).
    - RBP@p: (1 - p) sum_r s_r / s_max p^(r - 1).
    - MRR: 1 / the first rank with a relevance above 0.
    - MAP: sum of the precisions at ranks with relevance above 0, divided by the number of
      documents judged above 0.
    - R@k, P@k: number of documents of relevance above 0 among the first k, divided by the number
      of all such documents, or by k.

    All metrics are 0 for a query without relevance above 0, as in trec_eval, and for an empty
    ranking.

    Args:
      relevance: of the ranked documents in rank order, [Q, depth]; 0 if not judged or no document.
      judged: relevance of all judged documents in any order, [Q, J]; padded with 0.
      metrics: names as in `parse_metric`.

    Returns:
      float64 [Q] by name.

    Raises:
      UserError: relevance is negative, NaN or infinite, or a ranked document has a higher relevance
        than all judged documents.
    """
    relevance, judged = np.asarray(relevance, np.float64), np.asarray(judged, np.float64)
    _check(relevance, judged)
    return {name: _values(parse_metric(name), relevance, judged, err_gain) for name in metrics}


def mean_metrics(
    values: Mapping[str, np.ndarray],
    ran: np.ndarray | None = None,
    mean_over: MeanOver = "judged",
) -> dict[str, float]:
    """Averages metrics over queries.

    By default, a judged query without a ranking counts 0, so that a system gains nothing by leaving
    out queries. The package beir averages nDCG, MAP, recall and precision over the queries with a
    ranking (`mean_over` "run"), and MRR over all.

    Args:
      values: [Q] by name.
      ran: True if the query has a ranking, [Q]; None for all True.

    Returns:
      Mean by name; NaN if no query counts.
    """
    out = {}
    for name, metric in values.items():
        present = np.ones(len(metric), bool) if ran is None else np.asarray(ran, bool)
        total = float(np.where(present, metric, 0.0).sum())
        count = len(metric) if mean_over == "judged" else int(present.sum())
        out[name] = total / count if count else float("nan")
    return out


def order(scores: np.ndarray, relevance: np.ndarray, ties: Ties = "against") -> np.ndarray:
    """Sorts the documents of every query, best score first.

    Args:
      scores: [Q, D], higher is better; padded with -inf. A NaN comes last if the document is
        relevant, else first.
      relevance: [Q, D], 0 if not judged.
      ties: the first document among equal scores: the less relevant document ("against"), the lower
        index ("given"), or the larger key, [Q, D] of numbers or texts (trec_eval: document ids).

    Returns:
      int64 [Q, D], indices into the second axis.
    """
    scores, relevance = np.asarray(scores, np.float64), np.asarray(relevance, np.float64)
    keys = relevance if isinstance(ties, str) else np.asarray(ties)
    if not scores.shape == relevance.shape == keys.shape or scores.ndim != 2:
        raise UserError(
            f"scores {scores.shape}, relevance {relevance.shape} and keys {keys.shape} must have "
            "the same 2-D shape."
        )
    scores = np.where(np.isnan(scores), np.where(relevance > 0, -np.inf, np.inf), scores)
    if isinstance(ties, str):
        second = relevance if ties == "against" else np.zeros(relevance.shape)
    else:
        second = -np.unique(keys, return_inverse=True)[1].reshape(keys.shape)  # texts have no minus
    return np.lexsort((second, -scores), axis=1)


def _check(relevance: np.ndarray, judged: np.ndarray) -> None:
    if relevance.ndim != 2 or judged.ndim != 2 or len(relevance) != len(judged):
        raise UserError(
            f"relevance {relevance.shape} and judged {judged.shape} must be 2-D, one row per query."
        )
    for name, values in (("relevance", relevance), ("judged", judged)):
        if not ((values >= 0) & (values < np.inf)).all():
            raise UserError(f"{name} must be finite and not negative; correct the qrels.")
    above = relevance.max(1, initial=0) > judged.max(1, initial=0)
    if above.any():
        raise UserError(
            f"query {int(np.argmax(above))}: a ranked document has a higher relevance than all "
            "judged documents. Pass all qrels of the query as `judged`."
        )


def _values(metric: Metric, relevance: np.ndarray, judged: np.ndarray, gain: Gain) -> np.ndarray:
    """Computes one metric of all queries, [Q]."""
    cut = relevance[:, : metric.k]  # [Q, K]
    if metric.kind == "nDCG":
        best = -np.sort(-judged, axis=1)[:, : metric.k]
        return _share(_dcg(cut), _dcg(best))
    if metric.kind == "ERR":
        return _err(cut, judged, gain)
    if metric.kind == "RBP":
        discounts = (1 - metric.p) * metric.p ** np.arange(cut.shape[1])
        return _share(cut @ discounts, judged.max(1, initial=0))
    is_relevant, total = cut > 0, (judged > 0).sum(1)
    ranks = np.arange(1, cut.shape[1] + 1)  # [K]
    if metric.kind == "MRR":
        return (is_relevant / ranks).max(1, initial=0.0)
    if metric.kind == "MAP":
        precisions = np.cumsum(is_relevant, axis=1) / ranks
        return _share((precisions * is_relevant).sum(1), total)
    hits = is_relevant.sum(1)
    return _share(hits, total) if metric.kind == "R" else hits / (metric.k or 1)


def _dcg(relevance: np.ndarray) -> np.ndarray:
    return relevance @ (1 / np.log2(np.arange(relevance.shape[1]) + 2))


def _err(relevance: np.ndarray, judged: np.ndarray, gain: Gain) -> np.ndarray:
    top = judged.max(1, initial=0)[:, None]  # [Q, 1]
    # not (2^s - 1) / 2^top, which is inf / inf for a relevance of at least 1024
    chapelle = np.exp2(relevance - top) - np.exp2(-top)
    stops = relevance / (top + 1) if gain == "linear" else chapelle
    reached = np.cumprod(1 - stops, axis=1)
    reached = np.concatenate([np.ones_like(top), reached[:, :-1]], axis=1)[:, : stops.shape[1]]
    return (stops * reached) @ (1 / np.arange(1, stops.shape[1] + 1))


def _share(values: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Computes values / total; 0 if total is 0."""
    values, total = values.astype(np.float64), total.astype(np.float64)
    return np.divide(values, total, out=np.zeros(len(values)), where=total > 0)
