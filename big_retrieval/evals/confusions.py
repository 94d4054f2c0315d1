"""Errors of a zero-shot classifier: accuracy by class, confusions, and examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.sources import RecordSource, evenly_spaced
from big_retrieval.evals.examples import TOP, best_first, worst
from big_retrieval.evals.thumbnails import MOST_CHARACTERS, show_item

WRONG = 6  # examples per group
MOST_CONFUSIONS = 400  # pairs of classes to keep, the most frequent ones


def predictions(scores: np.ndarray, labels: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Returns the predicted class: another class if the label does not have the only top score.

    Args:
      scores: [n, classes].
      labels: class indices, [n].
      place: rank of each label from `class_ranks`, [n].

    Returns:
      int64 [n].
    """
    others = np.where(np.isnan(scores), np.inf, np.maximum(scores, np.finfo(scores.dtype).min))
    others[np.arange(len(labels)), labels] = -np.inf
    # A single class has no other class.
    wrong = others.argmax(axis=1) if scores.shape[1] > 1 else labels
    return np.where(place <= 1, labels, wrong).astype(np.int64)


@dataclass(frozen=True)
class Confusions:
    """Images, labels and scores of a zero-shot evaluation, for its report.

    Attributes:
      reader: reader of the image field.
      classes: class names.
      records: record of each image, [n].
      labels: class index of each image, [n].
      scores: [n, classes].
      place: rank of the label, from 1, [n].
    """

    source: RecordSource
    reader: FieldReader
    classes: tuple[str, ...]
    records: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    place: np.ndarray

    def describe(self) -> dict[str, Any]:
        """Returns the content for JSON; reads pictures."""
        count = len(self.classes)
        predicted = predictions(self.scores, self.labels, self.place)  # [n]
        failed = np.flatnonzero(self.place > 1)
        keys = self.labels[failed] * count + predicted[failed]
        pairs, numbers = np.unique(keys, return_counts=True)
        frequent = np.argsort(-numbers, kind="stable")[:MOST_CONFUSIONS]
        return {
            "images": len(self.labels),
            "failed": len(failed),
            "classes": [name[:MOST_CHARACTERS] for name in self.classes],
            "images_of_class": np.bincount(self.labels, minlength=count).tolist(),
            "right_of_class": np.bincount(self.labels[self.place <= 1], minlength=count).tolist(),
            "confusions": [
                [*divmod(int(pairs[i]), count), int(numbers[i])] for i in frequent.tolist()
            ],
            "all_confusions": len(pairs) <= MOST_CONFUSIONS,
            "groups": self._groups(failed),
        }

    def _groups(self, failed: np.ndarray) -> list[dict[str, Any]]:
        rows = np.arange(len(failed))
        others = self.scores[failed].copy()
        rights = others[rows, self.labels[failed]]
        others[rows, self.labels[failed]] = -np.inf
        with np.errstate(invalid="ignore"):  # the difference of two infinities
            margins = others.max(axis=1, initial=-np.inf) - rights  # [failed]
        even = failed[evenly_spaced(len(failed), WRONG)]
        margins = np.where((margins > 0) & ~np.isin(failed, even), margins, np.nan)
        surprising = failed[worst(margins, failed, WRONG)]
        return [
            {
                "name": "spread",
                "how": f"{len(even)} of {len(failed):,} wrong ones, evenly spaced in the data.",
                "examples": [self._example(place) for place in even.tolist()],
            },
            {
                "name": "surprising",
                "how": "Of the others those where a wrong class leads by the largest margin of "
                "score.",
                "examples": [self._example(place) for place in surprising.tolist()],
            },
        ]

    def _example(self, place: int) -> dict[str, Any]:
        scores, label = self.scores[place], int(self.labels[place])
        right = np.arange(len(scores)) == label
        top = best_first(scores, right, TOP).tolist()
        found: dict[str, Any] = {
            "place": place,
            "query": show_item(self.source, self.reader, int(self.records[place]), 0),
            "rank": int(self.place[place]),
            "answers": [self._answer(number, scores, label) for number in top],
        }
        if label not in top:
            found["right"] = self._answer(label, scores, label)
        return found

    def _answer(self, number: int, scores: np.ndarray, label: int) -> dict[str, Any]:
        score = float(scores[number])
        return {
            "text": self.classes[number][:MOST_CHARACTERS],
            "score": round(score, 6) if np.isfinite(score) else None,
            "right": number == label,
        }
