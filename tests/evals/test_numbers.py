"""Metrics and metric names of custom evaluators."""

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import Config, Evaluator
from big_retrieval.errors import UserError
from big_retrieval.evals import evaluators
from big_retrieval.evals.evaluators import EvaluatorContext
from tests.evals.bound import bound
from tests.helpers import tiny


@dataclass(frozen=True)
class Custom(Evaluator):
    """An evaluator that returns one value as `gap`, and lists `names`."""

    value: Any = 1.0
    type: str = "own"
    names: tuple[str, ...] | None = None

    def metric_names(self, config: Config) -> tuple[str, ...] | None:
        return self.names

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, Any]:
        return {"gap": self.value}


def run(part: Custom, **keys: Any) -> dict[str, float]:
    return evaluators.run({"own/test": bound(part, None, {}, None, None)}, {"own/test"}, {}, **keys)


@pytest.mark.parametrize("value", [1.5, np.float32(1.5), np.array(1.5), jnp.float32(1.5)])
def test_run_converts_numbers_of_numpy_and_jax(value: Any) -> None:
    metrics = run(Custom(value))
    assert metrics == {"own/test/gap": 1.5}
    assert type(metrics["own/test/gap"]) is float


@pytest.mark.parametrize("value", [np.ones(2), None, "1"])
def test_run_rejects_other_values(value: Any) -> None:
    with pytest.raises(UserError, match="the evaluator own/test returns 'gap' as"):
        run(Custom(value))


@pytest.mark.parametrize(
    ("names", "best", "words"),
    [
        (("gap", "other"), "own/test/gap", ""),
        (None, "own/test/gap", ""),
        (("gpa", "other"), "", "own/test returns gap, which its metric_names does not list"),
        (("gap", "other"), "own/test/other", "best_metric is 'own/test/other', but the evaluator"),
    ],
)
def test_run_compares_metric_names(names: tuple[str, ...] | None, best: str, words: str) -> None:
    config = dataclasses.replace(tiny(), best_metric=best)
    rejects = pytest.raises(UserError, match=re.escape(words)) if words else None
    with rejects or contextlib.nullcontext():
        run(Custom(names=names), config=config)
