"""Probes: linear classifiers trained on features of the model; the model does not change."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from big_retrieval.config import AtLeast1, Config, Positive, Scenes, Source, register
from big_retrieval.config.evals import Evaluator, once
from big_retrieval.config.ranges import Seed, ShareInside
from big_retrieval.data.build import make_source
from big_retrieval.data.sources import RecordSource, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals import logistic
from big_retrieval.evals.encoding import ChosenRecords
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.ranks import class_ranks
from big_retrieval.evals.ridge import Ridge

log = logging.getLogger(__name__)


class LabelledFeatures(NamedTuple):
    features: np.ndarray  # [n, D]
    labels: np.ndarray  # [n]


@dataclass(frozen=True)
class Probe(Evaluator):
    """Base class of both probes: two sources of labelled images, and the features."""

    data: Source = field(default_factory=lambda: Scenes(split="shapes"))  # test images
    train: Source = field(default_factory=lambda: Scenes(split="shapes", count=1000, seed=1))
    label: str = "shape"  # column of both sources with the class: its index or its name
    image: str = "image"
    # "tower": output of the tower before the head, class tokens concatenated, as in papers;
    # "embedding": the embeddings of retrieval
    features: Literal["tower", "embedding"] = "tower"
    l2: tuple[Positive, ...] = ()  # penalties to select from
    seed: Seed = 0  # seed of the validation part, and of the images of few-shot probes
    every: int | None = 0  # None for `eval_every`; 0 evaluates only at the end

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.image in config.encoded:
            if config.encoded[self.image].modality == "text":
                yield f"{path}.image is {self.image!r}, a text field; probes classify images."
            elif config.encoded[self.image].head.lexical and self.features == "embedding":
                yield f"{path}.features is 'embedding', which is lexical; set it to 'tower'."
        if not self.l2:
            yield f"{path}.l2 is empty; give it penalties to try, such as (0.1, 10.0)."
        yield from self.train.check(f"{path}.train")

    def reads(self) -> Mapping[str, str]:
        return {"image": self.image}

    def runlocal(self) -> "Probe":
        test = Scenes(split="shapes", count=100)
        train = Scenes(split="shapes", count=200, seed=1)
        return replace(self, data=test, train=train, label="shape")

    @once
    def train_images(self, context: EvaluatorContext) -> RecordSource:
        return make_source(self.train)

    @once
    def classes(self, context: EvaluatorContext) -> tuple[Any, ...]:
        """Returns the distinct labels of the training images, sorted."""
        source = self.train_images(context)
        values = {self._value(source, index) for index in range(len(source))}
        location = f"{source.name}: the label column {self.label!r}"
        if len({isinstance(value, str) for value in values}) > 1:
            raise UserError(f"{location} has names and numbers. Use one of the two.")
        if len(values) < 2:
            raise UserError(f"{location} has {len(values)} values; a probe needs at least 2.")
        return tuple(sorted(values))

    def check_data(self, context: EvaluatorContext) -> None:
        for source in (self.train_images(context), context.source):
            context.try_fields(self.image, source=source)
            self.labels(context, source)

    def labels(self, context: EvaluatorContext, source: RecordSource) -> np.ndarray:
        """Returns the class index of every record, int64 [n]."""
        index_of = {value: index for index, value in enumerate(self.classes(context))}
        labels = np.empty(len(source), np.int64)
        for index in range(len(source)):
            value = self._value(source, index)
            if value not in index_of:
                raise UserError(
                    f"{source.place(index)}: label column {self.label!r} is {value!r}, "
                    f"which no image of {context.path}.train has."
                )
            labels[index] = index_of[value]
        return labels

    def _value(self, source: RecordSource, index: int) -> Any:
        """Reads a label, an integer or a name."""
        value: Any = value_of(source, index, self.label)
        if isinstance(value, str):
            return value
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return int(value)
        raise UserError(
            f"{source.place(index)}: label column {self.label!r} is {value!r}; it must "
            "be the name or the number of a class."
        )

    def encode(
        self, context: EvaluatorContext, weights: Any, source: RecordSource
    ) -> LabelledFeatures:
        """Computes the features of all images of a source, in float32."""
        encoder, reader = context.source_encoder(weights), context.readers[self.image]
        encode = encoder.features if self.features == "tower" else encoder.encode
        features, records = encode(source, self.image, reader)  # [n, M, W] or [n, M, N]
        if context.encoder.terms(self.image) is not None:  # one position per patch, no class tokens
            features = features.mean(axis=1)
        features = np.asarray(features, np.float32).reshape(len(features), -1)
        return LabelledFeatures(features, self.labels(context, source)[records])


@register("evaluator")
@dataclass(frozen=True)
class LinearProbe(Probe):
    """Logistic regression on the features of all training images, until it has converged.

    A part of the training images selects the penalty; the classifier is then trained on all.
    """

    type: Literal["linear_probe"] = "linear_probe"
    # penalties of the objective: sum of losses + l2 / 2 |W|^2; scikit-learn's C is 1 / l2
    l2: tuple[Positive, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    validation_share: ShareInside = 0.1  # of the training images
    steps: AtLeast1 = 1000  # maximum number of L-BFGS steps for each penalty

    def metric_names(self, config: Config) -> Sequence[str]:
        return "accuracy", "top5_accuracy", "loss", "l2", "validation_accuracy"

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Trains the classifier and tests it.

        Returns:
          `accuracy`, `top5_accuracy` (with more than five classes) and `loss` of the test images;
          the selected penalty `l2` and its `validation_accuracy`. Ties count against the model.
        """
        encoder, classes = context.encoder, self.classes(context)
        train = self.encode(context, weights, self.train_images(context))
        test = self.encode(context, weights, context.source)
        count = len(train.labels)
        width = train.features.shape[1]
        log.info(f"{count:,} images of {len(classes)} classes, {width:,} numbers each")
        held_out = np.zeros(count, bool)  # at least one row, and not all
        size = min(max(1, round(self.validation_share * count)), count - 1)
        held_out[np.random.default_rng(self.seed).permutation(count)[:size]] = True
        rows = logistic.put(encoder, train.features, train.labels, ~held_out)
        start = logistic.zeros(width, len(classes))
        results = []
        # Each fit starts from the solution of the next larger penalty.
        for l2 in sorted(self.l2, reverse=True):
            start = logistic.fit(encoder, rows, l2, start, self.steps)
            predicted = logistic.predict(encoder, start, rows, count)
            accuracy = float(np.mean(predicted.places[held_out] <= 1))
            results.append((accuracy, -float(np.mean(predicted.losses[held_out])), l2, start))
        accuracy, _, l2, start = max(results, key=lambda result: result[:2])
        rows = logistic.weighted(encoder, rows, np.ones(count))
        best = logistic.fit(encoder, rows, l2, start, self.steps)
        rows = logistic.put(encoder, test.features, test.labels, np.ones(len(test.labels)))
        predicted = logistic.predict(encoder, best, rows, len(test.labels))
        out = {"accuracy": float(np.mean(predicted.places <= 1))}
        if len(classes) > 5:
            out["top5_accuracy"] = float(np.mean(predicted.places <= 5))
        out["loss"] = float(np.mean(predicted.losses))
        return out | {"l2": l2, "validation_accuracy": accuracy}


