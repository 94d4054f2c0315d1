"""Reductions compute the statistics that a loss needs from tiles of logits, and their gradients.

A tile is a block of the matrix of logits of the global batch; a logit is logit_scale * score
(+ bias). The rows of a tile are "local": documents, which stay on their device. Its columns are
"rotating": queries, which visit all devices. Tiles do not count the positives, on the diagonal of
the matrix: the losses add them from `Topology.paired`. The statistics of a `Reduction` can be
merged in any order, so the order of tiles, devices and hops of a ring does not matter.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import flax.struct
import jax
import jax.numpy as jnp

FalseNegatives = Literal["keep", "mask", "positives"]
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
      counted: bool [R, T]; True for negatives, and for false negatives that count as positives.
      negative: bool [R, T]; True for negatives only.
      local: R rows of the tile.
      rotating: T columns of the tile.
      share: [R, T] or None; weights of the false negatives that count as positives, 0 elsewhere.
    """

    counted: jax.Array
    negative: jax.Array
    local: SideRows
    rotating: SideRows
    share: jax.Array | None = None


def classify(local: SideRows, rotating: SideRows, false_negatives: FalseNegatives) -> Tile:
    """Labels the entries of a tile as negatives, false negatives or not counted.

    An entry combines the document of one pair with the query of another pair. It is a false
    negative if the query's id is among the document's `query_id`, or the document's id among the
    query's `document_id`.

    Args:
      local: documents.
      rotating: queries.
    """
    r, t = local, rotating
    positive = r.index[:, None] == t.index[None, :]  # [R, T]
    counted = r.counted[:, None] & t.counted[None, :] & ~positive
    query, document = _among(t.query_id, r.query_id), _among(r.document_id, t.document_id)
    query = query if query is None else query.T  # [R, T]
    if false_negatives == "keep" or (query is None and document is None):
        return Tile(counted, counted, r, t)
    none = jnp.zeros((), bool)
    query, document = none if query is None else query, none if document is None else document
    false_negative = counted & (query | document)
    negative = counted & ~false_negative
    if false_negatives == "mask":
        return Tile(negative, negative, r, t)
    dtype = r.embeddings.dtype
    ones = jnp.ones((), dtype)
    # The false negative (q_t, d_r) equals pair r if its query is q_r, and pair t if its document is
    # d_t. If both hold, the two weights should be equal; the code takes their mean.
    of_r = query * (ones if r.weight is None else r.weight[:, None])
    of_t = document * (ones if t.weight is None else t.weight[None, :])
    pairs = jnp.maximum(query.astype(dtype) + document, 1)
    share = jnp.where(false_negative, (of_r + of_t) / pairs, 0)
    return Tile(counted, negative, r, t, share)


def _among(one: jax.Array | None, several: jax.Array | None) -> jax.Array | None:
    """Returns True if an id of `one` [m] is among the ids of a row, [n] or [n, K]: bool [m, n]."""
    if one is None or several is None:
        return None
    columns = [several] if several.ndim == 1 else [several[:, k] for k in range(several.shape[1])]
    equal = functools.reduce(jnp.logical_or, (one[:, None] == ids[None, :] for ids in columns))
    return equal & (one >= 0)[:, None]  # two unknown ids are not equal


