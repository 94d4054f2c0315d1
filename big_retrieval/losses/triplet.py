"""The triplet loss over all pairs of a batch, with the hardest negative of a row or with all.

Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives" (2018):

  L = sum_i [margin + max_j s(q_i, d_j) - s(q_i, d_i)]+
          + [margin + max_j s(q_j, d_i) - s(q_i, d_i)]+

over all other rows j of the global batch; with all negatives, max_j stands before the bracket and
is a sum. Scores are computed tile by tile (`tiles.py`), so that no matrix of them is ever held.
"""

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import Triplet
from big_retrieval.losses.function import Context, Result, Scalars
from big_retrieval.losses.pairs import PairLossFunction
from big_retrieval.losses.pairwise import PairBatch, accuracy
from big_retrieval.losses.tiles import (
    EXCLUDED,
    Axes,
    SavedRows,
    SideRows,
    Stats,
    Tile,
    own_rows,
    scatter_sum,
)

SIDES = ("query", "document")


class TripletLoss(PairLossFunction[Triplet]):
    """See `triplet_loss`."""

    def scalars(self) -> dict[str, float]:
        """None: the scores are compared as they are, without a logit scale."""
        return {}

    def bound(self, scalars: Scalars) -> dict[str, jax.Array]:
        """Nothing to bound."""
        return dict(scalars)

    def __call__(self, context: Context) -> Result:
        """The loss and the share of rows whose pair scores above all negatives."""
        part = self.part

        def loss(query: jax.Array, document: jax.Array, **given: Any) -> Result:
            how = part.margin, part.negatives, part.reduction
            return triplet_loss(query, document, *how, **given)

        return self.sum_of_terms(loss, context, "average", jnp.ones(()))


def triplet_loss(
    query: jax.Array,
    document: jax.Array,
    margin: float,
    which: Literal["hardest", "all"] = "hardest",
    reduction: Literal["sum", "mean"] = "sum",
    **given: Any,
) -> Result:
    """The loss [] of embeddings [B, M, N] of both sides, and `accuracy`.

    Args:
      query: row i belongs to row i of `document`.
      document: of the same shape.
      margin: see `Triplet`.
      which: negatives; `Triplet.negatives`.
      reduction: see `Triplet`; a mean is weighted, and of the sum of both directions.
      **given: further arguments of `PairBatch`: topology, valid rows, weights, hard negatives, ...
    """
    pairs = PairBatch(query, document, **given)
    counted = pairs.labels.pairs_counted()
    if which == "hardest":
        found, positive = pairs.statistics(Hardest())
        hinges = [jax.nn.relu(margin + found[side]["best"] - positive) for side in SIDES]
    else:
        # Hinges are added up within tiles, which then have to know the scores of their rows' pairs.
        own = jnp.where(counted, pairs.topology.paired(query, document), 0)
        known = PairBatch(query, document, **{**given, "weight": own})
        found, positive = known.statistics(Hinges(margin))
        # The tiles do not differentiate by the pairs' scores: a hinge above 0 has the slope -1.
        lower = jax.lax.stop_gradient(positive) - positive
        hinges = [
            found[side]["cost"] + jax.lax.stop_gradient(found[side]["count"]) * lower
            for side in SIDES
        ]
    weights = jnp.where(counted, pairs.weights(positive), 0)
    total = jnp.sum(weights * (hinges[0] + hinges[1]))
    if reduction == "mean":
        total = total / jnp.maximum(jnp.sum(weights), 1e-12)
    return total, {"accuracy": accuracy(found, positive, counted, SIDES)}


