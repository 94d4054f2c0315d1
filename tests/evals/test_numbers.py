"""What an evaluator of a user's own may return."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.errors import UserError
from big_retrieval.evals import evaluators


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
