"""What an evaluator of a user's own may return."""

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
class Gives(Evaluator):
    """An evaluator that returns one value, with the names that it is said to give."""

    value: Any = 1.0
    type: str = "own"
    names: tuple[str, ...] | None = None

    def metric_names(self, config: Config) -> tuple[str, ...] | None:
        return self.names

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, Any]:
        return {"gap": self.value}


def returned(value: Any) -> dict[str, float]:
    made = {"own/test": bound(Gives(value), None, {}, None, None)}
    return evaluators.run(made, {"own/test"}, {})


def test_numbers_of_numpy_and_jax_are_numbers() -> None:
    for value in (1.5, np.float32(1.5), np.array(1.5), jnp.float32(1.5)):
        found = returned(value)
        assert found == {"own/test/gap": 1.5}
        assert type(found["own/test/gap"]) is float
    for value in (np.ones(2), None, "1"):
        with pytest.raises(UserError, match=r"the evaluator own/test gives 'gap' as .*one number"):
            returned(value)


@pytest.mark.parametrize(
    ("names", "best", "words"),
    [
        (("gap", "other"), "own/test/gap", ""),
        (None, "own/test/gap", ""),
        (("gpa", "other"), "", "own/test returns gap, which its metric_names does not list"),
        (("gap", "other"), "own/test/other", "best_metric is 'own/test/other', but the evaluator"),
    ],
)
def test_names_are_those_that_the_part_foretells(
    names: tuple[str, ...] | None, best: str, words: str
) -> None:
    made = {"own/test": bound(Gives(names=names), None, {}, None, None)}
    config = dataclasses.replace(tiny(), best_metric=best)
    refused = pytest.raises(UserError, match=re.escape(words)) if words else None
    with refused or contextlib.nullcontext():
        evaluators.run(made, {"own/test"}, {}, config=config)
