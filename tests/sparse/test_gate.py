"""The gate of lexical representations against loops over sets, and on eight devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from big_retrieval.compiled.program import read_program
from big_retrieval.sparse import gate

ROWS, WIDTH, WORDS = 4, 9, 5
TOPS = st.sampled_from([0, 1, 3, WIDTH - 1, WIDTH, WIDTH + 4])
sparsify = jax.jit(gate.sparsify, static_argnums=1)


def arrays(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings with ties and zeros; terms with -1 and duplicates, none in the last row."""
    rng = np.random.default_rng(seed)
    embeddings = rng.integers(0, 4, (rows, WIDTH)).astype(np.float32)
    bow = rng.integers(-1, WIDTH, (rows, WORDS)).astype(np.int32)
    bow[-1] = -1
    return embeddings, bow


def kept(row: np.ndarray, top_k: int, bow: np.ndarray) -> tuple[list[int], set[int]]:
    """The strongest columns of a row in order, the lower of equal ones first, and its words."""
    order = sorted(range(len(row)), key=lambda column: (-row[column], column))
    return order[:top_k], {word for word in bow.tolist() if word >= 0}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), TOPS, st.booleans())
def test_sparsify_equals_sets(seed: int, top_k: int, with_bow: bool) -> None:
    embeddings, bow = arrays(seed)
    found = sparsify(jnp.asarray(embeddings), top_k, jnp.asarray(bow) if with_bow else None)
    first = min(top_k, WIDTH)
    assert found.terms.shape == found.values.shape == (ROWS, first + WORDS * with_bow)
    assert found.terms.dtype == jnp.int32
    for n, row in enumerate(embeddings):
        strongest, words = kept(row, top_k, bow[n] if with_bow else bow[n, :0])
        terms, values = np.asarray(found.terms[n]), np.asarray(found.values[n])
        assert terms[:first].tolist() == strongest  # exactly k, strongest first
        present = terms[terms >= 0]
        assert sorted(present.tolist()) == sorted({*strongest} | words)  # without duplicates
        np.testing.assert_array_equal(values[terms >= 0], row[present])
        assert not values[terms < 0].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), TOPS)
def test_to_dense_and_to_csr(seed: int, top_k: int) -> None:
    embeddings, bow = arrays(seed)
    found = jax.device_get(sparsify(jnp.asarray(embeddings), top_k, jnp.asarray(bow)))
    expected = np.zeros_like(embeddings)
    for n, row in enumerate(embeddings):
        strongest, words = kept(row, top_k, bow[n])
        terms = [*strongest, *words]
        expected[n, terms] = row[terms]
    np.testing.assert_array_equal(gate.to_dense(found, WIDTH), expected)
    sparse = gate.to_csr(found.values, found.terms, WIDTH)
    np.testing.assert_array_equal(sparse.toarray(), expected)
    assert sparse.nnz == np.count_nonzero(expected)  # no zero is stored
    assert sparse.has_sorted_indices
    assert sparse.dtype == np.float32


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_bag_of_words_and_dense_mask(seed: int, normalise: bool) -> None:
    _, bow = arrays(seed)
    expected = np.zeros((ROWS, WIDTH), np.float32)
    for row, words in zip(expected, bow, strict=True):
        row[words[words >= 0]] = 1
    np.testing.assert_array_equal(gate.dense_mask(jnp.asarray(bow), WIDTH), expected > 0)
    if normalise:
        expected /= np.sqrt(np.maximum(expected.sum(1, keepdims=True), 1))
    bag = gate.bag_of_words(jnp.asarray(bow), normalise)
    np.testing.assert_allclose(gate.to_dense(bag, WIDTH), expected, rtol=1e-6)
    for terms in np.asarray(bag.terms):
        present = terms[terms >= 0].tolist()
        assert len(present) == len({*present})


def test_gate_has_no_gradient() -> None:
    """d/dV sum E(x)^2 = 2 V(x) G(x)."""
    embeddings, bow = arrays(3)

    def total(x: jax.Array) -> jax.Array:
        found = gate.sparsify(x, 2, jnp.asarray(bow))
        return jnp.sum(jnp.square(gate.to_dense(found, WIDTH)))

    opened = np.asarray(gate.dense_mask(sparsify(jnp.asarray(embeddings), 2, bow).terms, WIDTH))
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(embeddings)), 2 * embeddings * opened)


def make_mesh(*shape: int) -> jax.sharding.Mesh:
    axes = ("data", "fsdp", "tensor")[: len(shape)]
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(shape))


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 4, 1)])
def test_gate_on_a_mesh_sends_nothing(shape: tuple[int, ...]) -> None:
    embeddings, bow = arrays(5, rows=16)
    mesh = make_mesh(*shape)
    sharded = NamedSharding(mesh, P(("data", "fsdp")))

    def both(x: Any, bow: Any) -> Any:
        found = gate.sparsify(x, 3, bow)
        return found, gate.to_dense(found, WIDTH), gate.bag_of_words(bow, normalise=True)

    expected = jax.jit(both)(embeddings, bow)
    with jax.set_mesh(mesh):
        inputs = jax.device_put((embeddings, bow), sharded)
        program = jax.jit(both).lower(*inputs).compile()
        found = program(*inputs)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert all(x.sharding.is_equivalent_to(sharded, x.ndim) for x in jax.tree.leaves(found))
    text = program.as_text() or ""
    for word in ("all-gather", "all-to-all", "all-reduce", "collective-permute"):
        assert word not in text


@pytest.mark.parametrize("top_k", [0, 3, 5, 9])
@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 2, 4)])
def test_sharded_terms_equal_one_device(shape: tuple[int, ...], top_k: int) -> None:
    """Values, ties and gradients of 9 terms, which no mesh divides."""
    embeddings, bow = arrays(7, rows=16)
    mesh = make_mesh(*shape)

    def outputs(x: Any, bow: Any) -> Any:
        def total(x: Any) -> Any:
            found = gate.sparsify(x, top_k, bow)
            dense = gate.to_dense(found, WIDTH)
            return jnp.sum(jnp.square(dense)), (found, dense, gate.dense_mask(bow, WIDTH))

        return jax.value_and_grad(total, has_aux=True)(x)

    expected = jax.jit(outputs)(embeddings, bow)
    with jax.set_mesh(mesh):
        found = jax.jit(outputs)(embeddings, bow)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_devices_send_only_their_largest_terms() -> None:
    """Each of 4 devices sends k of 512 values with their indices, and adds K values up."""
    rows, width, top_k, length = 8, 512, 6, 3
    mesh = make_mesh(2, 1, 4)
    rows_on, all_on = (NamedSharding(mesh, spec) for spec in (P("data"), P("data", "tensor")))
    embeddings = jax.ShapeDtypeStruct((rows, width), jnp.float32, sharding=all_on)
    bow = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=rows_on)
    with jax.set_mesh(mesh):
        program = jax.jit(lambda x, w: gate.sparsify(x, top_k, w)).lower(embeddings, bow).compile()
    found = sorted((c.kind, c.bytes) for c in read_program(program.as_text() or "").collectives)
    gathered = ("all-gather", rows // 2 * 4 * top_k * 4)
    assert found == [gathered, gathered, ("all-reduce", rows // 2 * (top_k + length) * 4)]


def test_rows_that_devices_do_not_divide() -> None:
    embeddings, bow = arrays(6, rows=6)
    expected = sparsify(embeddings, 3, bow)
    with jax.set_mesh(make_mesh(8)):
        found = sparsify(embeddings, 3, bow)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
