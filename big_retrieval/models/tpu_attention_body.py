"""Bodies of the Pallas kernels of `tpu_attention`: rows of a batch for one group of heads.

Scores are transposed, [keys, queries]: maxima and sums over keys are elementwise operations on
registers, and scaling a query is a product with a row. Values and gradients of a head are computed
as [d, L], so heads are stacked by sublanes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from big_retrieval.models.layers import EXCLUDED
from big_retrieval.runtime.chips import LANES, SUBLANES

_F32 = jnp.float32


def queries_per_pass(length: int) -> int:
    """Returns the queries per pass over L keys: all if VMEM has space for their scores."""
    return length if length <= 512 else 256


class Spec(NamedTuple):
    """Static properties of an attention."""

    heads: int  # H
    keys: int  # before the padding
    causal: bool = False  # position i attends to 0 .. i only


# Reads a block of one row of the batch: (first token, stop, first lane, stop) -> array.
_Read = Callable[[int, int, int, int], jax.Array]


class _Row(NamedTuple):
    """One row of the batch in a grid step: queries, keys and values [L, N]."""

    q: _Read
    k: _Read
    v: _Read
    column: jax.Array | None  # float32 [L, 1], added to the scores
    length: int  # L
    n: int  # N
    size: int  # d
    spec: Spec

    def scores(self, a: int, start: int, stop: int) -> jax.Array:
        """Returns unscaled scores float32 [L, T] of the head at lane `a`; -1e30 if excluded."""
        scores = self.product(self.k, self.q, a, start, stop)
        if self.column is not None:
            scores = scores + self.column
        if self.spec.causal:
            key = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
            query = start + jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
            scores = jnp.where(key <= query, scores, EXCLUDED)
        if self.spec.keys < self.length:  # changes only the last tiles
            whole = self.spec.keys // SUBLANES * SUBLANES
            tail = scores[whole:]
            key = whole + jax.lax.broadcasted_iota(jnp.int32, (tail.shape[0], 1), 0)
            tail = jnp.where(key < self.spec.keys, tail, EXCLUDED)
            scores = jnp.concatenate([scores[:whole], tail]) if whole else tail
        return scores

    def product(self, x: _Read, y: _Read, a: int, start: int, stop: int) -> jax.Array:
        """Computes x y^T over the lanes of the head at `a`: all by T tokens, float32 [L, T].

        Lanes of other heads in the same tiles are set to 0, because tiles cannot be cut.
        """
        low, high = a // LANES * LANES, -(-(a + self.size) // LANES) * LANES
        left, right = x(0, self.length, low, high), y(start, stop, low, high)
        if high - low > self.size:
            lane = low + jax.lax.broadcasted_iota(jnp.int32, (1, high - low), 1)
            left = jnp.where((lane >= a) & (lane < a + self.size), left, 0)
        return _dot(left, right, 1, 1)

    def exp(self, x: jax.Array) -> jax.Array:
        """Computes exp(x / sqrt(d)), with one product for the scale and the base."""
        return jnp.exp2(x * (self.size**-0.5 * math.log2(math.e)))

    def transposed(self, x: _Read) -> jax.Array:  # [N, L]
        return x(0, self.length, 0, self.n).T

    @property
    def heads(self) -> range:
        """First lanes of the heads."""
        return range(0, self.n, self.size)

    @property
    def passes(self) -> list[tuple[int, int]]:
        """First and last query of each pass over the keys."""
        step = queries_per_pass(self.length)
        return [(i, min(i + step, self.length)) for i in range(0, self.length, step)]


def forward_rows(x_ref: Any, *refs: Any, spec: Spec, size: int) -> None:
    """Computes values and statistics of a block [R, L, 3 N] of the joint product.

    Args:
      *refs: the block of additions to the scores, if any; then the outputs: values [R, L, N], and
        statistics [R, 1, S, L], for each head the maximum and the inverse sum.
    """
    *row_refs, y_ref, stats_ref = refs

    def compute(r: Any) -> list[tuple[int, int, jax.Array, jax.Array]]:
        row = _read_row(x_ref, row_refs, r, size, spec)
        vt, results = row.transposed(row.v), []
        ones = jnp.ones((2 * SUBLANES, row.length), vt.dtype)
        for start, stop in row.passes:
            values, stats = [], []
            for a in row.heads:
                scores = row.scores(a, start, stop)
                top = jnp.max(scores, axis=0, keepdims=True)  # [1, T]
                weights = row.exp(scores - top).astype(vt.dtype)
                # The last rows are the sums of the rounded weights.
                y = _dot(jnp.concatenate([vt[a : a + size], ones]), weights, 1, 0)
                inverse = 1.0 / y[size : size + 1]
                values.append(y[:size] * inverse)
                stats += [top, inverse]
            unused = stats_ref.shape[2] - len(stats)
            stats += [jnp.zeros((unused, stop - start), _F32)] if unused else []
            values = jnp.concatenate(values).astype(y_ref.dtype).T  # [T, N]
            results.append((start, stop, values, jnp.concatenate(stats)))
        return results

    def store(r: Any, results: list[tuple[int, int, jax.Array, jax.Array]]) -> None:
        for start, stop, values, stats in results:
            y_ref[r, start:stop] = values
            stats_ref[r, 0, :, start:stop] = stats

    _for_rows(x_ref.shape[0], compute, store)


def backward_rows(
    x_ref: Any, stats_ref: Any, dy_ref: Any, *refs: Any, spec: Spec, size: int
) -> None:
    """Computes the gradients of a block of the joint product and of its bias.

    Args:
      x_ref: the block [R, L, 3 N].
      stats_ref: see `forward_rows`.
      dy_ref: gradients of the values [R, L, N].
      *refs: the block of additions to the scores, if any; then the outputs: gradients [R, L, 3 N],
        and their sum over all rows so far, [8, 3 N] with 8 equal rows.
    """
    *row_refs, dx_ref, db_ref = refs
    n = dy_ref.shape[2]

    @pl.when(pl.program_id(1) == 0)
    def _() -> None:
        db_ref[...] = jnp.zeros_like(db_ref)

    def compute(r: Any) -> list[jax.Array]:
        row = _read_row(x_ref, row_refs, r, size, spec)
        dy = _reader(dy_ref, r, 0)
        arrays = tuple(row.transposed(part) for part in (row.q, row.k, dy))
        passes = []
        for start, stop in row.passes:
            stats = stats_ref[r, 0, :, start:stop]
            heads = [_head_gradients(row, dy, arrays, stats, a, start, stop) for a in row.heads]
            passes.append([jnp.concatenate(parts) for parts in zip(*heads, strict=True)])
        dq, dk, dv = zip(*passes, strict=True)
        dk, dv = (functools.reduce(jnp.add, parts) for parts in (dk, dv))
        gradients = [jnp.concatenate(dq, axis=1), dk, dv]
        return [gradient.astype(dx_ref.dtype).T for gradient in gradients]  # [L, N] each

    def store(r: Any, gradients: list[jax.Array]) -> None:
        ones = jnp.ones((SUBLANES, dx_ref.shape[1]), dx_ref.dtype)
        for i, gradient in enumerate(gradients):
            dx_ref[r, :, i * n : (i + 1) * n] = gradient
            db_ref[:, i * n : (i + 1) * n] += _dot(ones, gradient, 1, 0)

    _for_rows(x_ref.shape[0], compute, store)


def _head_gradients(
    row: _Row,
    dy: _Read,
    arrays: tuple[jax.Array, ...],
    stats: jax.Array,
    a: int,
    start: int,
    stop: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns gradients of queries [d, T], keys and values [d, L] from T queries of a head."""
    head, lanes = a // row.size, slice(a, a + row.size)
    qt, kt, dyt = (array[lanes] for array in arrays)  # [d, L]
    top, inverse = (stats[2 * head + i : 2 * head + i + 1] for i in range(2))  # [1, T]
    weights = row.exp(row.scores(a, start, stop) - top)
    dweights = row.product(row.v, dy, a, start, stop)  # [L, T]
    mean = jnp.sum(weights * dweights, axis=0, keepdims=True) * inverse
    dscores = (weights * (dweights - mean)).astype(qt.dtype)
    # The factors of a query, 1 / sum and 1 / sqrt(d), scale [d, T] arrays instead of [L, T] ones.
    scale = inverse * row.size**-0.5
    queries = (qt[:, start:stop].astype(_F32) * scale).astype(qt.dtype)
    slopes = (dyt[:, start:stop].astype(_F32) * inverse).astype(qt.dtype)
    return (
        _dot(kt, dscores, 1, 0) * scale,
        _dot(queries, dscores, 1, 1),
        _dot(slopes, weights.astype(qt.dtype), 1, 1),
    )


