"""What is wrong with `config.labels`; one of the parts of `checks`."""

from collections.abc import Iterator

import numpy as np

from big_retrieval.config import Config
from big_retrieval.config.labels import PairLabels
from big_retrieval.errors import UserError

TRIED = 10_000  # scores at most


def labels(c: Config) -> Iterator[str]:
    """What is wrong with `config.labels`, a sentence each."""
    yield from check_weight(c.labels)
    for side in ("query", "document"):
        key, name = f"config.labels.{side}_field", getattr(c.labels, f"{side}_field")
        texts = [name for name, field in c.fields.items() if field.modality == "text"]
        if name and name not in texts:
            known = ", ".join(texts) or "none"
            yield f"{key} {name!r} is no text field; the text fields are: {known}."
        elif name and not getattr(c.labels, side):
            yield f"{key} is {name!r}, but config.labels.{side} names no column; name it."


def check_weight(labels: PairLabels) -> Iterator[str]:
    """What is wrong with the weight of a pair, a sentence each.

    Its function is tried on the scores 1, 2, ..., s_max, so that one without a finite weight shows
    before the run and not in the batch that meets it.
    """
    if labels.weight != "constant" and not labels.score:
        yield (
            f"config.labels.weight is {labels.weight!r}, but config.labels.score is empty; name "
            "the column of the scores, or leave the weight 'constant'."
        )
    if labels.table and labels.weight != "table":
        yield (
            f"config.labels.table is set, but config.labels.weight is {labels.weight!r}; set the "
            "weight to 'table', or leave the table empty."
        )
    from big_retrieval.data.judged.weights import make_weight

    try:
        weights = make_weight(labels)(scores_to_try(labels.s_max))
    except UserError as problem:
        yield str(problem)
        return
    if not weights.any():
        yield f"config.labels.weight {labels.weight!r} is 0 for every score; no pair would count."


def scores_to_try(s_max: float) -> np.ndarray:
    """1, 2, ..., s_max, or 100 scores in equal steps if there are too many; always with s_max."""
    if not 1 <= s_max <= TRIED:
        return np.linspace(min(1.0, s_max), s_max, 100)
    return np.append(np.arange(1.0, s_max), s_max)
