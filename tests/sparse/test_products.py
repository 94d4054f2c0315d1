"""Products with one-hot matrices against scatters."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.sparse import gate, products, sharded

ROWS, WIDTH, TERMS = 5, 300, 20


def draw() -> tuple[jax.Array, jax.Array]:
    """Values [n, K] and their terms, some of them -1."""
    rng = np.random.default_rng(0)
    terms = np.stack([rng.permutation(WIDTH)[:TERMS] for _ in range(ROWS)]).astype(np.int32)
    terms[:, -3:] = -1
    return jnp.asarray(rng.normal(size=terms.shape), jnp.float32), jnp.asarray(terms)


def as_on_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (gate, sharded):
        monkeypatch.setattr(module, "traced_platform", lambda: "tpu")


def test_dense_and_gradient_equal_a_scatter() -> None:
    values, terms = draw()
    expected, pull = jax.vjp(lambda x: sharded.dense_locally(x, terms, WIDTH), values)
    rows, pull_product = jax.vjp(lambda x: products.dense(x, terms, WIDTH), values)
    np.testing.assert_array_equal(rows, expected)
    grads = jax.random.normal(jax.random.key(0), rows.shape)
    np.testing.assert_array_equal(pull_product(grads)[0], pull(grads)[0])


def test_take_and_gradient_on_tpus(monkeypatch: pytest.MonkeyPatch) -> None:
    grads, terms = draw()
    rows = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))
    expected, pull = jax.vjp(lambda x: sharded.gather_terms(x, terms), rows)
    (expected_grads,) = pull(grads)  # by a scatter: before the platform changes
    as_on_tpu(monkeypatch)
    values, pull_product = jax.vjp(lambda x: sharded.gather_terms(x, terms), rows)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(pull_product(grads)[0], expected_grads)


@pytest.mark.parametrize("top_k", [0, 6, 200])
def test_gate_is_the_same_on_tpus(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(top_k)
    embeddings = jnp.asarray(rng.integers(0, 50, (ROWS, WIDTH)), jnp.float32)
    bow = jnp.asarray(rng.integers(-1, 9, (ROWS, 12)), jnp.int32)  # with duplicates

    def outputs() -> Any:
        rows = gate.sparsify(embeddings, top_k, bow)
        mask = gate.dense_mask(rows.terms, WIDTH)
        return rows, gate.bag_of_words(bow), gate.to_dense(rows, WIDTH), mask

    expected = outputs()
    as_on_tpu(monkeypatch)
    jax.tree.map(np.testing.assert_array_equal, outputs(), expected)