def _read_row(x_ref: Any, row_refs: list[Any], r: Any, size: int, spec: Spec) -> _Row:
    n = x_ref.shape[2] // 3
    column = None
    if row_refs:
        values = row_refs[0][r if row_refs[0].shape[0] > 1 else 0]  # [1, L]
        column = jnp.broadcast_to(values, (SUBLANES, values.shape[1])).T[:, :1]
    q, k, v = (_reader(x_ref, r, i * n) for i in range(3))
    return _Row(q, k, v, column, x_ref.shape[1], n, size, spec)


def _reader(ref: Any, r: Any, first: int) -> _Read:
    def read(start: int, stop: int, low: int, high: int) -> jax.Array:
        return ref[r, start:stop, first + low : first + high]

    return read


def _dot(x: jax.Array, y: jax.Array, x_axis: int, y_axis: int) -> jax.Array:
    dims = (((x_axis,), (y_axis,)), ((), ()))
    return jax.lax.dot_general(x, y, dims, preferred_element_type=_F32)


def _for_rows(count: int, compute: Any, store: Any) -> None:
    """Runs the rows 0 .. count - 1, unrolled so that their operations overlap."""
    results = [compute(r) for r in range(count)]  # all before the stores, which delay later loads
    for r, result in enumerate(results):
        store(r, result)
