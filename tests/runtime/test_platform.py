"""Platform that traced code is compiled for."""

import jax
import pytest

from big_retrieval.runtime.platform import traced_platform
from tests.helpers import traced_for


@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
def test_traced_platform_is_that_of_the_mesh(platform: str) -> None:
    with traced_for(platform):
        assert traced_platform() == platform
    assert traced_platform() == jax.default_backend()
