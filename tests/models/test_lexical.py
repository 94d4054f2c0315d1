"""The lexical head: its definition, its parameters, tying, padding, meshes."""

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from big_retrieval import parallel
from big_retrieval.errors import UserError
from big_retrieval.models.lexical import elu1p, log1p_log1p_relu, log1p_relu
from big_retrieval.models.pooling import PoolingOptions
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
    params: Any,
    hidden: Any,
    mask: Any,
    kernel: Any,
    activation: str,
    pooling: str = "max",
    epsilon: float = 1e-5,
) -> np.ndarray:
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
def test_own_kernel(activation: str, pooling: Any, bias: bool) -> None:
    hidden, mask, _ = draw()
    head = lexical_head(range(9), activation=activation, pooling=pooling, use_bias=bias)
    params = drawn(head, hidden, mask)["params"]
    out = jax.jit(head.apply)({"params": params}, hidden, mask)
    expected = by_definition(params, hidden, mask, params["kernel"], activation, pooling)
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_transform_and_epsilon() -> None:
    """A dense layer with its activation in front of the norm; other activations are the towers'."""
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
    exact = lexical_head(range(20), **how, transform="gelu").apply(
        {"params": params}, hidden, mask, table
    )
    tanh = lexical_head(range(20), **how, transform="gelu_tanh").apply(
        {"params": params}, hidden, mask, table
    )
    assert np.any(np.abs(exact - out) > 1e-2)
    assert np.any(exact != tanh)
    np.testing.assert_allclose(exact, tanh, atol=5e-3)


@pytest.mark.parametrize("terms", [range(4, 20), (3, 2, 19)])
def test_tied_to_rows_of_the_word_table(terms: Any) -> None:
    hidden, mask, table = draw()
    head = lexical_head(terms, tied=True)
    params = drawn(head, hidden, mask, table)["params"]
    assert set(params) == {"ln"}
    out = jax.jit(head.apply)({"params": params}, hidden, mask, table)
    expected = by_definition(params, hidden, mask, table[np.asarray(terms)], "elu1p")
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_padding_competes_only_where_asked() -> None:
    hidden, mask, table = draw()
    masked, parity = (
        lexical_head(range(20), tied=True, pool_padding=not mask_padding)
        for mask_padding in (True, False)
    )
    variables = drawn(masked, hidden, mask, table)
    of_masked, of_parity = jax.jit(masked.apply), jax.jit(parity.apply)
    noisy = np.where(mask[:, :, None], hidden, 100 * hidden[:, ::-1])
    clean = of_masked(variables, hidden, mask, table)
    np.testing.assert_array_equal(of_masked(variables, noisy, mask, table), clean)
    np.testing.assert_array_equal(
        of_parity(variables, hidden, mask, table), of_masked(variables, hidden, None, table)
    )
    assert np.any(of_parity(variables, hidden, mask, table) != clean)


@pytest.mark.parametrize(("activation", "pooling"), [("elu1p", "max"), ("log1p_relu", "mean")])
def test_row_of_padding_gives_zeros_and_no_gradient(activation: str, pooling: Any) -> None:
    hidden, mask, _ = draw()
    mask = mask & (np.arange(4) != 2)[:, None]
    head = lexical_head(range(9), activation=activation, pooling=pooling, use_bias=True)
    params = drawn(head, hidden, mask)["params"]

    def total(params: Any, hidden: Any) -> jax.Array:
        return jnp.sum(head.apply({"params": params}, hidden, mask))

    np.testing.assert_array_equal(jax.jit(head.apply)({"params": params}, hidden, mask)[2], 0)
    of_params, of_hidden = jax.jit(jax.grad(total, argnums=(0, 1)))(params, hidden)
    np.testing.assert_array_equal(of_hidden[2], 0)
    others = [0, 1, 3]

    def rest(params: Any) -> jax.Array:
        return jnp.sum(head.apply({"params": params}, hidden[others], mask[others]))

    expected = jax.jit(jax.grad(rest))(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), of_params, expected
    )


def test_activations_and_their_slopes() -> None:
    x = np.array([-1e30, -100.0, -1.0, 0.0, 2.0], np.float32)
    twice = 1 / (3 * (1 + np.log(3)))
    for function, slopes in (
        (elu1p, [0, 0, np.exp(-1), 1, 1]),
        (log1p_relu, [0, 0, 0, 0, 1 / 3]),
        (log1p_log1p_relu, [0, 0, 0, 0, twice]),
    ):
        expected = ACTIVATIONS[function.__name__](x.astype(np.float64))
        np.testing.assert_allclose(jax.jit(function)(x), expected, rtol=1e-6, atol=1e-30)
        np.testing.assert_allclose(
            jax.jit(jax.vmap(jax.grad(function)))(x), slopes, rtol=1e-6, atol=1e-30
        )
    assert elu1p(x)[0] == log1p_relu(x)[0] == 0.0


def test_names_axes_and_initial_values() -> None:
    hidden = np.zeros((2, 3, 64), np.float32)
    head = lexical_head(range(256), use_bias=True, bias_init=-2.0)
    boxed = jax.jit(head.init)(jax.random.key(0), hidden)
    params = nn.unbox(boxed)["params"]
    assert jax.tree.map(jnp.shape, params) == {
        "ln": {"scale": (64,), "bias": (64,)}, "kernel": (256, 64), "bias": (256,),
    }  # fmt: skip
    specs = nn.get_partition_spec(boxed)["params"]
    assert specs["kernel"] == P("vocab", "embed")
    assert specs["bias"] == P("vocab")
    np.testing.assert_allclose(np.std(params["kernel"]), 64**-0.5, rtol=0.03)
    np.testing.assert_array_equal(params["bias"], -2)
    bare = drawn(lexical_head(range(256), layer_norm=False), hidden)
    assert set(bare["params"]) == {"kernel"}


def test_sows_the_positions_of_the_maxima() -> None:
    hidden, mask, _ = draw()
    head = lexical_head(range(9), layer_norm=False)
    params = drawn(head, hidden, mask)["params"]
    run = jax.jit(partial(head.apply, mutable="intermediates"))
    _, found = run({"params": params}, hidden, mask)
    logits = np.einsum("bld,vd->blv", hidden, params["kernel"])
    expected = np.argmax(np.where(mask[:, :, None], logits, -np.inf), axis=1)
    np.testing.assert_array_equal(found["intermediates"]["positions"][0], expected)


def test_user_errors() -> None:
    hidden, mask, table = draw()

    def run(*inputs: Any, **attributes: Any) -> None:
        drawn(lexical_head(range(20), **attributes), *inputs)

    with pytest.raises(UserError, match="The kernel of a pooling has the shape"):
        run(hidden, mask, table[:, 1:], tied=True)


@pytest.mark.parametrize(
    ("shape", "tied"),
    [((2, 2, 2), False), ((2, 2, 2), True), ((8, 1, 1), False), ((1, 1, 8), True)],
)
def test_same_on_a_mesh_under_the_rules(shape: Any, tied: bool) -> None:
    """Parameters where `parallel.RULES` put them, rows where batches lie: equal to one device."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(8, 5, 16)).astype(np.float32)
    mask = np.arange(5) < rng.integers(1, 6, (8, 1))
    table = rng.normal(size=(32, 16)).astype(np.float32) if tied else None
    terms = range(8, 32) if tied else range(24)
    head = lexical_head(terms, tied=tied, use_bias=True, options=PoolingOptions(block=5))
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
