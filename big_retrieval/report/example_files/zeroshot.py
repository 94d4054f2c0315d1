"""Examples of a zero-shot classifier: accuracy by class, confusions, and errors."""

from typing import Any

import numpy as np

from big_retrieval.data.sources import evenly_spaced
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.zeroshot import BEST, ZeroShotResult
from big_retrieval.report.example_files.selection import groups_content, rounded
from big_retrieval.report.thumbnails import MOST_CHARACTERS, show_item

WRONG = 6  # examples per group
MOST_CONFUSIONS = 400  # maximum number of class pairs to keep, most frequent first


def predictions(result: ZeroShotResult) -> np.ndarray:
    """Returns the predicted class of each image, int64 [n]."""
    labels, others = result.labels, result.others
    best_other = others[:, 0] if others.shape[1] else labels  # a single class has no other class
    return np.where(result.ranks <= 1, labels, best_other).astype(np.int64)


def zeroshot_content(result: ZeroShotResult, context: EvaluatorContext) -> dict[str, Any]:
    """Returns accuracy by class, confusions and examples for JSON; reads pictures."""
    labels, ranks, count = result.labels, result.ranks, len(result.classes)
    predicted = predictions(result)  # [n]
    failed = np.flatnonzero(ranks > 1)
    keys = labels[failed] * count + predicted[failed]
    pairs, counts = np.unique(keys, return_counts=True)
    even = failed[evenly_spaced(len(failed), WRONG)]
    rule = f"{len(even)} of {len(failed):,} wrong ones, evenly spaced in the data."
    groups = groups_content([("spread", rule, even)], lambda i: _example(result, context, i))
    frequent = np.argsort(-counts, kind="stable")[:MOST_CONFUSIONS]
    return {
        "images": len(labels),
        "failed": len(failed),
        "classes": [name[:MOST_CHARACTERS] for name in result.classes],
        "images_of_class": np.bincount(labels, minlength=count).tolist(),
        "right_of_class": np.bincount(labels[ranks <= 1], minlength=count).tolist(),
        "confusions": [[*divmod(int(pairs[i]), count), int(counts[i])] for i in frequent.tolist()],
        "groups": groups,
    }


def _example(result: ZeroShotResult, context: EvaluatorContext, index: int) -> dict[str, Any]:
    label, other_scores = int(result.labels[index]), result.other_scores[index]
    # As in ranks, other classes come first among equal scores, and NaN counts against the label.
    position = int(np.sum(~(other_scores < result.scores[index])))
    classes = np.insert(result.others[index], position, label)[:BEST]
    scores = np.insert(other_scores, position, result.scores[index])[:BEST]

    def answer(predicted: int, score: float) -> dict[str, Any]:
        return {
            "text": result.classes[predicted][:MOST_CHARACTERS],
            "score": rounded(score),
            "right": predicted == label,
        }

    reader, record = context.readers[result.image], int(result.records[index])
    example = {
        "place": index,
        "query": show_item(context.source, reader, record, 0),
        "rank": int(result.ranks[index]),
        "answers": list(map(answer, classes.tolist(), scores.tolist())),
    }
    if position >= BEST:
        example["right"] = answer(label, result.scores[index])
    return example
