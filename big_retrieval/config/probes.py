"""Probes, evaluators that train a classifier on features of the model: a linear one, and few-shot.

What a linear classifier reaches says what the features hold; the model itself is not changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from big_retrieval.config.evals import Evaluator
from big_retrieval.config.ranges import AtLeast1, Positive, Seed, ShareInside
from big_retrieval.config.registry import default, register
from big_retrieval.config.sources import Source

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.evaluators import EvaluatorContext, Runnable


@dataclass(frozen=True)
class Probe(Evaluator):
    """What both probes share: two sources of labelled images, and the features."""

    # to test on
    data: Source = field(default_factory=default("source", "scenes", split="shapes"))
    train: Source = field(
        default_factory=default("source", "scenes", split="shapes", count=1000, seed=1)
    )
    label: str = "shape"  # column of both, with the class as its number or its name
    image: str = "image"
    # "tower": its output, the class tokens one behind the other, without the head, as papers do;
    # "embedding": what retrieval compares
    features: Literal["tower", "embedding"] = "tower"
    l2: tuple[Positive, ...] = ()  # penalties that are tried
    seed: Seed = 0  # draws the validation part, and the examples of few-shot
    every: int | None = 0  # None: `eval_every`; 0: at the end only

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if self.image in config.encoded:
            if config.encoded[self.image].modality == "text":
                yield f"{path}.image is {self.image!r}, a text field; probes classify images."
            elif config.encoded[self.image].head.lexical and self.features == "embedding":
                yield f"{path}.features is 'embedding', which is lexical; set it to 'tower'."
        if not self.l2:
            yield f"{path}.l2 is empty; give it penalties to try, such as (0.1, 10.0)."
        yield from self.train.check(f"{path}.train")

    def reads(self) -> Mapping[str, str]:
        """The images."""
        return {"image": self.image}

    def runlocal(self) -> "Probe":
        """The same probe of generated shapes."""
        test = default("source", "scenes", split="shapes", count=100)()
        train = default("source", "scenes", split="shapes", count=200, seed=1)()
        return replace(self, data=test, train=train, label="shape")


@register("evaluator")
@dataclass(frozen=True)
class LinearProbe(Probe):
    """Logistic regression on the features of all training images, until it has converged.

    The penalty is chosen on a part of the training images; the classifier is then trained on all.
    """

    type: Literal["linear_probe"] = "linear_probe"
    # beside the sum of all losses: sum of losses + l2 / 2 |W|^2; scikit-learn's C is 1 / l2
    l2: tuple[Positive, ...] = (0.1, 1.0, 10.0, 100.0, 1000.0)
    validation_share: ShareInside = 0.1  # of the training images
    steps: AtLeast1 = 1000  # of L-BFGS, at most, for each penalty

    def metric_names(self, config: "Config") -> Sequence[str]:
        """Of the test images, and what the penalty was chosen by."""
        return "accuracy", "top5_accuracy", "loss", "l2", "validation_accuracy"

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.probes import LinearProbeEvaluator

        return LinearProbeEvaluator(self, context)


@register("evaluator")
@dataclass(frozen=True)
class FewShotProbe(Probe):
    """Ridge regression on a few images of each class, in closed form.

    The penalty is chosen on other training images, as many again.
    """

    type: Literal["few_shot"] = "few_shot"
    shots: tuple[AtLeast1, ...] = (1, 5, 10)  # images of a class
    l2: tuple[Positive, ...] = tuple(2.0**power for power in range(-10, 21, 2))

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.shots:
            yield f"{path}.shots is empty; give it numbers of images of a class, such as (1, 5)."

    def metric_names(self, config: "Config") -> Sequence[str]:
        """Accuracy and penalty of each number of images."""
        return [f"{k}_shot_{name}" for k in self.shots for name in ("accuracy", "l2")]

    def build(self, context: "EvaluatorContext") -> "Runnable":
        from big_retrieval.evals.probes import FewShotEvaluator

        return FewShotEvaluator(self, context)
