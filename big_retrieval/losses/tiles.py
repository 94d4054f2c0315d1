"""Reductions: the statistics that a loss reads from tiles of logits, and the tiles' gradients.

A tile is a block of the matrix of logits of the global batch; a logit is logit_scale * score
(+ bias). The rows of a tile are local (documents, which stay on their device), its columns rotating
(queries, which visit all devices). The positives, on the diagonal of the matrix, do not count in
tiles: the losses add them from `Topology.paired`. The statistics of a `Reduction` merge in any
order, so the order of tiles, devices and hops of a ring does not matter.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import flax.struct
import jax
import jax.numpy as jnp

FalseNegatives = Literal["keep", "mask"]
Axes = tuple[str, ...]
Stats = Mapping[str, jax.Array]

# Finite, so that a row without counted logits gives a finite value (of weight 0) instead of NaN.
EXCLUDED = -1e30


@flax.struct.dataclass
class SideRows:
    """The n rows of one side.

    Attributes:
      embeddings: [n, M, N]; the values [n, K] of sparse rows.
      index: int32 [n], index of the row's pair in the global batch; below 0 for extra negatives.
      counted: bool [n]; False for padding.
      query_id: int32 [n] or None; negative if unknown. Documents may have [n, K]: all their
        relevant queries.
      document_id: int32 [n] or None; negative if unknown. Queries may have [n, K]: all their
        relevant documents.
      weight: [n] or None, the weight of the row's pair.
      terms: int32 [n, K] of sparse rows, see `gate.SparseRows`; else None.
    """

    embeddings: jax.Array
    index: jax.Array
    counted: jax.Array
    query_id: jax.Array | None = None
    document_id: jax.Array | None = None
    weight: jax.Array | None = None
    terms: jax.Array | None = None


@flax.struct.dataclass
class Tile:
    """Labels of the entries of a tile.

    Attributes:
      negative: bool [R, T].
      local: R rows of the tile.
      rotating: T columns of the tile.
    """

    negative: jax.Array
    local: SideRows
    rotating: SideRows


def classify(local: SideRows, rotating: SideRows, false_negatives: FalseNegatives) -> Tile:
    """Labels the negatives among the entries of a tile of documents (local) and queries (rotating).

    An entry of two different pairs is a false negative by id if its query is relevant to its
    document by the query ids or by the document ids.
    """
    r, t = local, rotating
    positive = r.index[:, None] == t.index[None, :]  # [R, T]
    negative = r.counted[:, None] & t.counted[None, :] & ~positive
    if false_negatives == "mask":
        query, document = _among(t.query_id, r.query_id), _among(r.document_id, t.document_id)
        for is_relevant in (None if query is None else query.T, document):  # [R, T]
            negative = negative if is_relevant is None else negative & ~is_relevant
    return Tile(negative, r, t)


def _among(one: jax.Array | None, several: jax.Array | None) -> jax.Array | None:
    """Returns where ids [m] equal an id of other rows, [n] or [n, K]: bool [m, n]."""
    if one is None or several is None:
        return None
    columns = [several] if several.ndim == 1 else [several[:, k] for k in range(several.shape[1])]
    equal = functools.reduce(jnp.logical_or, (one[:, None] == ids[None, :] for ids in columns))
    return equal & (one >= 0)[:, None]  # two unknown ids are not equal


class Reduction(Protocol):
    """Reads tiles for a loss. All methods are pure; none depends on other tiles or devices.

    By default, `best` merges as a maximum, and all other statistics as sums.
    """

    def start(self, side: SideRows) -> Stats:
        """Returns the statistics [n] of rows before the first tile."""
        ...

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """Returns the statistics of a tile for its local rows [R] and its rotating rows [T]."""
        ...

    def merge(self, a: Stats, b: Stats) -> Stats:
        """Merges the statistics of two sets of tiles."""
        return {k: jnp.maximum(x, b[k]) if k == "best" else x + b[k] for k, x in a.items()}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """Merges [N] statistics over devices; each keeps its own [n] rows."""
        return {
            name: own_rows(jax.lax.pmax(x, axes), axes) if name == "best" else scatter_sum(x, axes)
            for name, x in stats.items()
        }

    def finish(self, stats: Stats) -> Stats:
        """Returns the finished statistics, which the loss reads."""
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: "SavedRows", rotating: "SavedRows"
    ) -> jax.Array:
        """Returns the gradient of a tile's logits, [R, T], from gradients of the statistics."""
        ...