class Reduction(Protocol):
    """Computation of row statistics from tiles, for a loss. All methods are pure.

    The inherited `merge` and `merge_devices` take the maximum of `best`, which must exist, and the
    sum of every other statistic.
    """

    def start(self, side: SideRows) -> Stats:
        """Returns the statistics [n] of rows before the first tile."""
        ...

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """Returns the statistics of a tile for its local rows [R] and its rotating rows [T]."""
        ...

    def merge(self, a: Stats, b: Stats) -> Stats:
        """Merges the statistics of two sets of tiles."""
        sums = {name: a[name] + b[name] for name in a if name != "best"}
        return {"best": jnp.maximum(a["best"], b["best"]), **sums}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """Merges statistics [N] over devices; each device keeps the statistics [n] of its rows."""
        sums = {name: scatter_sum(x, axes) for name, x in stats.items() if name != "best"}
        return {"best": own_rows(jax.lax.pmax(stats["best"], axes), axes), **sums}

    def finish(self, stats: Stats) -> Stats:
        """Returns the statistics that the loss reads, from merged ones."""
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
    """Log-sum-exp over the logits of a row.

    Finished statistics:
      `others`: log-sum-exp of all counted logits.
      `best`: largest logit of a negative, without gradient.
      `dot` (with `positives`): sum of share * logit over false negatives that count as positives.
      `share` (with `positives`): sum of their shares.
    """

    positives: bool = False

    def start(self, side: SideRows) -> Stats:
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        stats = {"max": zeros + EXCLUDED, "sum": zeros}
        return stats | self._positives(zeros + EXCLUDED, zeros, zeros)

    def _positives(self, best: jax.Array, dot: jax.Array, share: jax.Array) -> dict[str, jax.Array]:
        return {"best": best, "dot": dot, "share": share} if self.positives else {}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        counted = jnp.where(tile.counted, logits, EXCLUDED)

        def side(axis: int) -> dict[str, jax.Array]:
            top = jnp.max(counted, axis=axis)
            # In a row without counted logits, every entry adds exp(0) = 1. Merging with counted
            # logits removes this sum: it is multiplied by exp(EXCLUDED - max) = 0.
            total = jnp.sum(jnp.exp(counted - jnp.expand_dims(top, axis)), axis=axis)
            stats = {"max": top, "sum": total}
            if tile.share is None:
                return stats
            best = jnp.max(jnp.where(tile.negative, logits, EXCLUDED), axis=axis)
            dot = jnp.sum(tile.share * logits, axis=axis)
            return stats | self._positives(best, dot, jnp.sum(tile.share, axis=axis))

        return side(1), side(0)

    def merge(self, a: Stats, b: Stats) -> Stats:
        top = jnp.maximum(a["max"], b["max"])
        total = a["sum"] * jnp.exp(a["max"] - top) + b["sum"] * jnp.exp(b["max"] - top)
        out = {"max": top, "sum": total}
        if self.positives:
            out["best"] = jnp.maximum(a["best"], b["best"])
            out |= {name: a[name] + b[name] for name in ("dot", "share")}
        return out

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        top = jax.lax.pmax(stats["max"], axes)  # [N]
        # Sums are over exp(logit - max): they need the same maximum before they are added.
        total = scatter_sum(stats["sum"] * jnp.exp(stats["max"] - top), axes)  # [n]
        out = {"max": own_rows(top, axes), "sum": total}
        if self.positives:
            out["best"] = own_rows(jax.lax.pmax(stats["best"], axes), axes)
            out |= {name: scatter_sum(stats[name], axes) for name in ("dot", "share")}
        return out

    def finish(self, stats: Stats) -> Stats:
        log_sum = stats["max"] + jnp.log(stats["sum"])
        # If no false negative counts as a positive, every counted logit belongs to a negative.
        out = {"others": log_sum, "best": stats["best" if self.positives else "max"]}
        return out | {name: stats[name] for name in ("dot", "share") if self.positives}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        counted = jnp.where(tile.counted, logits, EXCLUDED)
        r, t = local, rotating
        # d logsumexp / d logit = exp(logit - logsumexp), once for its row, once for its column.
        by_row = r.grads["others"][:, None] * jnp.exp(counted - r.stats["others"][:, None])
        by_column = t.grads["others"][None, :] * jnp.exp(counted - t.stats["others"][None, :])
        out = by_row + by_column
        if tile.share is not None:
            out = out + tile.share * (r.grads["dot"][:, None] + t.grads["dot"][None, :])
        return out


@dataclasses.dataclass(frozen=True)
class SigmoidReduction(Reduction):
    """Sum of the sigmoid costs of the logits of a row.

    A negative costs softplus(logit) = -log sigmoid(-logit). A false negative that counts as a
    positive costs share * softplus(-logit).

    Finished statistics:
      `cost`: the sum for rotating rows, and 0 for local rows, so that every logit counts once.
      `best`: as in `SoftmaxReduction`.
    """

    inside: bool = False  # see `positive_cost`

    def start(self, side: SideRows) -> Stats:
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        return {"best": zeros + EXCLUDED, "cost": zeros}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        cost = jnp.where(tile.negative, jax.nn.softplus(logits), 0)
        if tile.share is not None:
            cost = cost + positive_cost(logits, tile.share, self.inside)
        rivals = jnp.where(tile.negative, logits, EXCLUDED)
        best = jnp.max(rivals, axis=1)
        local = {"best": best, "cost": jnp.zeros_like(best)}
        return local, {"best": jnp.max(rivals, axis=0), "cost": jnp.sum(cost, axis=0)}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        slope = jnp.where(tile.negative, jax.nn.sigmoid(logits), 0)
        if tile.share is not None:
            factor = tile.share if self.inside else 1
            slope = slope - tile.share * jax.nn.sigmoid(-factor * logits)
        return rotating.grads["cost"][None, :] * slope


def positive_cost(logits: jax.Array, weight: jax.Array, inside: bool) -> jax.Array:
    """Returns the cost of positives in the sigmoid loss: w softplus(-x); 0 if w is 0.

    Args:
      logits: x.
      weight: w, of the same shape, not negative.
      inside: True for softplus(-w x), as in GCL's Eq. 6.
    """
    if inside:
        return jnp.where(weight > 0, jax.nn.softplus(-weight * logits), 0)
    return weight * jax.nn.softplus(-logits)


def scatter_sum(x: jax.Array, axes: Axes) -> jax.Array:
    """Sums [N] over the devices of mesh axes; each keeps its rows [n]."""
    return jax.lax.psum_scatter(x, axes, tiled=True)


def own_rows(x: jax.Array, axes: Axes) -> jax.Array:
    """Returns this device's rows [n] of an [N] array."""
    rows = x.shape[0] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * rows, rows)
