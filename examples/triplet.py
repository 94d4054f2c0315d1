"""A loss over all pairs of your own: the triplet loss with the hardest negatives of the batch.

    big-retrieval train --config=examples/triplet.py:runlocal

Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives" (2018):

  L = sum_i [margin + max_j s(q_i, d_j) - s(q_i, d_i)]+
          + [margin + max_j s(q_j, d_i) - s(q_i, d_i)]+

over all other rows j of the global batch. Writing this with a matrix of all scores would take
batch x batch numbers on one device. A `Reduction` says instead what the loss reads of one tile of
scores, how two such readings merge, and what the gradient of a tile is; the core computes the tiles
one by one, on any mesh, with gather or ring, and never holds the matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.losses.function import Context, Result
from big_retrieval.losses.pairs import PairLossFunction
from big_retrieval.losses.pairwise import PairBatch, accuracy
from big_retrieval.losses.tiles import EXCLUDED, Axes, SavedRows, SideRows, Tile, own_rows

Stats = Mapping[str, jax.Array]


@config.register("loss")
@dataclass(frozen=True)
class Triplet(config.PairLoss):
    """Hinge of the hardest negative of every row, in both directions."""

    type: Literal["triplet"] = "triplet"
    margin: config.NotNegative = 0.2  # by which a pair shall score above every negative
    reduction: Literal["sum", "mean"] = "sum"  # over the rows; the paper sums

    def build(self, config: config.Config, name: str) -> "TripletLoss":
        """What computes it."""
        return TripletLoss.make(self, config)


class TripletLoss(PairLossFunction[Triplet]):
    """What the training step calls."""

    def scalars(self) -> dict[str, float]:
        """None: the scores are compared as they are, without a logit scale."""
        return {}

    def bound(self, scalars):
        """Nothing to bound."""
        return dict(scalars)

    def __call__(self, context: Context) -> Result:
        """The loss and the share of rows whose pair scores above all negatives."""

        def loss(query: jax.Array, document: jax.Array, **given: Any) -> Result:
            return triplet_loss(query, document, self.part.margin, self.part.reduction, **given)

        return self.sum_of_terms(loss, context, "average", jnp.ones(()))


def triplet_loss(
    query: jax.Array, document: jax.Array, margin: float, reduction: str = "sum", **given: Any
) -> Result:
    """The loss [] of embeddings [B, M, N] of both sides, and `accuracy`.

    Args:
      query: row i belongs to row i of `document`.
      document: of the same shape.
      margin: see `Triplet`.
      reduction: see `Triplet`.
      **given: further arguments of `PairBatch`: topology, valid rows, weights, hard negatives, ...
    """
    pairs = PairBatch(query, document, **given)
    found, positive = pairs.statistics(Hardest())
    counted = pairs.labels.pairs_counted()
    weights = jnp.where(counted, pairs.weights(positive), 0)
    hinges = [
        jax.nn.relu(margin + found[side]["best"] - positive) for side in ("query", "document")
    ]
    total = jnp.sum(weights * (hinges[0] + hinges[1]))
    if reduction == "mean":
        total = total / jnp.maximum(jnp.sum(weights), 1e-12)
    return total, {"accuracy": accuracy(found, positive, counted, ("query", "document"))}


@dataclass(frozen=True)
class Hardest:
    """The largest negative of every row, and where it is.

    `place` is the number of the row that it is the score with, as a float, so that it may have a
    (useless) gradient; exact below 2**24. Of equal scores the lowest number counts, so that the
    gradient is the same in whatever order tiles and devices come.
    """

    def start(self, side: SideRows) -> Stats:
        """Before the first tile."""
        none = jnp.full(side.embeddings.shape[:1], EXCLUDED, side.embeddings.dtype)
        return {"best": none, "place": jnp.full_like(none, jnp.inf)}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """Of a tile [R, T]: for its rows [R] and for its columns [T]."""
        scores = jnp.where(tile.negative, logits, EXCLUDED)

        def along(axis: int, numbers: jax.Array) -> Stats:
            best = jnp.max(scores, axis=axis)
            hit = (scores == jnp.expand_dims(best, axis)) & tile.negative
            place = jnp.where(hit, jnp.expand_dims(numbers, 1 - axis), jnp.inf)
            return {"best": best, "place": jnp.min(place, axis=axis)}

        rows, columns = (x.astype(logits.dtype) for x in (tile.rows, tile.columns))
        return along(1, columns), along(0, rows)

    def merge(self, a: Stats, b: Stats) -> Stats:
        """Of two sets of tiles."""
        first = (a["best"] > b["best"]) | ((a["best"] == b["best"]) & (a["place"] <= b["place"]))
        return {name: jnp.where(first, a[name], b[name]) for name in ("best", "place")}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """Of all devices; each keeps its own rows."""
        best = jax.lax.pmax(stats["best"], axes)
        place = jnp.where(stats["best"] == best, stats["place"], jnp.inf)
        place = jax.lax.pmin(place, axes)
        return {"best": own_rows(best, axes), "place": own_rows(place, axes)}

    def finish(self, stats: Stats) -> Stats:
        """What the loss reads."""
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        """The gradient of a tile: that of each row goes to the entry of its hardest negative."""
        rows, columns = (x.astype(logits.dtype) for x in (tile.rows, tile.columns))
        of_rows = local.stats["place"][:, None] == columns[None, :]
        of_columns = rotating.stats["place"][None, :] == rows[:, None]
        grads = local.grads["best"][:, None] * of_rows
        grads = grads + rotating.grads["best"][None, :] * of_columns
        return jnp.where(tile.negative, grads, 0)


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes, with the default loss beside. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    # From random weights the hardest negatives alone pull everything into one embedding.
    c.losses.main.logit_scale.init = 5.0
    c.losses.hardest = recipe.entry(Triplet(), reduction="mean", weight=0.5)
    return recipe.runlocal(c) if args.runlocal else c
