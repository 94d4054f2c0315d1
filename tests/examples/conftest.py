"""Runs of one module whose step is the same are traced once."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_model(one_model: None) -> None:
    """See `one_model`; an edited file of a part is refused before a model is built of it."""
