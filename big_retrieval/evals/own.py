"""Documents with their query's id: in some data sets queries are documents, too (BEIR's ArguAna).

Each would find itself. BEIR's evaluator leaves such answers out of a ranking; what was judged stays
as it is.
"""

from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.data.formats.columns import match
from big_retrieval.data.judged.qrels import JudgedSource


def own_documents(config: configs.Ranking, source: JudgedSource) -> np.ndarray:
    """The document of each query's own id, where the evaluator leaves such documents out.

    Args:
      config: of the evaluator.
      source: its queries and documents.

    Returns:
      Numbers of documents, int64 [Q], -1: none is left out.
    """
    drops = config.same_id == "drop"
    if config.same_id == "auto":
        drops = config.data.same_ids
    sides: Any = (source.queries, source.documents)
    if not drops or not all(hasattr(side, "ids") for side in sides):
        return np.full(len(source.queries), -1)
    return match(*(side.ids() for side in sides))


def depth_with_own(depth: int, own: np.ndarray) -> int:
    """How many documents to look for, so that `depth` are left without a query's own."""
    return depth + int((own >= 0).any())


def without_own(
    found: np.ndarray, scores: np.ndarray, own: np.ndarray, depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rankings without the queries' own documents.

    Args:
      found: numbers of documents, best first, [q, `depth_with_own` at most]; -1: none.
      scores: theirs, of the same shape.
      own: the document of each query that is left out, [q]; -1: none.
      depth: documents of a query that stay, at most.

    Returns:
      Both, [q, depth at most]; -1 and -inf behind the last document.
    """
    left = (found == own[:, None]) & (own >= 0)[:, None]  # [q, depth]
    order = np.argsort(left, axis=1, kind="stable")[:, :depth]
    found, scores = np.where(left, -1, found), np.where(left, -np.inf, scores)
    return np.take_along_axis(found, order, 1), np.take_along_axis(scores, order, 1)


def left_out(own: np.ndarray) -> str:
    """What is said of the documents that are left out."""
    count = int(np.sum(own >= 0))
    return f"; {count:,} of the queries are documents, too, which they do not find" if count else ""
