"""The lexical head: its definition, parameters, tying, padding, meshes."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.models.lexical import elu1p, log1p_log1p_relu, log1p_relu
from tests.arrays import assert_trees_close, device_mesh
from tests.helpers import drawn, lexical_head

ACTIVATIONS = {
    "elu1p": lambda x: np.where(x >= 0, x + 1, np.exp(np.minimum(x, 0))),
    "log1p_relu": lambda x: np.log1p(np.maximum(x, 0)),
    "log1p_log1p_relu": lambda x: np.log1p(np.log1p(np.maximum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
}


def draw(length: int = 7, width: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions [4, L, D], mask [4, L], word table [20, D]."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(4, length, width)).astype(np.float32)
    mask = np.arange(length) < np.array([[1], [3], [5], [length]])
    return hidden, mask, rng.normal(size=(20, width)).astype(np.float32)


def by_definition(
    params: Any, hidden: Any, mask: Any, kernel: Any, activation: str, pooling: str = "max",
    epsilon: float = 1e-5,
) -> np.ndarray:  # fmt: skip
    """[B, V] in float64; the transform is a ReLU."""
    x = np.asarray(hidden, np.float64)
    if "dense" in params:
        dense = {name: np.asarray(value, np.float64) for name, value in params["dense"].items()}
        x = np.maximum(x @ dense["kernel"] + dense["bias"], 0)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    x = x * np.asarray(params["ln"]["scale"]) + np.asarray(params["ln"]["bias"])
    logits = np.einsum("bld,vd->blv", x, np.asarray(kernel, np.float64))
    if "bias" in params:
        logits = logits + np.asarray(params["bias"])
    values = ACTIVATIONS[activation](logits) * mask[:, :, None]  # none is negative
    return values.max(1) if pooling == "max" else values.sum(1) / mask.sum(1)[:, None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("pooling", "bias"), [("max", False), ("mean", True)])
def test_untied_head_equals_definition(activation: str, pooling: Any, bias: bool) -> None:
    hidden, mask, _ = draw()
    head = lexical_head(range(9), activation=activation, pooling=pooling, use_bias=bias)
    params = drawn(head, hidden, mask)["params"]
    out = jax.jit(head.apply)({"params": params}, hidden, mask)
    expected = by_definition(params, hidden, mask, params["kernel"], activation, pooling)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_transform_and_epsilon() -> None:
    hidden, mask, table = draw()
    how: dict[str, Any] = {"tied": True, "epsilon": 0.3, "use_bias": True}
    head = lexical_head(range(20), **how, transform="relu")
    params = drawn(head, hidden, mask, table)["params"]
    assert jax.tree.map(jnp.shape, params) == {
        "dense": {"kernel": (6, 6), "bias": (6,)},
        "ln": {"scale": (6,), "bias": (6,)},
        "bias": (20,),
    }
    out = jax.jit(head.apply)({"params": params}, hidden, mask, table)
    expected = by_definition(params, hidden, mask, table, "elu1p", epsilon=0.3)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)
    heads = [lexical_head(range(20), **how, transform=name) for name in ("gelu", "gelu_tanh")]
    exact, tanh = (head.apply({"params": params}, hidden, mask, table) for head in heads)
    assert np.any(np.abs(exact - out) > 1e-2)
    assert np.any(exact != tanh)
    np.testing.assert_allclose(exact, tanh, atol=5e-3)


@pytest.mark.parametrize("terms", [range(4, 20), (3, 2, 19)])
def test_tied_head_reads_rows_of_the_word_table(terms: Any) -> None:
    hidden, mask, table = draw()
    head = lexical_head(terms, tied=True)
    params = drawn(head, hidden, mask, table)["params"]
    assert set(params) == {"ln"}
    out = jax.jit(head.apply)({"params": params}, hidden, mask, table)
    expected = by_definition(params, hidden, mask, table[np.asarray(terms)], "elu1p")
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_pool_padding() -> None:
    hidden, mask, table = draw()
    heads = [lexical_head(range(20), tied=True, pool_padding=pad) for pad in (False, True)]
    variables = drawn(heads[0], hidden, mask, table)
    masked, padded = (jax.jit(head.apply) for head in heads)
    noisy = np.where(mask[:, :, None], hidden, 100 * hidden[:, ::-1])
    clean, full = (run(variables, hidden, mask, table) for run in (masked, padded))
    np.testing.assert_array_equal(masked(variables, noisy, mask, table), clean)
    np.testing.assert_array_equal(full, masked(variables, hidden, None, table))
    assert np.any(full != clean)


@pytest.mark.parametrize(("activation", "pooling"), [("elu1p", "max"), ("log1p_relu", "mean")])
def test_row_of_padding_gives_zeros_and_no_gradient(activation: str, pooling: Any) -> None:
    hidden, mask, _ = draw()
    mask = mask & (np.arange(4) != 2)[:, None]
    head = lexical_head(range(9), activation=activation, pooling=pooling, use_bias=True)
    params = drawn(head, hidden, mask)["params"]

    def total(params: Any, hidden: Any, mask: Any) -> jax.Array:
        return jnp.sum(head.apply({"params": params}, hidden, mask))

    np.testing.assert_array_equal(jax.jit(head.apply)({"params": params}, hidden, mask)[2], 0)
    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))
    of_params, of_hidden = gradients(params, hidden, mask)
    np.testing.assert_array_equal(of_hidden[2], 0)
    others = [0, 1, 3]
    expected, _ = gradients(params, hidden[others], mask[others])
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(close, of_params, expected)


def test_activations_and_slopes() -> None:
    x = np.array([-1e30, -100.0, -1.0, 0.0, 2.0], np.float32)
    twice = 1 / (3 * (1 + np.log(3)))
    for function, slopes in (
        (elu1p, [0, 0, np.exp(-1), 1, 1]),
        (log1p_relu, [0, 0, 0, 0, 1 / 3]),
        (log1p_log1p_relu, [0, 0, 0, 0, twice]),
    ):
        close = partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-30)
        close(jax.jit(function)(x), ACTIVATIONS[function.__name__](x.astype(np.float64)))
        close(jax.jit(jax.vmap(jax.grad(function)))(x), slopes)
    assert elu1p(x)[0] == log1p_relu(x)[0] == 0.0


def test_initial_values() -> None:
    hidden = np.zeros((2, 3, 64), np.float32)
    head = lexical_head(range(256), use_bias=True, bias_init=-2.0)
    params = nn.unbox(jax.jit(head.init)(jax.random.key(0), hidden))["params"]
    assert jax.tree.map(jnp.shape, params) == {
        "ln": {"scale": (64,), "bias": (64,)}, "kernel": (256, 64), "bias": (256,),
    }  # fmt: skip
    np.testing.assert_allclose(np.std(params["kernel"]), 64**-0.5, rtol=0.03)
    np.testing.assert_array_equal(params["bias"], -2)
    bare = drawn(lexical_head(range(256), layer_norm=False), hidden)
    assert set(bare["params"]) == {"kernel"}


def test_sows_the_positions_of_the_maxima() -> None:
    hidden, mask, _ = draw()
    head = lexical_head(range(9), layer_norm=False)
    params = drawn(head, hidden, mask)["params"]
    run = jax.jit(partial(head.apply, mutable="intermediates"))
    _, state = run({"params": params}, hidden, mask)
    logits = np.einsum("bld,vd->blv", hidden, params["kernel"])
    expected = np.argmax(np.where(mask[:, :, None], logits, -np.inf), axis=1)
    np.testing.assert_array_equal(state["intermediates"]["positions"][0], expected)


@pytest.mark.parametrize(
    ("shape", "tied"),
    [((2, 2, 2), False), ((2, 2, 2), True), ((8, 1, 1), False), ((1, 1, 8), True)],
)
def test_mesh_equals_one_device(shape: Any, tied: bool) -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(8, 5, 16)).astype(np.float32)
    mask = np.arange(5) < rng.integers(1, 6, (8, 1))
    table = rng.normal(size=(32, 16)).astype(np.float32) if tied else None
    terms = range(8, 32) if tied else range(24)
    head = lexical_head(terms, tied=tied, use_bias=True, block=5)
    g = rng.normal(size=(8, 24)).astype(np.float32)

    def step(params: Any, table: Any, hidden: Any, mask: Any, g: Any) -> Any:
        def total(params: Any, table: Any, hidden: Any) -> jax.Array:
            return jnp.sum(g * head.apply({"params": params}, hidden, mask, table))

        argnums = (0, 1, 2) if tied else (0, 2)
        return jax.value_and_grad(total, argnums=argnums)(params, table, hidden)

    boxed = jax.eval_shape(lambda: head.init(jax.random.key(0), hidden[:1], mask[:1], table))
    params = drawn(head, hidden, mask, table)["params"]
    expected = jax.device_get(jax.jit(step)(params, table, hidden, mask, g))
    mesh = device_mesh(*shape)
    places = parallel.state_shardings(boxed, mesh)["params"]
    if not tied:
        assert places["kernel"].spec == P("tensor", "fsdp")
    with parallel.use(mesh):
        sharded = jax.device_put((hidden, mask, g), parallel.batch_sharding(mesh))
        got = jax.device_get(jax.jit(step)(jax.device_put(params, places), table, *sharded))
    assert_trees_close(got, expected)
