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
from tests.helpers import tiny


class Gives:
    """An evaluator that returns one value."""

    def __init__(self, value: Any):
        self._value = value

    def check(self) -> None:
        """Nothing."""

    def run(self, weights: Any, show: Any = None) -> dict[str, Any]:
        """The value."""
        return {"gap": self._value}


@pytest.mark.parametrize("value", [1.5, np.float32(1.5), np.array(1.5), jnp.float32(1.5)])
def test_numbers_of_numpy_and_jax_are_numbers(value: Any) -> None:
    found = evaluators.run({"own/test": Gives(value)}, {"own/test"}, {})
    assert found == {"own/test/gap": 1.5}
    assert type(found["own/test/gap"]) is float


@pytest.mark.parametrize("value", [np.ones(2), None, "1"])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(UserError, match=r"the evaluator own/test gives 'gap' as .*one number"):
        evaluators.run({"own/test": Gives(value)}, {"own/test"}, {})


@dataclass(frozen=True)
class Foretold(Evaluator):
    """The part of `Gives`, with the names that it is said to give."""

    type: str = "own"
    names: tuple[str, ...] | None = None

    def metric_names(self, config: Config) -> tuple[str, ...] | None:
        """These."""
        return self.names


@pytest.mark.parametrize(
    ("names", "best", "words"),
    [
        (("gap", "other"), "own/test/gap", ""),
        (None, "own/test/gap", ""),
        (
            ("gpa", "other"),
            "",
            "the evaluator own/test returns gap, which its metric_names does not list (it has: "
            "gpa, other)",
        ),
        (
            ("gap", "other"),
            "own/test/other",
            "config.best_metric is 'own/test/other', but the evaluator own/test returns no "
            "'other'; it returns: gap.",
        ),
    ],
)
def test_names_are_those_that_the_part_foretells(
    names: tuple[str, ...] | None, best: str, words: str
) -> None:
    config = dataclasses.replace(tiny(), evals={"test": Foretold(names=names)}, best_metric=best)
    refused = pytest.raises(UserError, match=re.escape(words)) if words else None
    with refused or contextlib.nullcontext():
        evaluators.run({"own/test": Gives(1.0)}, {"own/test"}, {}, config=config)
