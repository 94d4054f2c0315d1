"""What a look at judged pairs tells: how many, of what, and how the scores lie."""

import numpy as np

from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.mixture import MixedSource
from big_retrieval.data.sources import RecordSource

BINS = 10  # of the scores; fewer different ones are counted one by one


def describe_qrels(source: RecordSource) -> list[str]:
    """Lines about the qrels of a source, or of those of a mixture's parts that have some."""
    if isinstance(source, MixedSource):
        return [line for part in source.parts.values() for line in describe_qrels(part)]
    if not isinstance(source, GradedPairs):
        return []
    found, documents = source.qrels, len(source.documents)
    counts, judged = found.counts(), len(np.unique(found.document))
    score = found.score
    return [
        f"judged      {len(found):,} pairs of {len(source.queries):,} queries and {documents:,} "
        f"documents ({judged:,} of them judged); {counts.mean():.1f} a query, {counts.min():,} to "
        f"{counts.max():,}",
        f"  scores    {score.min():g} to {score.max():g}, median {np.median(score):g}; "
        + histogram(score),
        *(f"  left out  {note}" for note in source.notes),
    ]


def histogram(score: np.ndarray) -> str:
    """How many scores [n] there are of each value, or in each tenth between the extremes."""
    values, counts = np.unique(score, return_counts=True)
    if len(values) <= BINS:
        return ", ".join(f"{v:g}: {n:,}" for v, n in zip(values, counts, strict=True))
    counts, edges = np.histogram(score, BINS)
    return ", ".join(f"to {e:g}: {n:,}" for e, n in zip(edges[1:], counts, strict=True))
