"""Attention, MLP, LayerNorm, dropout and initial values against their formulas."""

import itertools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.models.attention import Attention
from big_retrieval.models.layers import (
    ACTIVATIONS,
    BlockInit,
    Dense,
    FeedForward,
    LayerNorm,
    dropout,
    flat_matmul,
    gelu,
    standardize,
)
from tests.helpers import drawn, traced_for

W, H, F = 12, 3, 20
INITS = BlockInit.vision(W, F)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def randomized(layer: nn.Module, x: Any) -> Any:
    """Random parameters of a layer, also biases and scales, so that a missing one shows."""
    shapes = nn.unbox(jax.eval_shape(layer.init, jax.random.key(0), x)["params"])
    leaves, tree = jax.tree.flatten(shapes)
    values = [jnp.asarray(draw(i, *x.shape), x.dtype) for i, x in enumerate(leaves)]
    return jax.tree.unflatten(tree, values)


def plain_attention(p: Any, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    q, k, v = (x @ p[n]["kernel"] + p[n]["bias"] for n in ("query", "key", "value"))
    out, d = np.zeros_like(x), W // H
    for b, h in np.ndindex(len(x), H):
        part, kept = slice(h * d, (h + 1) * d), mask[b].astype(bool)
        for i in range(x.shape[1]):
            logits = k[b, kept, part] @ q[b, i, part] / math.sqrt(d)
            weights = np.exp(logits) / np.exp(logits).sum()
            out[b, i, part] = weights @ v[b, kept, part]
    return out @ p["out"]["kernel"] + p["out"]["bias"]


def test_attention_equals_formula() -> None:
    with jax.enable_x64(True):
        x, mask = draw(0, 2, 5, W), np.array([[1, 1, 1, 1, 1], [1, 1, 0, 1, 0]])
        layer = Attention(H, INITS, dtype=jnp.float64)
        params = randomized(layer, x)
        masked = layer.apply({"params": params}, x, jnp.asarray(mask))
        open_ = layer.apply({"params": params}, x)
        p = jax.tree.map(np.asarray, params)
    np.testing.assert_allclose(masked, plain_attention(p, x, mask), rtol=1e-10)
    np.testing.assert_allclose(open_, plain_attention(p, x, np.ones((2, 5))), rtol=1e-10)


def test_attention_of_a_fully_masked_row_is_finite() -> None:
    x, mask = jnp.asarray(draw(0, 2, 4, W), jnp.float32), jnp.array([[1, 1, 1, 0], [0, 0, 0, 0]])
    layer = Attention(H, INITS)
    params = drawn(layer, x)
    grad = jax.jit(jax.value_and_grad(lambda p: jnp.sum(layer.apply(p, x, mask) ** 2)))
    value, grads = grad(params)
    assert np.isfinite(value)
    assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grads))


def test_activations_equal_definitions() -> None:
    x = np.linspace(-4, 4, 33)
    exact = [0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x]
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with jax.enable_x64(True):
        values = {name: np.asarray(f(jnp.asarray(x))) for name, f in ACTIVATIONS.items()}
    np.testing.assert_allclose(values["gelu"], exact, atol=1e-12)
    np.testing.assert_allclose(values["gelu_tanh"], 0.5 * x * (1 + np.tanh(inner)), atol=1e-12)
    np.testing.assert_array_equal(values["relu"], np.maximum(x, 0))
    assert np.max(np.abs(values["gelu"] - values["gelu_tanh"])) > 1e-5


def test_gelu_derivatives() -> None:
    x = np.linspace(-5, 5, 41)
    phi = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    expected = [0.5 * (1 + math.erf(v / math.sqrt(2))) + v * d for v, d in zip(x, phi, strict=True)]
    with jax.enable_x64(True):
        wide = jnp.asarray(x)
        reverse = jax.jit(jax.grad(lambda v: jnp.sum(gelu(v))))(wide)
        forward = jax.jvp(gelu, (wide,), (jnp.ones_like(wide),))[1]
        np.testing.assert_allclose(reverse, expected, atol=1e-12)
        np.testing.assert_allclose(forward, expected, atol=1e-12)
    tails = jnp.array([-1e4, 1e4], jnp.float32)
    np.testing.assert_array_equal(jax.grad(lambda v: jnp.sum(gelu(v)))(tails), [0, 1])
    half = jnp.asarray(x, jnp.bfloat16)
    slope = jax.grad(lambda v: jnp.sum(gelu(v)).astype(jnp.float32))(half)
    assert slope.dtype == gelu(half).dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float64(slope), expected, atol=0.03)


