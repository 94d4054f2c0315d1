"""The gate of lexical representations, and their sparse form.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
Eq. 4: E(x) = V(x) * G(x), G = top-k OR bag of words. The gate G keeps the k largest terms of the
dense V(x) and the terms of the text's own words. G has no gradient.
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
    """Padded sparse form of rows [n, V]."""

    values: jax.Array  # [n, K]; 0 for padding
    terms: jax.Array  # int32 [n, K], without duplicates in a row; -1 for padding


def sparsify(embeddings: jax.Array, top_k: int, bow: jax.Array | None = None) -> SparseRows:
    """Computes the gated representations E(x) of dense representations V(x).

    Args:
      embeddings: V(x), [n, V].
      top_k: k, the number of largest terms to keep (the lower of equal terms); at least V keeps
        all.
      bow: terms of the input, which are also kept, int32 [n, L], padded with -1; a term may occur
        twice. None for inputs without terms (images).

    Returns:
      K = min(k, V) + L entries per row, starting with the k largest in descending order.
    """
    terms = sharded.top_terms(embeddings, min(top_k, embeddings.shape[-1]))  # [n, k]
    if bow is not None:
        with_bow = functools.partial(_with_bow, width=embeddings.shape[-1])
        # None, as jaxlib 0.11.2 crashes if devices concatenate an empty array with another one.
        terms = by_rows(with_bow, terms if terms.shape[1] else None, bow)  # [n, k + L]
    return SparseRows(sharded.gather_terms(embeddings, terms), terms)


def _with_bow(terms: jax.Array | None, bow: jax.Array, width: int) -> jax.Array:
    """Appends the terms of `bow` [n, L] to `terms` [n, k]; -1 for terms that are not new."""
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
    """Builds binary bags of words from terms int32 [n, L], padded with -1.

    `normalise` scales rows to norm 1; a row without terms stays 0.
    """
    terms = jnp.where(by_rows(_repeated, bow), -1, bow)  # [n, L]
    values = (terms >= 0).astype(jnp.float32)
    if normalise:
        values = values / jnp.sqrt(jnp.maximum(jnp.sum(values, axis=1, keepdims=True), 1))
    return SparseRows(values, terms)


def to_dense(rows: SparseRows, width: int) -> jax.Array:
    """Converts sparse rows to dense rows [n, V]."""
    return sharded.wide(sharded.dense_locally, width, rows.values, rows.terms)


def dense_mask(bow: jax.Array, width: int) -> jax.Array:
    """Converts terms int32 [n, L], padded with -1, to a mask bool [n, V]."""
    return sharded.wide(_dense_mask, width, bow)


def _dense_mask(bow: jax.Array, width: int) -> jax.Array:
    if traced_platform() == "tpu":
        return products.dense(jnp.ones(bow.shape, jnp.float32), bow, width) > 0
    columns = jnp.where(bow < 0, width, bow)
    rows = jnp.arange(len(columns))[:, None]
    return jnp.zeros((len(columns), width), bool).at[rows, columns].set(True, mode="drop")


def to_csr(values: np.ndarray, terms: np.ndarray, width: int) -> scipy.sparse.csr_array:
    """Converts sparse rows on the host to float32 CSR [n, V], terms ascending, without zeros."""
    present = (terms >= 0) & (values != 0)
    rows = np.repeat(np.arange(len(values)), present.sum(axis=1))
    entries = (values[present].astype(np.float32), (rows, terms[present]))
    out = scipy.sparse.csr_array(entries, shape=(len(values), width))
    out.sort_indices()
    return out


def _repeated(bow: jax.Array) -> jax.Array:
    """Returns True for terms that occur earlier in their row, bool [n, L]."""
    if traced_platform() == "tpu":  # L * L comparisons instead of two sorts and two gathers
        earlier = jnp.arange(bow.shape[1])[:, None] > jnp.arange(bow.shape[1])  # [L, L]
        return jnp.any((bow[:, :, None] == bow[:, None, :]) & earlier, axis=2)
    order = jnp.argsort(bow, axis=1, stable=True)  # equal terms are adjacent, the first one first
    ordered = jnp.take_along_axis(bow, order, axis=1)
    again = jnp.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))
    return jnp.take_along_axis(again, jnp.argsort(order, axis=1), axis=1)
