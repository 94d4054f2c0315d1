"""The vision tower."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.config import ViT
from big_retrieval.errors import UserError
from big_retrieval.models.vit import PatchEmbedding, convolve_patches, multiply_patches, patchify
from tests.helpers import built, drawn, traced_for

SMALL: dict[str, Any] = {"patch": 4, "width": 16, "depth": 2, "heads": 2, "mlp": 24}


def images(rows: int = 2, size: int = 8) -> jax.Array:
    return jax.random.normal(jax.random.key(0), (rows, size, size, 3))


def test_patchify_orders_rows_columns_channels() -> None:
    x = np.arange(2 * 4 * 6 * 3).reshape(2, 4, 6, 3)
    patches = patchify(jnp.asarray(x), 2)
    assert patches.shape == (2, 6, 12)
    for k, (i, j) in enumerate(np.ndindex(2, 3)):
        expected = x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].reshape(2, 12)
        np.testing.assert_array_equal(patches[:, k], expected)


def test_convolve_patches_equals_multiply_patches() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 8, 12, 3))
    kernel = jax.random.normal(jax.random.key(1), (4 * 4 * 3, 5))
    (y, pull), (expected, expected_pull) = (
        jax.vjp(partial(embed, patch=4), x, kernel)
        for embed in (convolve_patches, multiply_patches)
    )
    assert y.shape == (2, 6, 5)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-4), pull(y), expected_pull(y))


@pytest.mark.parametrize(("platform", "convolution"), [("tpu", True), ("cpu", False)])
def test_patch_embedding_is_a_convolution_on_tpus(platform: str, convolution: bool) -> None:
    layer = PatchEmbedding(width=5, patch=4, use_bias=True)
    variables = drawn(layer, images())
    assert jax.tree.map(jnp.shape, variables["params"]) == {"kernel": (48, 5), "bias": (5,)}
    with traced_for(platform):
        lowered = jax.jit(layer.apply).trace(variables, images()).lower()
    assert ("stablehlo.convolution" in lowered.as_text()) == convolution


def test_vit_rejects_another_image_size() -> None:
    tower = built(ViT, **SMALL)
    variables = drawn(tower, images())
    with pytest.raises(UserError, match=r"have 10 positions.*built for 5"):
        tower.apply(variables, images(size=12))


def test_class_tokens_differ_and_see_the_whole_image() -> None:
    tower = built(ViT, **SMALL, class_tokens=3)
    x = images()
    variables = drawn(tower, x)
    assert variables["params"]["position_embedding"].shape == (3 + 4, 16)
    y = np.asarray(jax.jit(tower.apply)(variables, x))
    assert y.shape == (2, 3, 16)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert np.max(np.abs(y[:, i] - y[:, j])) > 0.1
    slope = jax.jit(jax.grad(lambda x: jnp.sum(tower.apply(variables, x)[:, 2] ** 3)))(x)
    assert np.all(np.max(np.abs(slope), axis=(1, 2, 3)) > 0)
    assert np.all(np.max(np.abs(patchify(slope, 4)), axis=-1) > 0)


def test_half_precision_keeps_parameters_wide() -> None:
    x = images()
    tower, half = built(ViT, **SMALL), built(ViT, **SMALL, dtype=jnp.bfloat16)
    variables = nn.unbox(jax.jit(tower.init)(jax.random.key(0), x))
    narrow = nn.unbox(jax.jit(half.init)(jax.random.key(0), x))
    jax.tree.map(np.testing.assert_array_equal, narrow, variables)  # parameters stay float32
    y = jax.jit(half.apply)(variables, x)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(y), jax.jit(tower.apply)(variables, x), atol=0.1)


def test_dropout_depends_on_the_row_index() -> None:
    tower, x = built(ViT, **{**SMALL, "depth": 1}, dropout=0.3), images(4)
    variables = drawn(tower, x)
    without = jax.jit(built(ViT, **{**SMALL, "depth": 1}).apply)(variables, x)
    np.testing.assert_array_equal(jax.jit(tower.apply)(variables, x), without)
    training = jax.jit(partial(tower.apply, train=True, rngs={"dropout": jax.random.key(1)}))
    whole = training(variables, x)
    assert not np.allclose(whole, without)
    part = training(variables, x[2:], rows=jnp.arange(2, 4))
    np.testing.assert_allclose(part, whole[2:], atol=1e-6)
    moved = training(variables, x[2:], rows=jnp.arange(2))
    assert not np.allclose(moved, whole[2:], atol=1e-2)


def test_initial_deviations() -> None:
    tower = built(ViT, **{**SMALL, "width": 64}, class_tokens=16)
    params = nn.unbox(jax.jit(tower.init)(jax.random.key(0), images(size=32)))["params"]
    assert set(params["patch_embedding"]) == {"kernel"}
    for name in ("class_embedding", "position_embedding"):
        np.testing.assert_allclose(np.std(params[name]), 64**-0.5, rtol=0.1)
    assert np.max(np.abs(params["patch_embedding"]["kernel"])) <= 48**-0.5