def test_gelu_keeps_only_its_input() -> None:
    """Temporary memory of an MLP's backward pass: at most one array more than with relu."""
    x = jnp.zeros((8, 64, 64))
    sizes = {}
    for activation in ("gelu", "relu"):
        mlp = FeedForward(256, BlockInit.vision(64, 256), activation)
        params = jax.eval_shape(mlp.init, jax.random.key(0), x)
        grad = jax.jit(jax.grad(lambda p, x, mlp=mlp: jnp.sum(mlp.apply(p, x) ** 2), (0, 1)))
        sizes[activation] = grad.lower(params, x).compile().memory_analysis().temp_size_in_bytes
    assert sizes["gelu"] <= sizes["relu"] + x.size * 4


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_mlp_equals_formula(activation: str) -> None:
    with jax.enable_x64(True):
        x, layer = draw(0, 2, 3, W), FeedForward(F, INITS, activation, dtype=jnp.float64)
        p = randomized(layer, x)
        inner = ACTIVATIONS[activation](x @ p["fc1"]["kernel"] + p["fc1"]["bias"])
        expected = inner @ p["fc2"]["kernel"] + p["fc2"]["bias"]
        got = layer.apply({"params": p}, x)
    assert p["fc1"]["kernel"].shape == (W, F)
    np.testing.assert_allclose(got, expected, rtol=1e-10)


def test_layer_norm_equals_formula() -> None:
    with jax.enable_x64(True):
        x, layer = 3 + draw(0, 2, 3, W), LayerNorm(dtype=jnp.float64)
        p = randomized(layer, x)
        got = layer.apply({"params": p}, x)
        normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got, normal * p["scale"] + p["bias"], rtol=1e-10)


def test_layer_norm_statistics_are_wide() -> None:
    """Sums in bfloat16 would lose a small spread on a large mean."""
    x = jnp.asarray(64 + draw(0, 1, 512), jnp.bfloat16)
    layer = LayerNorm(dtype=jnp.bfloat16)
    y = layer.apply(layer.init(jax.random.key(0), x), x)
    assert y.dtype == jnp.bfloat16
    exact = np.asarray(x, np.float64)
    exact = (exact - exact.mean()) / exact.std()
    np.testing.assert_allclose(np.asarray(y, np.float64), exact, atol=0.02)


def test_layer_norm_in_one_pass_is_as_exact_as_its_16_bit_input() -> None:
    """A mean of 64 times the spread; rounding x to bfloat16 errs more than the single pass."""
    exact = 64 + draw(0, 4, 768)
    x = jnp.asarray(exact, jnp.bfloat16).astype(jnp.float32)
    two, one = (standardize(x, 0.0, one_pass=one_pass) for one_pass in (False, True))
    rounding = np.max(np.abs(np.std(np.asarray(x), -1) / np.std(exact, -1) - 1))
    single = np.max(np.abs(np.std(np.asarray(one, np.float64), -1) - 1))
    assert 0 < single < rounding / 3
    np.testing.assert_allclose(one, two, rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "platform"), [("bfloat16", "tpu"), ("float32", "tpu"), ("bfloat16", "cpu")]
)
def test_layer_norm_takes_one_pass_for_16_bits_on_accelerators(dtype: str, platform: str) -> None:
    layer, x = LayerNorm(dtype=dtype), jnp.ones((2, 8), dtype)
    params = layer.init(jax.random.key(0), x)
    with traced_for(platform):
        text = str(jax.make_jaxpr(layer.apply)(params, x))
    assert ("max" in text) == (dtype == "bfloat16" and platform == "tpu")


def test_flat_matmul_keeps_rows_on_tpus_only() -> None:
    x, kernel = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    for platform, ndim in (("tpu", 3), ("cpu", 2)):
        with traced_for(platform):
            jaxpr = jax.make_jaxpr(lambda x, k: flat_matmul(x, k, x.dtype, x.dtype))(x, kernel)
        (product,) = (e for e in jaxpr.eqns if e.primitive.name == "dot_general")
        assert product.outvars[0].aval.ndim == ndim


def test_dense_types_and_bias() -> None:
    x = jnp.asarray(draw(0, 2, 3, W), jnp.float32)
    layer = Dense(4, ("embed", "mlp"), INITS.qkv, INITS.fc1_bias, dtype=jnp.bfloat16)
    variables = drawn(layer, x)
    assert {v.dtype for v in jax.tree.leaves(variables)} == {jnp.dtype("float32")}
    assert layer.apply(variables, x).dtype == jnp.bfloat16
    kernel = variables["params"]["kernel"]
    assert flat_matmul(x, kernel, jnp.bfloat16, jnp.float32).dtype == "float32"
    bare = Dense(4, ("embed", "mlp"), INITS.qkv, use_bias=False)
    assert set(bare.init(jax.random.key(0), x)["params"]) == {"kernel"}


