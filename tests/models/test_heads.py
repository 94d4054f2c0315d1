"""Dense heads."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.config import Projection
from tests.helpers import built


def tokens(m: int, width: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, m, width)).astype(np.float32)


def test_projection_shares_kernel_between_tokens() -> None:
    x, head = tokens(4), built(Projection, dim=6)
    variables = nn.unbox(head.init(jax.random.key(0), x))
    assert jax.tree.map(jnp.shape, variables) == {"params": {"kernel": (12, 6)}}
    expected = x @ np.asarray(variables["params"]["kernel"])
    np.testing.assert_allclose(head.apply(variables, x), expected, rtol=1e-5, atol=1e-6)


def test_spheres_are_contiguous_blocks() -> None:
    x = tokens(1)
    variables = built(Projection, dim=6).init(jax.random.key(0), x)
    plain = np.asarray(built(Projection, dim=6).apply(variables, x))
    blocks = np.asarray(built(Projection, dim=6, spheres=3).apply(variables, x))
    assert blocks.shape == (3, 3, 2)
    np.testing.assert_array_equal(blocks[:, 1], plain[:, 0, 2:4])


def test_half_precision_accumulates_wide() -> None:
    x, head = tokens(2, 256), built(Projection, dim=8, dtype=jnp.bfloat16)
    variables = nn.unbox(head.init(jax.random.key(0), x))
    y = head.apply(variables, x)
    assert y.dtype == jnp.float32
    kernel = np.asarray(variables["params"]["kernel"].astype(jnp.bfloat16), np.float64)
    exact = np.asarray(jnp.asarray(x, jnp.bfloat16), np.float64) @ kernel
    np.testing.assert_allclose(y, exact, atol=1e-5)


def test_initial_deviation() -> None:
    variables = nn.unbox(built(Projection, dim=128).init(jax.random.key(0), tokens(1, 64)))
    np.testing.assert_allclose(np.std(variables["params"]["kernel"]), 64**-0.5, rtol=0.03)