@register("evaluator")
@dataclass(frozen=True)
class FewShotProbe(Probe):
    """Ridge regression on a few images of each class, in closed form.

    The same number of other training images selects the penalty.
    """

    type: Literal["few_shot"] = "few_shot"
    shots: tuple[AtLeast1, ...] = (1, 5, 10)  # numbers of images per class
    l2: tuple[Positive, ...] = tuple(2.0**power for power in range(-10, 21, 2))

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.shots:
            yield f"{path}.shots is empty; give it numbers of images of a class, such as (1, 5)."

    def metric_names(self, config: Config) -> Sequence[str]:
        return [f"{k}_shot_{name}" for k in self.shots for name in ("accuracy", "l2")]

    def check_data(self, context: EvaluatorContext) -> None:
        super().check_data(context)
        self._draw(context)  # fails if a class has too few images

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Trains a classifier for each number of images and tests it.

        Returns:
          For each number, such as 5: `5_shot_accuracy` of the test images, and the selected penalty
          `5_shot_l2`.
        """
        drawn, validation = self._draw(context)
        records = np.concatenate([*drawn, validation])
        train = self.encode(context, weights, ChosenRecords(self.train_images(context), records))
        test = self.encode(context, weights, context.source)
        held_out = slice(sum(map(len, drawn)), None)  # `validation`
        out = {}
        for shots in self.shots:
            rows = np.flatnonzero(np.concatenate([np.arange(len(x)) < shots for x in drawn]))
            ridge = Ridge(train.features[rows], train.labels[rows], len(drawn))
            results = [
                (_accuracy(ridge.scores(train.features[held_out], l2), train.labels[held_out]), l2)
                for l2 in sorted(self.l2)
            ]
            _, l2 = max(results)  # the largest among equally good penalties
            accuracy = _accuracy(ridge.scores(test.features, l2), test.labels)
            out |= {f"{shots}_shot_accuracy": accuracy, f"{shots}_shot_l2": l2}
        return out

    def _draw(self, context: EvaluatorContext) -> tuple[list[np.ndarray], np.ndarray]:
        """Draws the training records of each class, and the validation records."""
        source, classes, shots = self.train_images(context), self.classes(context), max(self.shots)
        labels = self.labels(context, source)
        order = np.random.default_rng(self.seed).permutation(len(labels))
        by_class = [order[labels[order] == index] for index in range(len(classes))]
        smallest = int(np.argmin([len(records) for records in by_class]))
        if len(by_class[smallest]) <= shots:
            raise UserError(
                f"Class {classes[smallest]!r} of {source.name} has only {len(by_class[smallest])} "
                f"images. {context.path}.shots={shots} needs {shots + 1} (one selects the "
                "penalty)."
            )
        validation = np.concatenate([records[shots : 2 * shots] for records in by_class])
        return [records[:shots] for records in by_class], validation


def _accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """Computes the share of rows [n, C] whose label has the only highest score."""
    return float(np.mean(class_ranks(scores, labels) <= 1))
