"""What one tile of logits adds to a loss, and the gradient that a loss gives back for it.

A tile is a block of the matrix of logits of the global batch. Its rows are local (documents, which
stay on their device), its columns rotating (queries, which visit all devices); a logit is
logit_scale * score (+ bias). The positives, on the diagonal of the matrix, do not count in tiles:
the losses add them from `Topology.paired`. A `Reduction` says what a loss reads of tiles:
statistics of each row that merge in any order, so the order of tiles, devices and hops of a ring
does not matter.
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

# Finite, so that a row without any counted logit gives a finite number (of weight 0), not NaN.
EXCLUDED = -1e30


@flax.struct.dataclass
class SideRows:
    """Rows of one side, n of them.

    Attributes:
      embeddings: [n, M, N] or [n, V]; of sparse rows the values [n, K].
      index: int32 [n], index of the row's pair in the global batch; below 0 for extra negatives.
      counted: bool [n]; False for padding.
      query_id: int32 [n] or None; a negative number is no id. Of documents [n] or [n, K]: all
        queries that the document is known to answer.
      document_id: int32 [n] or None; a negative number is no id. Of queries [n] or [n, K]: all
        documents that are known to answer the query.
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
      counted: bool [R, T]; negatives, and false negatives that count as positives.
      negative: bool [R, T].
      rows: int32 [R], a unique number of each local row: the index of its pair in the global
        batch, or of an extra negative a number below 0.
      columns: int32 [T], the same of the rotating rows.
      row_weight: [R] or None, the weight of each local row's pair.
      column_weight: [T] or None, the same of the rotating rows.
      share: [R, T] or None; weights of the false negatives that count as positives, 0
        elsewhere.
    """

    counted: jax.Array
    negative: jax.Array
    rows: jax.Array
    columns: jax.Array
    row_weight: jax.Array | None = None
    column_weight: jax.Array | None = None
    share: jax.Array | None = None


def classify(local: SideRows, rotating: SideRows, false_negatives: FalseNegatives) -> Tile:
    """Sorts the entries of a tile into negatives, false negatives and those that do not count.

    An entry of two different pairs is a false negative by id where the query is one of the
    document's own pair, or the document one of the query's own pair.

    Args:
      local: documents.
      rotating: queries.
    """
    r, t = local, rotating
    positive = r.index[:, None] == t.index[None, :]  # [R, T]
    counted = r.counted[:, None] & t.counted[None, :] & ~positive
    query, document = _among(t.query_id, r.query_id), _among(r.document_id, t.document_id)
    query = query if query is None else query.T  # [R, T]
    rows = r.index, t.index, r.weight, t.weight
    if false_negatives == "keep" or (query is None and document is None):
        return Tile(counted, counted, *rows)
    none = jnp.zeros((), bool)
    query, document = none if query is None else query, none if document is None else document
    false_negative = counted & (query | document)
    negative = counted & ~false_negative
    if false_negatives == "mask":
        return Tile(negative, negative, *rows)
    dtype = r.embeddings.dtype
    ones = jnp.ones((), dtype)
    # The false negative (q_t, d_r) is pair r where the queries are the same, pair t where the
    # documents are; where both are, their weights should be equal, and the mean does not care which
    # is meant.
    of_r = query * (ones if r.weight is None else r.weight[:, None])
    of_t = document * (ones if t.weight is None else t.weight[None, :])
    pairs = jnp.maximum(query.astype(dtype) + document, 1)
    share = jnp.where(false_negative, (of_r + of_t) / pairs, 0)
    return Tile(counted, negative, *rows, share)


def _among(one: jax.Array | None, several: jax.Array | None) -> jax.Array | None:
    """Which ids [m] are those, or among those, of other rows [n] or [n, K]: bool [m, n]."""
    if one is None or several is None:
        return None
    columns = [several] if several.ndim == 1 else [several[:, k] for k in range(several.shape[1])]
    found = functools.reduce(jnp.logical_or, (one[:, None] == each[None, :] for each in columns))
    # A negative number is no id: two rows without one are not the same query or document.
    return found & (one >= 0)[:, None]


class Reduction(Protocol):
    """How a loss reads tiles. All methods are pure and know of no other tile, device or hop."""

    def start(self, side: SideRows) -> Stats:
        """Statistics [n] of rows before the first tile."""
        ...

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """Statistics of a tile for its local rows [R] and its rotating rows [T]."""
        ...

    def merge(self, a: Stats, b: Stats) -> Stats:
        """Statistics of two sets of tiles together."""
        ...

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """Merges [N] statistics over devices; each keeps its own [n] rows."""
        ...

    def finish(self, stats: Stats) -> Stats:
        """What the loss reads of the statistics."""
        ...

    def pull(
        self, logits: jax.Array, tile: Tile, local: "SavedRows", rotating: "SavedRows"
    ) -> jax.Array:
        """The gradient of a tile's logits, [R, T], from those of the finished statistics."""
        ...


