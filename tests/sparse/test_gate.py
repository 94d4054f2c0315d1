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
    """Embeddings with ties and zeros; words with -1 anywhere, repeated, none in the last row."""
    rng = np.random.default_rng(seed)
    embeddings = rng.integers(0, 4, (rows, WIDTH)).astype(np.float32)
    bow = rng.integers(-1, WIDTH, (rows, WORDS)).astype(np.int32)
    bow[-1] = -1
    return embeddings, bow


def kept(row: np.ndarray, top_k: int, bow: np.ndarray) -> tuple[list[int], set[int]]:
    """The strongest columns of a row in order, of equal ones the first, and its words."""
    order = sorted(range(len(row)), key=lambda column: (-row[column], column))
    return order[:top_k], {word for word in bow.tolist() if word >= 0}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), TOPS, st.booleans())
def test_against_sets(seed: int, top_k: int, with_bow: bool) -> None:
    embeddings, bow = arrays(seed)
    found = sparsify(jnp.asarray(embeddings), top_k, jnp.asarray(bow) if with_bow else None)
    first = min(top_k, WIDTH)
    assert found.terms.shape == found.values.shape == (ROWS, first + WORDS * with_bow)
    assert found.terms.dtype == jnp.int32
    for n, (row, own) in enumerate(zip(embeddings, bow, strict=True)):
        strongest, mine = kept(row, top_k, own if with_bow else own[:0])
        terms, values = np.asarray(found.terms[n]), np.asarray(found.values[n])
        assert terms[:first].tolist() == strongest  # exactly k, strongest first
        present = terms[terms >= 0]
        assert sorted(present.tolist()) == sorted({*strongest} | mine)  # each once
        np.testing.assert_array_equal(values[terms >= 0], row[present])
        assert not values[terms < 0].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), TOPS)
def test_dense_again_and_csr(seed: int, top_k: int) -> None:
    embeddings, bow = arrays(seed)
    found = jax.device_get(sparsify(jnp.asarray(embeddings), top_k, jnp.asarray(bow)))
    expected = np.zeros_like(embeddings)
    for n, (row, own) in enumerate(zip(embeddings, bow, strict=True)):
        strongest, mine = kept(row, top_k, own)
        terms = [*strongest, *mine]
        expected[n, terms] = row[terms]
    np.testing.assert_array_equal(gate.to_dense(found, WIDTH), expected)
    sparse = gate.to_csr(found.values, found.terms, WIDTH)
    np.testing.assert_array_equal(sparse.toarray(), expected)
    assert sparse.nnz == np.count_nonzero(expected)  # no zero is stored
    assert sparse.has_sorted_indices
    assert sparse.dtype == np.float32


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.booleans())
def test_bags_and_words(seed: int, normalise: bool) -> None:
    _, bow = arrays(seed)
    expected = np.zeros((ROWS, WIDTH), np.float32)
    for row, own in zip(expected, bow, strict=True):
        row[[word for word in own.tolist() if word >= 0]] = 1
    np.testing.assert_array_equal(gate.dense_mask(jnp.asarray(bow), WIDTH), expected > 0)
    if normalise:
        expected /= np.sqrt(np.maximum(expected.sum(1, keepdims=True), 1))
    bag = gate.bag_of_words(jnp.asarray(bow), normalise)
    np.testing.assert_allclose(gate.to_dense(bag, WIDTH), expected, rtol=1e-6)
    for terms in np.asarray(bag.terms):
        present = terms[terms >= 0].tolist()
        assert len(present) == len({*present})


def test_the_gate_has_no_gradient_but_its_values_have() -> None:
    """d/dV sum E(x)^2 = 2 V(x) G(x)."""
    embeddings, bow = arrays(3)

    def total(x: jax.Array) -> jax.Array:
        found = gate.sparsify(x, 2, jnp.asarray(bow))
        return jnp.sum(jnp.square(gate.to_dense(found, WIDTH)))

    opened = np.asarray(gate.dense_mask(sparsify(jnp.asarray(embeddings), 2, bow).terms, WIDTH))
    np.testing.assert_allclose(jax.grad(total)(jnp.asarray(embeddings)), 2 * embeddings * opened)


SHAPES = {"data": (8, 1, 1), "both": (2, 4, 1)}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_device_treats_its_own_rows(shape: str) -> None:
    """The same as without a mesh, sharded alike, and nothing is sent."""
    embeddings, bow = arrays(5, rows=16)
    axes = ("data", "fsdp", "tensor")
    mesh = jax.make_mesh(SHAPES[shape], axes, axis_types=(AxisType.Auto,) * 3)
    sharded = NamedSharding(mesh, P(("data", "fsdp")))

    def both(x: Any, bow: Any) -> Any:
        found = gate.sparsify(x, 3, bow)
        return found, gate.to_dense(found, WIDTH), gate.bag_of_words(bow, normalise=True)

    expected = jax.jit(both)(embeddings, bow)
    with jax.set_mesh(mesh):
        inputs = jax.device_put((embeddings, bow), sharded)
        program = jax.jit(both).lower(*inputs).compile()
        found = program(*inputs)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.sharding.is_equivalent_to(sharded, ours.ndim)
    text = program.as_text() or ""
    for word in ("all-gather", "all-to-all", "all-reduce", "collective-permute"):
        assert word not in text


@pytest.mark.parametrize("top_k", [0, 3, 5, 9])
@pytest.mark.parametrize("shape", [(2, 2, 2), (1, 2, 4)])
def test_spread_columns(shape: tuple[int, ...], top_k: int) -> None:
    """The same, ties included, from 9 columns that no mesh divides; gradients, too."""
    embeddings, bow = arrays(7, rows=16)
    mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)

    def all_of_it(x: Any, bow: Any) -> Any:
        def total(x: Any) -> Any:
            found = gate.sparsify(x, top_k, bow)
            dense = gate.to_dense(found, WIDTH)
            return jnp.sum(jnp.square(dense)), (found, dense, gate.dense_mask(bow, WIDTH))

        return jax.value_and_grad(total, has_aux=True)(x)

    expected = jax.jit(all_of_it)(embeddings, bow)
    with jax.set_mesh(mesh):
        found = jax.jit(all_of_it)(embeddings, bow)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_devices_send_their_largest_columns_only() -> None:
    """Of 512 columns on 4 devices, each sends k values and their numbers, and adds K values up."""
    rows, width, top_k, length = 8, 512, 6, 3
    mesh = jax.make_mesh((2, 1, 4), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    rows_on, all_on = (NamedSharding(mesh, spec) for spec in (P("data"), P("data", "tensor")))
    embeddings = jax.ShapeDtypeStruct((rows, width), jnp.float32, sharding=all_on)
    bow = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=rows_on)
    with jax.set_mesh(mesh):
        program = jax.jit(lambda x, w: gate.sparsify(x, top_k, w)).lower(embeddings, bow).compile()
    found = sorted((c.kind, c.bytes) for c in read_program(program.as_text() or "").collectives)
    gathered = ("all-gather", rows // 2 * 4 * top_k * 4)
    assert found == [gathered, gathered, ("all-reduce", rows // 2 * (top_k + length) * 4)]


def test_rows_that_do_not_divide_over_the_devices() -> None:
    """Such as a mesh's own count of evaluation rows: the result is the same."""
    embeddings, bow = arrays(6, rows=6)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    expected = sparsify(embeddings, 3, bow)
    with jax.set_mesh(mesh):
        found = sparsify(embeddings, 3, bow)
    np.testing.assert_array_equal(found.terms, expected.terms)
    np.testing.assert_array_equal(found.values, expected.values)
