"""What is known of a record's pair: ids, scores and weights; see `big_retrieval.config`."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PairLabels:
    """Which columns of a record say what its pair is and how much it counts; empty: none does."""

    query: str = ""  # column of the query's id: equal ones are the same query
    document: str = ""  # column of the document's id; empty: the record is the document
    # where neither is named: records that share a text or an image are right answers of each other,
    # no negatives in training and right in evaluations
    duplicates: bool = True
    # Where the column has one id for each text of a field: that text field, so that the id of the
    # text that was drawn counts. Empty: the only text field of the side.
    query_field: str = ""
    document_field: str = ""
    score: str = ""  # column of how well the two fit; empty: all pairs weigh 1
    # from score to weight (GCL, Eqs. 1 to 3); "table": what `table` says
    weight: Literal["constant", "linear", "inverse", "inverse_sqrt", "piecewise", "table"] = (
        "constant"
    )
    s_max: float = 100.0  # the best score that there can be
    table: tuple[tuple[float, float], ...] = ()  # (score, weight); linear in between
    normalise: bool = False  # divide the weights of a batch by their mean
