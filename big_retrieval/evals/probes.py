"""A linear probe and a few-shot probe: classifiers that are trained on features of the model."""

import logging
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from big_retrieval.config.probes import FewShotProbe, LinearProbe
from big_retrieval.data.batches import try_record
from big_retrieval.data.build import make_source
from big_retrieval.data.pipeline import eval_batches
from big_retrieval.data.sources import RecordSource, place_of, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals import logistic
from big_retrieval.evals.encoding import ChosenRecords
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.examples import Show
from big_retrieval.evals.ranks import class_ranks
from big_retrieval.evals.ridge import Ridge

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Labelled:
    """The features of some images and the classes of the images."""

    features: np.ndarray  # [n, D]
    labels: np.ndarray  # [n]


@dataclass(frozen=True)
class ProbeEvaluator:
    """What both probes share: the two sources, their classes and features.

    Attributes:
      config: the evaluator's configuration; of a subclass more special.
      context: records to test on, readers and encoder.
    """

    config: Any
    context: EvaluatorContext

    @cached_property
    def train(self) -> RecordSource:
        """The training images."""
        return make_source(self.config.train)

    @cached_property
    def classes(self) -> tuple[Any, ...]:
        """The values of the label column in the training images, sorted: a class each."""
        values = [self._value(self.train, index) for index in range(len(self.train))]
        if len({isinstance(value, str) for value in values}) > 1:
            raise UserError(
                f"{self.train.name}: the label column {self.config.label!r} has names and numbers; "
                "write either."
            )
        found = tuple(sorted(set(values)))
        if len(found) < 2:
            raise UserError(
                f"{self.train.name}: the label column {self.config.label!r} has {len(found)} "
                "values; a probe needs two classes or more."
            )
        return found

    @property
    def path(self) -> str:
        """Of this evaluator, for messages."""
        return f"config.evals.{self.context.name}"

    def check(self) -> None:
        """Reads the first image of both sources and all labels.

        Raises:
          UserError: the image field does not fit a record, or a label has no class.
        """
        for source in (self.train, self.test):
            try_record(source, {self.config.image: self.context.readers[self.config.image]})
            self.labels(source)

    @property
    def test(self) -> RecordSource:
        """The images to test on."""
        assert self.context.source is not None  # `data` has a default
        return self.context.source

    def labels(self, source: RecordSource) -> np.ndarray:
        """The class number of every record, int64 [n].

        Raises:
          UserError: a label does not occur in the training images.
        """
        numbers = {value: number for number, value in enumerate(self.classes)}
        found = np.empty(len(source), np.int64)
        for index in range(len(source)):
            value = self._value(source, index)
            if value not in numbers:
                raise UserError(
                    f"{place_of(source, index)}: label column {self.config.label!r} is {value!r}, "
                    f"which no image of {self.path}.train has."
                )
            found[index] = numbers[value]
        return found

    def _value(self, source: RecordSource, index: int) -> Any:
        """A label: a whole number or a name."""
        value: Any = value_of(source, index, self.config.label)
        if isinstance(value, str):
            return value
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return int(value)
        raise UserError(
            f"{place_of(source, index)}: label column {self.config.label!r} is {value!r}; it must "
            "be the name or the number of a class."
        )

    def encode(self, weights: Any, source: RecordSource) -> Labelled:
        """The features of all images of a source, in float32."""
        c, context = self.config, self.context
        batches = eval_batches(
            source,
            {c.image: context.readers[c.image]},
            field=c.image,
            batch_size=context.encoder.batch_size,
            rows=context.encoder.rows,
            reading=context.reading,
        )
        encode = context.encoder.features if c.features == "tower" else context.encoder.embeddings
        found, records = encode(weights, c.image, batches)  # [n, M, W] or [n, M, N]
        if context.encoder.terms(c.image) is not None:  # one position a patch, not a class token
            found = found.mean(axis=1)
        return Labelled(
            np.asarray(found, np.float32).reshape(len(found), -1), self.labels(source)[records]
        )


