"""Errors of a zero-shot classifier: accuracy by class, confusions, and examples."""

from typing import Any

import numpy as np

from big_retrieval.data.sources import evenly_spaced
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.zeroshot import ZeroShotResult
from big_retrieval.report.example_files.selection import (
    TOP,
    best_first,
    group_content,
    rounded,
    worst,
)
from big_retrieval.report.thumbnails import MOST_CHARACTERS, show_item

WRONG = 6  # examples per group
MOST_CONFUSIONS = 400  # pairs of classes to keep, the most frequent ones


def predictions(scores: np.ndarray, labels: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Returns the predicted class: another class if the label does not have the only top score.

    Args:
      scores: [n, classes].
      labels: class indices, [n].
      ranks: rank of each label from `class_ranks`, [n].

    Returns:
      int64 [n].
    """
    others = np.where(np.isnan(scores), np.inf, np.maximum(scores, np.finfo(scores.dtype).min))
    others[np.arange(len(labels)), labels] = -np.inf
    # A single class has no other class.
    wrong = others.argmax(axis=1) if scores.shape[1] > 1 else labels
    return np.where(ranks <= 1, labels, wrong).astype(np.int64)


def zeroshot_content(result: ZeroShotResult, context: EvaluatorContext) -> dict[str, Any]:
    """Returns the content for JSON; reads pictures."""
    labels, ranks, count = result.labels, result.ranks, len(result.classes)
    predicted = predictions(result.scores, labels, ranks)  # [n]
    failed = np.flatnonzero(ranks > 1)
    keys = labels[failed] * count + predicted[failed]
    pairs, counts = np.unique(keys, return_counts=True)
    frequent = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
    return {
        "images": len(labels),
        "failed": len(failed),
        "classes": [name[:MOST_CHARACTERS] for name in result.classes],
        "images_of_class": np.bincount(labels, minlength=count).tolist(),
        "right_of_class": np.bincount(labels[ranks <= 1], minlength=count).tolist(),
        "confusions": [[*divmod(int(pairs[i]), count), int(counts[i])] for i in frequent.tolist()],
        "all_confusions": len(pairs) <= MOST_CONFUSIONS,
        "groups": _groups(result, context, failed),
    }


def _groups(
    result: ZeroShotResult, context: EvaluatorContext, failed: np.ndarray
) -> list[dict[str, Any]]:
    rows = np.arange(len(failed))
    others = result.scores[failed].copy()
    of_labels = others[rows, result.labels[failed]]
    others[rows, result.labels[failed]] = -np.inf
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        margins = others.max(axis=1, initial=-np.inf) - of_labels  # [failed]
    even = failed[evenly_spaced(len(failed), WRONG)]
    margins = np.where((margins > 0) & ~np.isin(failed, even), margins, np.nan)
    surprising = failed[worst(margins, failed, WRONG)]

    def example(index: int) -> dict[str, Any]:
        return _example(result, context, index)

    rule = f"{len(even)} of {len(failed):,} wrong ones, evenly spaced in the data."
    margin_rule = "Of the others those where a wrong class leads by the largest margin of score."
    return [
        group_content("spread", rule, even, example),
        group_content("surprising", margin_rule, surprising, example),
    ]


def _example(result: ZeroShotResult, context: EvaluatorContext, index: int) -> dict[str, Any]:
    scores, label = result.scores[index], int(result.labels[index])

    def answer(predicted: int) -> dict[str, Any]:
        return {
            "text": result.classes[predicted][:MOST_CHARACTERS],
            "score": rounded(scores[predicted]),
            "right": predicted == label,
        }

    top = best_first(scores, np.arange(len(scores)) == label, TOP).tolist()
    reader, record = context.readers[result.image], int(result.records[index])
    example = {
        "place": index,
        "query": show_item(context.source, reader, record, 0),
        "rank": int(result.ranks[index]),
        "answers": [answer(predicted) for predicted in top],
    }
    return example if label in top else {**example, "right": answer(label)}
