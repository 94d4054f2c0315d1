"""XLA options by the platform of the mesh."""

from typing import Any
from unittest import mock

import jax
import numpy as np

from big_retrieval.train.compiler_options import compiler_options


def test_compiler_options_belong_to_the_platform_of_the_mesh() -> None:
    assert compiler_options(jax.make_mesh((1,), ("data",))) == {}
    mesh: Any = mock.Mock(devices=np.array([mock.Mock(platform="tpu")]))
    assert set(compiler_options(mesh)) == {"xla_jf_spmd_threshold_for_windowed_einsum_mib"}
