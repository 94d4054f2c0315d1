"""Evaluators with given data and embeddings."""

import dataclasses
from typing import Any

from big_retrieval.evals.evaluators import BoundEvaluator, EvaluatorContext


class Bound(BoundEvaluator):
    """As the training loop calls it, without checks of the names of metrics."""

    def check(self) -> None:
        self.part.check_data(self.context)

    def run(self, weights: Any, **outputs: Any) -> dict[str, float]:
        return self.part.run(dataclasses.replace(self.context, **outputs), weights)


def bound(part: Any, *args: Any, name: str = "<name>", **keys: Any) -> Bound:
    """An evaluator with its source, readers, topology and encoder."""
    return Bound(part, EvaluatorContext(name, *args, **keys))