@flax.struct.dataclass
class SavedRows:
    """Finished statistics of rows, and their incoming gradients, [n] each."""

    stats: Any
    grads: Any


@dataclasses.dataclass(frozen=True)
class SoftmaxReduction(Reduction):
    """Log-sum-exp over the logits of a row's negatives.

    Finished: `others`, the log-sum-exp; `best`, the largest logit, without gradient.
    """

    def start(self, side: SideRows) -> Stats:
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        return {"max": zeros + EXCLUDED, "sum": zeros}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        counted = jnp.where(tile.negative, logits, EXCLUDED)

        def side(axis: int) -> Stats:
            top = jnp.max(counted, axis=axis)
            # In a row without counted logits every entry adds exp(0) = 1. A merge with counted
            # logits turns this into 1 * exp(EXCLUDED - max) = 0.
            total = jnp.sum(jnp.exp(counted - jnp.expand_dims(top, axis)), axis=axis)
            return {"max": top, "sum": total}

        return side(1), side(0)

    def merge(self, a: Stats, b: Stats) -> Stats:
        top = jnp.maximum(a["max"], b["max"])
        total = a["sum"] * jnp.exp(a["max"] - top) + b["sum"] * jnp.exp(b["max"] - top)
        return {"max": top, "sum": total}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        top = jax.lax.pmax(stats["max"], axes)  # [N]
        # Sums are over exp(logit - max): they need the same maximum before they are added.
        total = scatter_sum(stats["sum"] * jnp.exp(stats["max"] - top), axes)  # [n]
        return {"max": own_rows(top, axes), "sum": total}

    def finish(self, stats: Stats) -> Stats:
        return {"others": stats["max"] + jnp.log(stats["sum"]), "best": stats["max"]}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        counted = jnp.where(tile.negative, logits, EXCLUDED)
        r, t = local, rotating
        # d logsumexp / d logit = exp(logit - logsumexp), once for its row, once for its column.
        by_row = r.grads["others"][:, None] * jnp.exp(counted - r.stats["others"][:, None])
        by_column = t.grads["others"][None, :] * jnp.exp(counted - t.stats["others"][None, :])
        return by_row + by_column


@dataclasses.dataclass(frozen=True)
class SigmoidReduction(Reduction):
    """Sum over a rotating row of the costs of its negatives, softplus(logit).

    Finished: `cost`, 0 for local rows, so that every logit counts once; `best` as in
    `SoftmaxReduction`.
    """

    def start(self, side: SideRows) -> Stats:
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        return {"best": zeros + EXCLUDED, "cost": zeros}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        cost = jnp.where(tile.negative, jax.nn.softplus(logits), 0)
        rivals = jnp.where(tile.negative, logits, EXCLUDED)
        best = jnp.max(rivals, axis=1)
        local = {"best": best, "cost": jnp.zeros_like(best)}
        return local, {"best": jnp.max(rivals, axis=0), "cost": jnp.sum(cost, axis=0)}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        slope = jnp.where(tile.negative, jax.nn.sigmoid(logits), 0)
        return rotating.grads["cost"][None, :] * slope


def scatter_sum(x: jax.Array, axes: Axes) -> jax.Array:
    """Sums [N] over the devices of mesh axes; each keeps its rows [n]."""
    return jax.lax.psum_scatter(x, axes, tiled=True)


def own_rows(x: jax.Array, axes: Axes) -> jax.Array:
    """Returns this device's rows [n] of an [N] array."""
    rows = x.shape[0] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * rows, rows)
