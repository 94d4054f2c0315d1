"""The gate of lexical representations, and their compact form.

"Retrieval-based Disentangled Representation Learning with Natural Language Supervision" (VDR),
Eq. 4: of the dense V(x) only the k strongest columns stay, and those of the text's own words:
E(x) = V(x) * G(x), G = top-k OR bag of words. G carries no gradient.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.sparse import sharded
from big_retrieval.sparse.sharded import by_rows


@flax.struct.dataclass
class Compact:
    """Rows [n, V] by what is not 0 in them.

    Attributes:
      values: [n, K].
      columns: int32 [n, K], of the values; no column twice in a row. -1: no column, value 0.
    """

    values: jax.Array
    columns: jax.Array


def compact(points: jax.Array, top_k: int, words: jax.Array | None = None) -> Compact:
    """The gated representations E(x) of dense ones V(x), in compact form.

    Args:
      points: V(x), [n, V].
      top_k: k, the number of columns that stay of each row, of equal ones the first; V or more
        keeps all of them, 0 none.
      words: int32 [n, L], columns of the row's own words, which stay, too; -1 where there is none,
        and a word may be there twice. None: there are no words.

    Returns:
      K = min(k, V) + L entries a row; the k strongest first, strongest first.
    """
    columns = sharded.strongest(points, min(top_k, points.shape[-1]))  # [n, k]
    if words is not None:
        with_words = functools.partial(_with_words, width=points.shape[-1])
        columns = by_rows(with_words, columns, words)  # [n, k + L]
    return Compact(sharded.take(points, columns), columns)


def _with_words(columns: jax.Array, words: jax.Array, width: int) -> jax.Array:
    """[n, k] and those of the words [n, L] that are new, -1 for the others."""
    rows = jnp.arange(len(columns))[:, None]
    taken = jnp.zeros((len(columns), width), bool).at[rows, columns].set(True)  # [n, V]
    known = jnp.take_along_axis(taken, jnp.maximum(words, 0), axis=1)  # [n, L]
    fresh = (words >= 0) & ~_repeated(words) & ~known
    return jnp.concatenate([columns, jnp.where(fresh, words, -1)], axis=1)


def bag_of_words(words: jax.Array, normalise: bool = False) -> Compact:
    """Binary bags of words, counts ignored, in compact form.

    Args:
      words: int32 [n, L], columns of the words; -1 where there is none.
      normalise: to norm 1 over the columns; a row without words stays 0.
    """
    columns = jnp.where(by_rows(_repeated, words), -1, words)  # [n, L]
    values = (columns >= 0).astype(jnp.float32)
    if normalise:
        values = values / jnp.sqrt(jnp.maximum(jnp.sum(values, axis=1, keepdims=True), 1))
    return Compact(values, columns)


def spread(rows: Compact, width: int) -> jax.Array:
    """Compact rows as dense ones, [n, V]."""
    return sharded.wide(sharded.spread_locally, width, rows.values, rows.columns)


def spread_words(words: jax.Array, width: int) -> jax.Array:
    """bool [n, V]: which columns are words of a row, from columns int32 [n, L], -1 for none."""
    return sharded.wide(_spread_words, width, words)


def _spread_words(words: jax.Array, width: int) -> jax.Array:
    place = jnp.where(words < 0, width, words)
    index = jnp.arange(len(place))[:, None]
    return jnp.zeros((len(place), width), bool).at[index, place].set(True, mode="drop")


def to_csr(values: np.ndarray, columns: np.ndarray, width: int) -> scipy.sparse.csr_array:
    """Compact rows on the host as float32 CSR [n, V], columns ascending, zeros left out."""
    there = (columns >= 0) & (values != 0)
    rows = np.repeat(np.arange(len(values)), there.sum(axis=1))
    found = (values[there].astype(np.float32), (rows, columns[there]))
    out = scipy.sparse.csr_array(found, shape=(len(values), width))
    out.sort_indices()
    return out


def _repeated(words: jax.Array) -> jax.Array:
    """bool [n, L]: whether the same word stands further in front of its row."""
    order = jnp.argsort(words, axis=1, stable=True)  # equal words side by side, the first one first
    ordered = jnp.take_along_axis(words, order, axis=1)
    again = jnp.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))
    return jnp.take_along_axis(again, jnp.argsort(order, axis=1), axis=1)
