"""The contrastive loss against its definition, with weights, padding, ties and many devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import Execution, PairBatch
from tests.arrays import assert_trees_close, device_mesh

TOP = topology_part("oblique")


def pair(seed: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(rows, 2, 4))
    return a, a + 0.8 * rng.normal(size=a.shape)


@jax.jit
def run(a: jax.Array, b: jax.Array, valid: jax.Array | None = None) -> tuple:
    return contrastive_loss(PairBatch(TOP.project(a), TOP.project(b), TOP, 3.0, valid=valid))


@pytest.mark.parametrize("padding", [0.0, 7.0, np.nan])
def test_contrastive_loss_ignores_padding(padding: float) -> None:
    """Invalid rows count neither above nor below the line, whatever they hold and weigh."""
    with jax.enable_x64(True):
        a, b = pair(0, 7)
        weight = np.array([1.0, 0.5, 9.0, 2.0, 9.0, 3.0, 1.0])
        valid = np.array([True, True, False, True, False, True, True])
        a[~valid] = padding
        b[~valid] = padding

        def loss(a: jax.Array, b: jax.Array, t: jax.Array, w: jax.Array, v: jax.Array | None):
            return contrastive_loss(PairBatch(a, b, TOP, jnp.exp(t), weight=w, valid=v))

        grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True))
        t = jnp.asarray(1.1)
        (got, metrics), grads = grad(jnp.asarray(a), jnp.asarray(b), t, weight, valid)
        (expected, want), clean = grad(
            jnp.asarray(a[valid]), jnp.asarray(b[valid]), t, weight[valid], None
        )
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    np.testing.assert_allclose(metrics["accuracy"], want["accuracy"])
    for g, c in zip(grads[:2], clean[:2], strict=True):
        np.testing.assert_allclose(g[valid], c, rtol=1e-9, atol=1e-12)
        np.testing.assert_array_equal(g[~valid], 0.0)
    np.testing.assert_allclose(grads[2], clean[2], rtol=1e-9)


def test_nothing_valid_is_zero() -> None:
    a, b = pair(0, 3)
    loss, metrics = run(a, b, valid=np.zeros(3, bool))
    assert float(loss) == 0.0
    assert float(metrics["accuracy"]) == 0.0


def test_accuracy_is_strict() -> None:
    """The share of rows that beat all others, both directions; ties lose."""
    eye = np.eye(4)[:, None, :]
    assert float(run(eye, eye)[1]["accuracy"]) == 1.0
    same = np.ones((4, 1, 4))
    assert float(run(same, same)[1]["accuracy"]) == 0.0
    swapped = eye[[1, 0, 2, 3]]
    assert float(run(eye, swapped)[1]["accuracy"]) == 0.5
    # b's rows 0 and 1 both equal a's row 0: a's rows 0 (tie) and 1 lose, b's row 0 wins.
    double = eye[[0, 0, 2, 3]]
    assert float(run(eye, double)[1]["accuracy"]) == pytest.approx(0.5 * (2 / 4 + 3 / 4))


def test_accuracy_has_no_gradient_and_scale_has() -> None:
    a, b = (TOP.project(jnp.asarray(x, jnp.float32)) for x in pair(0, 5))

    def both(scale: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, metrics = contrastive_loss(PairBatch(a, b, TOP, scale))
        return loss, metrics["accuracy"]

    slopes = jax.jit(jax.jacrev(both))(jnp.asarray(2.0))
    assert float(slopes[0]) != 0.0
    assert float(slopes[1]) == 0.0


def test_sharded_rows_without_set_mesh_equal_one_device() -> None:
    """Value and gradients of rows that are sharded under jit equal a float64 computation."""
    a, b = pair(0, 16)
    valid = np.arange(16) < 13

    def loss(a: jax.Array, b: jax.Array, t: jax.Array, valid: jax.Array) -> jax.Array:
        p, q = TOP.project(a), TOP.project(b)
        return contrastive_loss(PairBatch(p, q, TOP, jnp.exp(t), valid=valid))[0]

    grad = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))
    with jax.enable_x64(True):
        expected = jax.device_get(grad(jnp.asarray(a), jnp.asarray(b), jnp.asarray(1.0), valid))
    rows = NamedSharding(device_mesh(8), P("data"))
    placed = [jax.device_put(x, rows) for x in (np.float32(a), np.float32(b))]
    value = grad(*placed, jnp.asarray(1.0), jax.device_put(valid, rows))
    assert_trees_close(jax.device_get(value), expected)


@pytest.mark.parametrize("name", ["sphere", "euclidean", "oblique", "geodesic"])
def test_edges_are_finite(name: str) -> None:
    """Equal pairs, equal rows of different pairs and antipodes: nothing becomes NaN or infinite."""
    top = topology_part(name)
    a = pair(0, 6)[0].astype(np.float32)
    a[3], a[4] = a[2], -a[1]

    def loss(a: jax.Array, b: jax.Array) -> jax.Array:
        p, q = top.project(a), top.project(b)
        return contrastive_loss(PairBatch(p, q, top, 10.0, execution=Execution(block=4)))[0]

    value, grads = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(a, a)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in grads)


@pytest.mark.parametrize(
    ("rows", "false_negatives", "words"),
    [
        (3, "keep", r"\(4, 2, 4\).*\(3, 2, 4\)"),
        (4, "mask", "false_negatives 'mask' needs query_id or document_id"),
        (4, "keep", "4 rows does not divide over 8"),
    ],
)
def test_impossible_batches_are_rejected(rows: int, false_negatives: Any, words: str) -> None:
    a, b = (jnp.asarray(x, jnp.float32) for x in pair(0, 4))
    with jax.set_mesh(device_mesh(8)), pytest.raises(UserError, match=words):
        contrastive_loss(PairBatch(a, b[:rows], TOP, false_negatives=false_negatives))