@dataclass(frozen=True)
class LinearProbeEvaluator(ProbeEvaluator):
    """Logistic regression; see `config.LinearProbe` and `evals/logistic.py`."""

    config: LinearProbe

    def run(self, weights: Any, show: Show | None = None) -> dict[str, float]:
        """Trains the classifier and tests it.

        Args:
          weights: the parameters.
          show: takes no examples.

        Returns:
          `accuracy`, `top5_accuracy` with more than five classes, and `loss` of the test images;
          `l2`, the chosen penalty, and its `validation_accuracy`. Ties count against the model.
        """
        del show
        c, encoder = self.config, self.context.encoder
        train, test = self.encode(weights, self.train), self.encode(weights, self.test)
        count = len(train.labels)
        width = train.features.shape[1]
        log.info(f"{count:,} images of {len(self.classes)} classes, {width:,} numbers each")
        held_out = _share(count, c.validation_share, c.seed)  # bool [n]
        rows = logistic.put(encoder, train.features, train.labels, ~held_out)
        start = logistic.zeros(width, len(self.classes))
        tried = []
        for l2 in sorted(c.l2, reverse=True):  # from simple to complicated, each from the last
            start = logistic.fit(encoder, rows, l2, start, c.steps)
            found = logistic.predict(encoder, start, rows, count)
            accuracy = float(np.mean(found.places[held_out] <= 1))
            tried.append((accuracy, -float(np.mean(found.losses[held_out])), l2, start))
        accuracy, _, l2, start = max(tried, key=lambda each: each[:2])
        rows = logistic.weighted(encoder, rows, np.ones(count))
        best = logistic.fit(encoder, rows, l2, start, c.steps)
        rows = logistic.put(encoder, test.features, test.labels, np.ones(len(test.labels)))
        found = logistic.predict(encoder, best, rows, len(test.labels))
        out = {"accuracy": float(np.mean(found.places <= 1))}
        if len(self.classes) > 5:
            out["top5_accuracy"] = float(np.mean(found.places <= 5))
        out["loss"] = float(np.mean(found.losses))
        return out | {"l2": l2, "validation_accuracy": accuracy}


@dataclass(frozen=True)
class FewShotEvaluator(ProbeEvaluator):
    """Ridge regression on a few images of each class; see `config.FewShotProbe`."""

    config: FewShotProbe

    def check(self) -> None:
        """As of all probes; and sees that images are left to choose the penalty by."""
        super().check()
        self._drawn()

    def run(self, weights: Any, show: Show | None = None) -> dict[str, float]:
        """Trains a classifier for each number of images and tests it.

        Args:
          weights: the parameters.
          show: takes no examples.

        Returns:
          `5_shot_accuracy` of the test images and `5_shot_l2`, the chosen penalty, and so on.
        """
        del show
        drawn, others = self._drawn()
        chosen = np.concatenate([*drawn, others])  # records
        some = self.encode(weights, ChosenRecords(self.train, chosen))
        test = self.encode(weights, self.test)
        left = slice(sum(map(len, drawn)), None)  # of `chosen`
        out = {}
        for shots in self.config.shots:
            rows = np.flatnonzero(np.concatenate([np.arange(len(each)) < shots for each in drawn]))
            ridge = Ridge(some.features[rows], some.labels[rows], len(self.classes))
            tried = [
                (_accuracy(ridge.scores(some.features[left], l2), some.labels[left]), l2)
                for l2 in sorted(self.config.l2)
            ]
            _, l2 = max(tried)  # of equally good penalties the largest
            accuracy = _accuracy(ridge.scores(test.features, l2), test.labels)
            out |= {f"{shots}_shot_accuracy": accuracy, f"{shots}_shot_l2": l2}
        return out

    def _drawn(self) -> tuple[list[np.ndarray], np.ndarray]:
        """The records of each class that may be learned from, in order; and those to choose by.

        Raises:
          UserError: a class has too few records.
        """
        labels, most = self.labels(self.train), max(self.config.shots)
        order = np.random.default_rng(self.config.seed).permutation(len(labels))
        of_class = [order[labels[order] == number] for number in range(len(self.classes))]
        least = int(np.argmin([len(each) for each in of_class]))
        if len(of_class[least]) <= most:
            raise UserError(
                f"{self.train.name} has {len(of_class[least])} images of the class "
                f"{self.classes[least]!r}; {self.path}.shots {most} needs one more than that, to "
                "choose the penalty by."
            )
        others = np.concatenate([each[most : 2 * most] for each in of_class])
        return [each[:most] for each in of_class], others


def _share(count: int, share: float, seed: int) -> np.ndarray:
    """A drawn share of `count` rows, at least one and not all: bool [count]."""
    some = min(max(1, round(share * count)), count - 1)
    found = np.zeros(count, bool)
    found[np.random.default_rng(seed).permutation(count)[:some]] = True
    return found


def _accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """The share of rows [n, C] whose right class has the only highest score."""
    return float(np.mean(class_ranks(scores, labels) <= 1))
