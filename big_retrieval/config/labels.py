"""Ids, scores and weights of a record's pair."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from big_retrieval.config.ranges import Positive

if TYPE_CHECKING:
    from big_retrieval.config.run import Config


@dataclass(frozen=True)
class PairLabels:
    """Columns with the ids and the score of a record's pair; empty for none."""

    query: str = ""  # column of the query's id; equal ids are the same query
    document: str = ""  # column of the document's id; empty if the record is the document
    # without both columns, records that share a text or an image are positives of each other: not
    # negatives in training, and relevant in evaluations
    duplicates: bool = True
    # If the column has one id for each text of a field: that text field, so that the id of the
    # drawn text counts. Empty for the only text field of the side.
    query_field: str = ""
    document_field: str = ""
    score: str = ""  # column of the relevance; empty if all pairs weigh 1
    # weight of a score (GCL, Eqs. 1 to 3); "table" reads it from `table`
    weight: Literal["constant", "linear", "inverse", "inverse_sqrt", "piecewise", "table"] = (
        "constant"
    )
    s_max: Positive = 100.0  # highest possible score
    table: tuple[tuple[float, float], ...] = ()  # (score, weight); interpolated
    normalise: bool = False  # divide the weights of a batch by their mean

    def check(self, config: "Config") -> Iterator[str]:
        """Yields an error message for every bad key; scores are checked when they are read."""
        yield from self._check_weight()
        texts = [name for name, field in config.fields.items() if field.modality == "text"]
        for side in ("query", "document"):
            key = f"config.labels.{side}_field"
            name = getattr(self, f"{side}_field")
            if name and name not in texts:
                yield (
                    f"{key} {name!r} is no text field; the text fields are: "
                    f"{', '.join(texts) or 'none'}."
                )
            elif name and not getattr(self, side):
                yield f"{key} is {name!r}, but config.labels.{side} names no column; name it."

    def _check_weight(self) -> Iterator[str]:
        key, table = "config.labels.table", self.table
        if self.weight != "constant" and not self.score:
            yield (
                f"config.labels.weight is {self.weight!r}, but config.labels.score is empty; name "
                "the column of the scores, or leave the weight 'constant'."
            )
        if (self.weight == "table") != bool(table):
            remedy = "remove it, or set the weight to 'table'"
            if not table:
                remedy = "give it pairs such as ((1, 0.1), (100, 1))"
            state = "set" if table else "empty"
            yield f"{key} is {state}, but config.labels.weight is {self.weight!r}; {remedy}."
        for (before, _), (after, _) in itertools.pairwise(table):
            if not before < after:
                yield f"{key} has the score {after:g} after {before:g}; order it, each score once."
        if not all(math.isfinite(score) and 0 <= weight < math.inf for score, weight in table):
            yield f"{key}: scores and weights must be finite, weights not < 0."
        # Weights are linear between entries, so scores reach the entry after the last one below.
        below = sum(score < self.s_max for score, _ in table)
        if table and not any(weight for _, weight in table[: below + 1]):
            yield f"{key} is 0 for every score; no pair would count."
