"""The gate of lexical representations, and their sparse form.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
Eq. 4: of the dense V(x) only the k strongest terms stay, and those of the text's own words:
E(x) = V(x) * G(x), G = top-k OR bag of words. G carries no gradient.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.runtime.platform import traced_platform
from big_retrieval.sparse import products, sharded
from big_retrieval.sparse.sharded import by_rows


@flax.struct.dataclass
class SparseRows:
    """Sparse rows [n, V], padded: values and their terms.

    Attributes:
      values: [n, K].
      terms: int32 [n, K], of the values; no term twice in a row. -1: no term, value 0.
    """

    values: jax.Array
    terms: jax.Array


def sparsify(embeddings: jax.Array, top_k: int, bow: jax.Array | None = None) -> SparseRows:
    """The gated representations E(x) of dense ones V(x), as sparse rows.

    Args:
      embeddings: V(x), [n, V].
      top_k: k, the number of terms that stay of each row, of equal ones the first; V or more
        keeps all of them, 0 none.
      bow: int32 [n, L], term ids of the input itself, padded with -1, which stay, too; a term may
        occur twice. None: the input has no terms (an image).

    Returns:
      K = min(k, V) + L entries a row; the k strongest first, strongest first.
    """
    terms = sharded.strongest(embeddings, min(top_k, embeddings.shape[-1]))  # [n, k]
    if bow is not None:
        with_bow = functools.partial(_with_bow, width=embeddings.shape[-1])
        # None: jaxlib 0.11.2 crashes where devices put an empty array beside another one.
        terms = by_rows(with_bow, terms if terms.shape[1] else None, bow)  # [n, k + L]
    return SparseRows(sharded.take(embeddings, terms), terms)


def _with_bow(terms: jax.Array | None, bow: jax.Array, width: int) -> jax.Array:
    """[n, k] and those terms of `bow` [n, L] that are new, -1 for the others."""
    fresh = (bow >= 0) & ~_repeated(bow)  # [n, L]
    if terms is None:
        return jnp.where(fresh, bow, -1)
    if traced_platform() == "tpu":
        fresh &= ~jnp.any(bow[:, :, None] == terms[:, None, :], axis=2)
        return jnp.concatenate([terms, jnp.where(fresh, bow, -1)], axis=1)
    rows = jnp.arange(len(terms))[:, None]
    taken = jnp.zeros((len(terms), width), bool).at[rows, terms].set(True)  # [n, V]
    fresh &= ~jnp.take_along_axis(taken, jnp.maximum(bow, 0), axis=1)
    return jnp.concatenate([terms, jnp.where(fresh, bow, -1)], axis=1)


def bag_of_words(bow: jax.Array, normalise: bool = False) -> SparseRows:
    """Binary bags of words, counts ignored, as sparse rows.

    Args:
      bow: int32 [n, L], term ids, padded with -1.
      normalise: to norm 1 over the terms; a row without terms stays 0.
    """
    terms = jnp.where(by_rows(_repeated, bow), -1, bow)  # [n, L]
    values = (terms >= 0).astype(jnp.float32)
    if normalise:
        values = values / jnp.sqrt(jnp.maximum(jnp.sum(values, axis=1, keepdims=True), 1))
    return SparseRows(values, terms)


def to_dense(rows: SparseRows, width: int) -> jax.Array:
    """Sparse rows as dense ones, [n, V]."""
    return sharded.wide(sharded.dense_locally, width, rows.values, rows.terms)


def dense_mask(bow: jax.Array, width: int) -> jax.Array:
    """bool [n, V]: which terms are words of a row, from terms int32 [n, L], -1 for none."""
    return sharded.wide(_dense_mask, width, bow)


def _dense_mask(bow: jax.Array, width: int) -> jax.Array:
    if traced_platform() == "tpu":
        return products.dense(jnp.ones(bow.shape, jnp.float32), bow, width) > 0
    place = jnp.where(bow < 0, width, bow)
    index = jnp.arange(len(place))[:, None]
    return jnp.zeros((len(place), width), bool).at[index, place].set(True, mode="drop")


def to_csr(values: np.ndarray, terms: np.ndarray, width: int) -> scipy.sparse.csr_array:
    """Sparse rows on the host as float32 CSR [n, V], terms ascending, zeros left out."""
    present = (terms >= 0) & (values != 0)
    rows = np.repeat(np.arange(len(values)), present.sum(axis=1))
    found = (values[present].astype(np.float32), (rows, terms[present]))
    out = scipy.sparse.csr_array(found, shape=(len(values), width))
    out.sort_indices()
    return out


def _repeated(bow: jax.Array) -> jax.Array:
    """bool [n, L]: whether the same term occurs earlier in its row."""
    if traced_platform() == "tpu":  # L * L comparisons instead of two sorts and two gathers
        earlier = jnp.arange(bow.shape[1])[:, None] > jnp.arange(bow.shape[1])  # [L, L]
        return jnp.any((bow[:, :, None] == bow[:, None, :]) & earlier, axis=2)
    order = jnp.argsort(bow, axis=1, stable=True)  # equal terms side by side, the first one first
    ordered = jnp.take_along_axis(bow, order, axis=1)
    again = jnp.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))
    return jnp.take_along_axis(again, jnp.argsort(order, axis=1), axis=1)
