"""Metrics of rankings of judged documents, in float64.

They see, for each query, the relevance of the ranked documents, in the order of the ranking, and
that of all judged documents. Of documents with equal scores the lower relevance goes first, so that
a tie counts against the model; a score of NaN does, too. Other tools break ties otherwise, which
`order` can do as well.
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
    """A metric by its name.

    Attributes:
      kind: what it measures.
      k: documents that count; None: the whole ranking.
      p: the persistence of RBP.
    """

    kind: Kind
    k: int | None = None
    p: float = 0.9


def parse_metric(name: str) -> Metric:
    """The metric that a name such as `nDCG@10`, `ERR` or `RBP@0.9` means.

    Raises:
      UserError: there is none of this name; the nearest one is named.
    """
    kind, at, number = name.partition("@")
    same = {each.lower(): each for each in KINDS}.get(kind.lower())
    if kind not in KINDS:
        near = [same] if same else difflib.get_close_matches(kind, KINDS, 1, 0.5)
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
    if at and not (number.isdecimal() and int(number) > 0):
        raise UserError(f"the metric {name!r} needs a number of documents: {kind}@10.")
    if not at and kind in NEED_K:
        raise UserError(f"the metric {name!r} needs the number of documents that count: {kind}@10.")
    return Metric(kind, int(number) if at else None)


def graded_metrics(
    relevance: np.ndarray,
    judged: np.ndarray,
    metrics: Sequence[str],
    err_gain: Gain = "exponential",
) -> dict[str, np.ndarray]:
    """Metrics of every query.

    With s_r the relevance at rank r, s_max the best relevance among all documents judged for the
    query, and K the ranks that count:

    - nDCG@k: sum_r s_r / log2(r + 1), divided by that of the best order of the judged documents.
    - ERR: sum_r R_r / r prod_{i<r} (1 - R_i), where R_r = (2^s_r - 1) / 2^s_max as GCL's code has
      it, or s_r / (s_max + 1) as its text has it (`err_gain` linear).
    - RBP@p: (1 - p) sum_r s_r / s_max p^(r - 1).
    - MRR: 1 / the first rank with a relevance above 0.
    - MAP: sum of the precisions at the relevant ranks (above 0), divided by how many were judged.
    - R@k, P@k: documents of relevance above 0 among the first k, divided by all of them, or by k.

    A query without any relevance above 0 has 0 everywhere, as in trec_eval; so has one whose
    ranking is empty, that is all 0.

    Args:
      relevance: [Q, depth], of the ranked documents in rank order; 0: not judged, or no document.
      judged: [Q, J], of the judged documents, ranked or not, in any order; filled up with 0.
      metrics: names.
      err_gain: of ERR.

    Returns:
      Name -> float64 [Q].

    Raises:
      UserError: an unknown name, shapes that do not fit, relevance that is negative, NaN or
        infinite, or a ranked document of higher relevance than all judged ones.
    """
    relevance, judged = np.asarray(relevance, np.float64), np.asarray(judged, np.float64)
    _check(relevance, judged)
    return {name: _values(parse_metric(name), relevance, judged, err_gain) for name in metrics}


def mean_metrics(
    values: Mapping[str, np.ndarray],
    ran: np.ndarray | None = None,
    mean_over: MeanOver = "judged",
) -> dict[str, float]:
    """Means over queries.

    By default over all judged queries: one without a ranking counts 0, so that a system gains
    nothing by leaving out queries. The package beir divides nDCG, MAP, recall and precision by the
    queries that have a ranking instead, and MRR by all: `mean_over` "run" does the former.

    Args:
      values: name -> [Q].
      ran: [Q], whether the query has a ranking; None: all have one.
      mean_over: the queries that count.

    Returns:
      Name -> mean; NaN where no query counts.
    """
    out = {}
    for name, each in values.items():
        present = np.ones(len(each), bool) if ran is None else np.asarray(ran, bool)
        total = float(np.where(present, each, 0.0).sum())
        count = len(each) if mean_over == "judged" else int(present.sum())
        out[name] = total / count if count else float("nan")
    return out


def order(scores: np.ndarray, relevance: np.ndarray, ties: Ties = "against") -> np.ndarray:
    """The order of the documents of every query, best score first.

    Args:
      scores: [Q, D], higher is better; -inf at the end where a query has fewer documents. One that
        is NaN stands last where it is relevant, else first.
      relevance: [Q, D], 0: not judged.
      ties: of equal scores the lower relevance first ("against"), the earlier one ("given"), or
        the one with the larger key, [Q, D] of numbers or texts (the documents' ids: the order of
        trec_eval).

    Returns:
      int64 [Q, D], indices into the second axis.

    Raises:
      UserError: the shapes differ.
    """
    scores, relevance = np.asarray(scores, np.float64), np.asarray(relevance, np.float64)
    keys = relevance if isinstance(ties, str) else np.asarray(ties)
    if not scores.shape == relevance.shape == keys.shape or scores.ndim != 2:
        raise UserError(
            f"scores {scores.shape}, relevance {relevance.shape} and keys {keys.shape} must be one "
            "2-D shape."
        )
    scores = np.where(np.isnan(scores), np.where(relevance > 0, -np.inf, np.inf), scores)
    if isinstance(ties, str):
        second = relevance if ties == "against" else np.zeros(relevance.shape)
    else:
        second = -np.unique(keys, return_inverse=True)[1].reshape(keys.shape)  # texts have no minus
    return np.lexsort((second, -scores), axis=1)


def ndcg(
    scores: np.ndarray, relevance: np.ndarray, k: int, gain: Gain = "exponential"
) -> np.ndarray:
    """nDCG of the first k documents of every query, from the scores of all; ties count against it.

    Gains are 2^relevance - 1, or the relevance itself; the one at rank r counts
    1 / log2(r + 1). The best order of all documents of the query gives 1.

    Args:
      scores: [queries, documents], higher is better; NaN is an error.
      relevance: [queries, documents], 0 and more; 0 where nobody judged.
      k: ranks that count.
      gain: of a relevance.

    Returns:
      [queries], NaN for queries without a document of relevance above 0.

    Raises:
      UserError: shapes that differ, NaN among the scores, or negative relevance.
    """
    if scores.shape != relevance.shape or scores.ndim != 2:
        raise UserError(
            f"scores {scores.shape} and relevance {relevance.shape} must be one 2-D shape."
        )
    if np.isnan(scores).any() or not (relevance >= 0).all():
        raise UserError("scores must not be NaN, relevance not negative.")
    gains = np.exp2(relevance) - 1 if gain == "exponential" else np.asarray(relevance, float)
    found = _dcg(np.take_along_axis(gains, order(scores, relevance)[:, :k], 1))
    best = _dcg(-np.sort(-gains, axis=1)[:, :k])
    return np.divide(found, best, out=np.full(len(best), np.nan), where=best > 0)


def _check(relevance: np.ndarray, judged: np.ndarray) -> None:
    if relevance.ndim != 2 or judged.ndim != 2 or len(relevance) != len(judged):
        raise UserError(
            f"relevance {relevance.shape} and judged {judged.shape} must be 2-D, a row for each "
            "query."
        )
    for name, values in (("relevance", relevance), ("judged", judged)):
        if not ((values >= 0) & (values < np.inf)).all():
            raise UserError(f"{name} must be finite and not negative; correct the qrels.")
    above = relevance.max(1, initial=0) > judged.max(1, initial=0)
    if above.any():
        raise UserError(
            f"query {int(np.argmax(above))} has a ranked document of higher relevance than all "
            "judged ones; `judged` must hold all qrels of the query."
        )


def _values(metric: Metric, relevance: np.ndarray, judged: np.ndarray, gain: Gain) -> np.ndarray:
    """One metric of all queries, [Q]."""
    cut = relevance[:, : metric.k]  # [Q, K]
    if metric.kind == "nDCG":
        best = -np.sort(-judged, axis=1)[:, : metric.k]
        return _share(_dcg(cut), _dcg(best))
    if metric.kind == "ERR":
        return _err(cut, judged, gain)
    if metric.kind == "RBP":
        discounts = (1 - metric.p) * metric.p ** np.arange(cut.shape[1])
        return _share(cut @ discounts, judged.max(1, initial=0))
    right, rights = cut > 0, (judged > 0).sum(1)
    ranks = np.arange(1, cut.shape[1] + 1)  # [K]
    if metric.kind == "MRR":
        return (right / ranks).max(1, initial=0.0)
    if metric.kind == "MAP":
        precisions = np.cumsum(right, axis=1) / ranks
        return _share((precisions * right).sum(1), rights)
    return _share(right.sum(1), rights) if metric.kind == "R" else right.sum(1) / (metric.k or 1)


def _dcg(relevance: np.ndarray) -> np.ndarray:
    return relevance @ (1 / np.log2(np.arange(relevance.shape[1]) + 2))


def _err(relevance: np.ndarray, judged: np.ndarray, gain: Gain) -> np.ndarray:
    """Expected reciprocal rank, [Q]."""
    top = judged.max(1, initial=0)[:, None]  # [Q, 1]
    # not (2^s - 1) / 2^top, which would be inf / inf from a relevance of 1024 on
    chapelle = np.exp2(relevance - top) - np.exp2(-top)
    stops = relevance / (top + 1) if gain == "linear" else chapelle
    reached = np.cumprod(1 - stops, axis=1)
    reached = np.concatenate([np.ones_like(top), reached[:, :-1]], axis=1)[:, : stops.shape[1]]
    return (stops * reached) @ (1 / np.arange(1, stops.shape[1] + 1))


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """part / whole, 0 where there is nothing to find."""
    part, whole = part.astype(np.float64), whole.astype(np.float64)
    return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