def test_initial_values() -> None:
    width, hidden, depth = 256, 512, 6
    x = jnp.zeros((1, 2, width))

    def params(module: nn.Module) -> Any:
        return nn.unbox(jax.jit(module.init)(jax.random.key(0), x)["params"])

    vision, text = BlockInit.vision(width, hidden), BlockInit.text(width, depth)
    attention, mlp = params(Attention(4, vision)), params(FeedForward(hidden, vision))
    bounds = {"query": math.sqrt(6 / (4 * width)), "out": width**-0.5}
    for name, bound in bounds.items():
        assert bound * 0.99 < np.max(np.abs(attention[name]["kernel"])) <= bound
    assert not any(np.any(part["bias"]) for part in attention.values())
    for name, fan_in in {"fc1": width, "fc2": hidden}.items():
        for part in ("kernel", "bias"):
            assert fan_in**-0.5 * 0.9 < np.max(np.abs(mlp[name][part])) <= fan_in**-0.5
    attention, mlp = params(Attention(4, text)), params(FeedForward(hidden, text))
    deviations = [
        (attention["key"]["kernel"], width**-0.5),
        (attention["out"]["kernel"], width**-0.5 * (2 * depth) ** -0.5),
        (mlp["fc1"]["kernel"], (2 * width) ** -0.5),
        (mlp["fc2"]["kernel"], width**-0.5 * (2 * depth) ** -0.5),
    ]
    for kernel, std in deviations:
        np.testing.assert_allclose(np.std(kernel), std, rtol=0.02)
    assert not np.array_equal(attention["query"]["kernel"], attention["key"]["kernel"])


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, rows: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        x = jnp.ones((4, 50, 20))
        return dropout(x, 0.3, rows), dropout(x, 0.3, rows)


def test_dropout_masks_differ_by_row_and_call() -> None:
    def masks(rows: jax.Array | None, seed: int = 0) -> Any:
        return np.asarray(Dropped().apply({}, rows, rngs={"dropout": jax.random.key(seed)}))

    first = masks(None)
    np.testing.assert_allclose(np.unique(first), [0, 1 / 0.7], rtol=1e-6)
    np.testing.assert_array_equal(first, masks(jnp.arange(4)))
    flat = first.reshape(8, -1) != 0
    for i, j in itertools.combinations(range(8), 2):
        assert 0.5 < np.mean(flat[i] == flat[j]) < 0.66  # independent: 0.7^2 + 0.3^2 = 0.58
    np.testing.assert_allclose(np.mean(flat, axis=1), 0.7, atol=0.06)
    moved = masks(jnp.array([2, 3, 0, 7]))
    np.testing.assert_array_equal(moved[:, :3], first[:, [2, 3, 0]])
    assert not np.array_equal(moved[:, 3], first[:, 3])
    assert not np.array_equal(masks(None, seed=1), first)


def test_dropout_after_the_activation() -> None:
    """With one hidden value, the output is the bias or doubled; rows have different bits."""
    x, plain = draw(0, 6, 8, W), FeedForward(1, INITS, "relu")
    params = nn.unbox(plain.init(jax.random.key(0), x))
    bias = params["params"]["fc2"]["bias"]
    full = plain.apply(params, x) - bias
    rngs = {"dropout": jax.random.key(1)}
    outputs = plain.clone(dropout=0.5).apply(params, x, jnp.arange(6), rngs=rngs) - bias
    dropped = np.isclose(outputs, 0, atol=1e-6).all(-1)  # [6, 8]
    doubled = np.isclose(outputs, 2 * full, atol=1e-6).all(-1)
    assert (dropped | doubled).all()
    active = ~np.isclose(full, 0, atol=1e-6).all(-1)
    assert 0.2 < dropped[active].mean() < 0.8
    assert not np.array_equal(dropped[0], dropped[1])


def test_attention_dropout_keeps_the_mean() -> None:
    """Many draws average to the result without dropout."""
    x = jnp.asarray(draw(0, 1, 6, W), jnp.float32)
    layer = Attention(H, INITS, dropout=0.3)
    params = {"params": randomized(layer, x)}
    still = Attention(H, INITS).apply(params, x)
    draws = jax.jit(jax.vmap(lambda key: layer.apply(params, x, rngs={"dropout": key})))(
        jax.random.split(jax.random.key(1), 4000)
    )
    assert float(jnp.std(draws, axis=0).min()) > 0.0
    error = jnp.abs(jnp.mean(draws, axis=0) - still) / (jnp.std(draws, axis=0) / 4000**0.5)
    assert float(jnp.max(error)) < 5.0