@flax.struct.dataclass
class SavedRows:
    """Finished statistics of some rows and the gradients that arrived for them, [n] each."""

    stats: Any
    grads: Any


@dataclasses.dataclass(frozen=True)
class SoftmaxReduction:
    """Log-sum-exp over the logits of a row.

    Finished: `others`, the log-sum-exp of all counted logits; `best`, the
    largest logit of a negative, without gradient; with `positives` also `dot`, the sum of share *
    logit over the false negatives that count as positives, and `share`, the sum of their shares.
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
            # In a row without any counted logit every entry adds exp(0) = 1. Merged with a tile
            # that has a counted one, this becomes 1 * exp(EXCLUDED - max) = 0.
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
        # Sums are over exp(logit - max), so they can only be added for one and the same maximum.
        total = scatter_sum(stats["sum"] * jnp.exp(stats["max"] - top), axes)  # [n]
        out = {"max": own_rows(top, axes), "sum": total}
        if self.positives:
            out["best"] = own_rows(jax.lax.pmax(stats["best"], axes), axes)
            out |= {name: scatter_sum(stats[name], axes) for name in ("dot", "share")}
        return out

    def finish(self, stats: Stats) -> Stats:
        others = stats["max"] + jnp.log(stats["sum"])
        # Where no false negative counts as a positive, every counted logit is a negative's.
        out = {"others": others, "best": stats["best" if self.positives else "max"]}
        return out | {name: stats[name] for name in ("dot", "share") if self.positives}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        counted = jnp.where(tile.counted, logits, EXCLUDED)
        r, t = local, rotating
        # A row without any counted logit has `others` near EXCLUDED, and with it gradient 0.
        # d logsumexp / d logit = exp(logit - logsumexp), once for its row, once for its column.
        by_row = r.grads["others"][:, None] * jnp.exp(counted - r.stats["others"][:, None])
        by_column = t.grads["others"][None, :] * jnp.exp(counted - t.stats["others"][None, :])
        out = by_row + by_column
        if tile.share is not None:
            out = out + tile.share * (r.grads["dot"][:, None] + t.grads["dot"][None, :])
        return out


@dataclasses.dataclass(frozen=True)
class SigmoidReduction:
    """The sum over a rotating row of softplus(logit) and share * softplus(-logit).

    The first is a negative's cost -log sigmoid(-logit), the second that of a false negative which
    counts as a positive. Finished:
    `cost` (of rotating rows only, so every logit counts once) and `best` as in `SoftmaxReduction`.

    Attributes:
      inside: the latter costs softplus(-share * logit) instead.
    """

    inside: bool = False

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

    def merge(self, a: Stats, b: Stats) -> Stats:
        return {"best": jnp.maximum(a["best"], b["best"]), "cost": a["cost"] + b["cost"]}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        best = own_rows(jax.lax.pmax(stats["best"], axes), axes)
        return {"best": best, "cost": scatter_sum(stats["cost"], axes)}

    def finish(self, stats: Stats) -> Stats:
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        del local
        slope = jnp.where(tile.negative, jax.nn.sigmoid(logits), 0)
        if tile.share is not None:
            factor = tile.share if self.inside else 1
            slope = slope - tile.share * jax.nn.sigmoid(-factor * logits)
        return rotating.grads["cost"][None, :] * slope


def positive_cost(logits: jax.Array, weight: jax.Array, inside: bool) -> jax.Array:
    """What positives cost in the sigmoid loss: w softplus(-x), or inside softplus(-w x).

    A weight of 0 costs nothing in both forms.

    Args:
      logits: x.
      weight: w, of the same shape, not negative.
      inside: as GCL's Eq. 6 is written.
    """
    if inside:
        return jnp.where(weight > 0, jax.nn.softplus(-weight * logits), 0)
    return weight * jax.nn.softplus(-logits)


def scatter_sum(x: jax.Array, axes: Axes) -> jax.Array:
    """Sums [N] over the devices of mesh axes; each keeps its rows [n]."""
    return jax.lax.psum_scatter(x, axes, tiled=True)


def own_rows(x: jax.Array, axes: Axes) -> jax.Array:
    """This device's rows [n] of an [N] array."""
    rows = x.shape[0] // jax.lax.axis_size(axes)
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axes) * rows, rows)