@dataclass(frozen=True)
class Hardest:
    """The largest negative of every row, and where it is; a `Reduction`.

    `place` is the number of the row that it is the score with, as a float, so that it may have a
    (useless) gradient; exact below 2**24. Of equal scores the lowest number counts, so that the
    gradient is the same in whatever order tiles and devices come.
    """

    def start(self, side: SideRows) -> Stats:
        """See `Reduction.start`."""
        none = jnp.full(side.embeddings.shape[:1], EXCLUDED, side.embeddings.dtype)
        return {"best": none, "place": jnp.full_like(none, jnp.inf)}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """See `Reduction.read`."""
        scores = jnp.where(tile.negative, logits, EXCLUDED)

        def along(axis: int, numbers: jax.Array) -> Stats:
            best = jnp.max(scores, axis=axis)
            hit = (scores == jnp.expand_dims(best, axis)) & tile.negative
            place = jnp.where(hit, jnp.expand_dims(numbers, 1 - axis), jnp.inf)
            return {"best": best, "place": jnp.min(place, axis=axis)}

        rows, columns = (x.astype(logits.dtype) for x in (tile.rows, tile.columns))
        return along(1, columns), along(0, rows)

    def merge(self, a: Stats, b: Stats) -> Stats:
        """See `Reduction.merge`."""
        first = (a["best"] > b["best"]) | ((a["best"] == b["best"]) & (a["place"] <= b["place"]))
        return {name: jnp.where(first, a[name], b[name]) for name in ("best", "place")}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """See `Reduction.merge_devices`."""
        best = jax.lax.pmax(stats["best"], axes)
        place = jnp.where(stats["best"] == best, stats["place"], jnp.inf)
        place = jax.lax.pmin(place, axes)
        return {"best": own_rows(best, axes), "place": own_rows(place, axes)}

    def finish(self, stats: Stats) -> Stats:
        """See `Reduction.finish`."""
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        """See `Reduction.pull`: each row's gradient goes to the entry of its hardest negative."""
        rows, columns = (x.astype(logits.dtype) for x in (tile.rows, tile.columns))
        of_rows = local.stats["place"][:, None] == columns[None, :]
        of_columns = rotating.stats["place"][None, :] == rows[:, None]
        grads = local.grads["best"][:, None] * of_rows
        grads = grads + rotating.grads["best"][None, :] * of_columns
        return jnp.where(tile.negative, grads, 0)


@dataclass(frozen=True)
class Hinges:
    """The sum over the negatives of a row of [margin + logit - own]+; a `Reduction`.

    `own`, the score of the row's pair, comes as the weight of the row (`Labels.weight`), which has
    no gradient. Finished: `cost`, the sum; `count`, how many hinges are above 0, without gradient;
    `best`, the largest negative, without gradient.
    """

    margin: float

    def start(self, side: SideRows) -> Stats:
        """See `Reduction.start`."""
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        return {"best": zeros + EXCLUDED, "cost": zeros, "count": zeros}

    def _excess(self, logits: jax.Array, tile: Tile) -> tuple[jax.Array, jax.Array]:
        """What is above 0 of a tile's hinges, [R, T]: by the pairs of its rows and its columns."""
        assert tile.row_weight is not None
        assert tile.column_weight is not None
        own = tile.row_weight[:, None], tile.column_weight[None, :]
        row, column = (jnp.where(tile.negative, self.margin + logits - x, 0) for x in own)
        return jax.nn.relu(row), jax.nn.relu(column)

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """See `Reduction.read`."""
        rivals = jnp.where(tile.negative, logits, EXCLUDED)

        def along(axis: int, excess: jax.Array) -> Stats:
            count = jnp.sum((excess > 0).astype(logits.dtype), axis=axis)
            cost = jnp.sum(excess, axis=axis)
            return {"best": jnp.max(rivals, axis=axis), "cost": cost, "count": count}

        of_rows, of_columns = self._excess(logits, tile)
        return along(1, of_rows), along(0, of_columns)

    def merge(self, a: Stats, b: Stats) -> Stats:
        """See `Reduction.merge`."""
        sums = {name: a[name] + b[name] for name in ("cost", "count")}
        return {"best": jnp.maximum(a["best"], b["best"]), **sums}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """See `Reduction.merge_devices`."""
        sums = {name: scatter_sum(stats[name], axes) for name in ("cost", "count")}
        return {"best": own_rows(jax.lax.pmax(stats["best"], axes), axes), **sums}

    def finish(self, stats: Stats) -> Stats:
        """See `Reduction.finish`."""
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        """See `Reduction.pull`: a hinge above 0 has the slope 1."""
        of_rows, of_columns = self._excess(logits, tile)
        grads = local.grads["cost"][:, None] * (of_rows > 0)
        return grads + rotating.grads["cost"][None, :] * (of_columns > 0)
