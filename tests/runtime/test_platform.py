"""Platform that traced code is compiled for."""

import jax
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from big_retrieval.runtime.platform import traced_platform


@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
def test_traced_platform_is_that_of_the_mesh(platform: str) -> None:
    device = AbstractDevice("a device", None, platform)
    mesh = AbstractMesh((1,), ("data",), (AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        assert traced_platform() == platform
    assert traced_platform() == jax.default_backend()
