"""An evaluator's metrics of what an index found; documents that it did not find are not ranked."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from big_retrieval.config import Ranking
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.graded_order import order, relevance_of
from big_retrieval.evals.own import without_own


class Judge(Protocol):
    """Turns answers into an evaluator's metrics; holds no representations."""

    def metrics(self, found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        """Of rows of the index [Q, depth], -1 where there is none, and their scores."""
        ...


@dataclass(frozen=True)
class GradedScorer:
    """The metrics of a `RankingEvaluator`.

    Attributes:
      config: the evaluator's.
      findable: the document of each row of the index, [D].
      sayable: bool [Q]; other queries find nothing.
      judged: judged documents of each query, [Q, J], filled up with -1.
      relevance: theirs, [Q, J].
      own: the document of each query that is left out, [Q]; -1: none.
    """

    config: Ranking
    findable: np.ndarray
    sayable: np.ndarray
    judged: np.ndarray
    relevance: np.ndarray
    own: np.ndarray

    def metrics(self, found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        """Means over the queries; among equal scores, lower relevance goes first."""
        present = (found >= 0) & self.sayable[:, None]
        documents = np.where(present, self.findable[found], -1)
        documents, scores = without_own(documents, scores, self.own, self.config.depth)
        relevance = _against(relevance_of(documents, self.judged, self.relevance), scores)
        c = self.config
        return mean_metrics(graded_metrics(relevance, self.relevance, c.metrics, c.err_gain))


@dataclass(frozen=True)
class Paired:
    """The recalls of a `RetrievalEvaluator`, of its query field's embeddings.

    Attributes:
      recall_at: the k of R@k.
      queries: the owner of each query, [Q].
      documents: the owner of each row of the index, [D]; right where it is the query's.
    """

    recall_at: tuple[int, ...]
    queries: np.ndarray
    documents: np.ndarray

    def metrics(self, found: np.ndarray, scores: np.ndarray) -> dict[str, float]:
        """Shares of the queries; of documents found with equal scores, wrong ones go first."""
        right = (found >= 0) & (self.documents[found] == self.queries[:, None])
        right = _against(right.astype(np.float64), scores) > 0
        return {f"R@{k}": float(right[:, :k].any(axis=1).mean()) for k in self.recall_at}


def _against(relevance: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Relevance in rank order [Q, depth]; among equal scores, lower relevance goes first."""
    return np.take_along_axis(relevance, order(scores, relevance), axis=1)
