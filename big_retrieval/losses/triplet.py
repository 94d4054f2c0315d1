"""The triplet loss over all pairs of a batch, with the hardest or all negatives of a row.

Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives" (2018):

  L = sum_i [margin + max_j s(q_i, d_j) - s(q_i, d_i)]+
          + [margin + max_j s(q_j, d_i) - s(q_i, d_i)]+

over all other rows j of the global batch, with [x]+ = max(0, x). With all negatives, a sum over j
before the bracket replaces max_j. Scores are computed tile by tile (`tiles.py`), without a matrix
of all scores.
"""

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config import Config, NotNegative, register
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.pairs import PairLoss
from big_retrieval.losses.pairwise import PairBatch, accuracy
from big_retrieval.losses.tiles import (
    EXCLUDED,
    Axes,
    Reduction,
    SavedRows,
    SideRows,
    Stats,
    Tile,
    own_rows,
)

SIDES = ("query", "document")


@register("loss")
@dataclass(frozen=True)
class Triplet(PairLoss):
    """Hinges [margin + s(negative) - s(pair)]+ of every row in both directions (VSE++).

    The scores are not scaled; `logit_scale` is not read.
    """

    type: Literal["triplet"] = "triplet"
    margin: NotNegative = 0.2  # a pair should score above its negatives by this margin
    negatives: Literal["hardest", "all"] = "hardest"  # in the global batch; "all" adds up hinges
    reduction: Literal["sum", "mean"] = "sum"  # over the rows; LTD and VSE++ use the sum

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if self.false_negatives == "positives":
            yield (
                f"{path}.false_negatives is 'positives', but a triplet has one positive; set it to "
                "'mask', which leaves false negatives out."
            )

    def scalars(self) -> dict[str, float]:
        return {}

    def __call__(self, context: Context) -> Result:
        return self.sum_of_terms(context, functools.partial(triplet_loss, self))


def triplet_loss(config: Triplet, pairs: PairBatch) -> Result:
    """Returns the loss [], over both directions, weighted by the pairs' weights, and metrics.

    `accuracy` is the share of rows whose pair scores above all negatives.
    """
    margin, counted = config.margin, pairs.counted["pair"]
    if config.negatives == "hardest":
        stats, positive = pairs.statistics(Hardest())
        hinges = [jax.nn.relu(margin + stats[side]["best"] - positive) for side in SIDES]
    else:
        # Tiles add up the hinges, so they need the scores of their rows' pairs.
        scores = jnp.where(counted, pairs.topology.paired(pairs.query_values, pairs.document), 0)
        scored = dataclasses.replace(pairs, weight=scores)
        stats, positive = scored.statistics(Hinges(margin))
        # The tiles give no gradient to the pairs' scores: a hinge above 0 has the slope -1.
        lower = jax.lax.stop_gradient(positive) - positive
        hinges = [
            stats[side]["cost"] + jax.lax.stop_gradient(stats[side]["count"]) * lower
            for side in SIDES
        ]
    weights = jnp.where(counted, pairs.weights(positive), 0)
    total = jnp.sum(weights * (hinges[0] + hinges[1]))
    if config.reduction == "mean":
        total = total / jnp.maximum(jnp.sum(weights), 1e-12)
    return total, {"accuracy": accuracy(stats, positive, counted, SIDES)}


@dataclass(frozen=True)
class Hardest(Reduction):
    """The largest negative of every row, and its index.

    `place` is the index of the other side's row. It is a float, so that it may have an (unused)
    gradient; exact below 2**24. Among equal scores the lowest index counts, so that the gradient
    does not depend on the order of tiles and devices.
    """

    def start(self, side: SideRows) -> Stats:
        none = jnp.full(side.embeddings.shape[:1], EXCLUDED, side.embeddings.dtype)
        return {"best": none, "place": jnp.full_like(none, jnp.inf)}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        scores = jnp.where(tile.negative, logits, EXCLUDED)

        def along(axis: int, indices: jax.Array) -> Stats:
            best = jnp.max(scores, axis=axis)
            hit = (scores == jnp.expand_dims(best, axis)) & tile.negative
            index = jnp.where(hit, jnp.expand_dims(indices, 1 - axis), jnp.inf)
            return {"best": best, "place": jnp.min(index, axis=axis)}

        rows, columns = (x.index.astype(logits.dtype) for x in (tile.local, tile.rotating))
        return along(1, columns), along(0, rows)

    def merge(self, a: Stats, b: Stats) -> Stats:
        first = (a["best"] > b["best"]) | ((a["best"] == b["best"]) & (a["place"] <= b["place"]))
        return {name: jnp.where(first, a[name], b[name]) for name in ("best", "place")}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        best = jax.lax.pmax(stats["best"], axes)
        index = jnp.where(stats["best"] == best, stats["place"], jnp.inf)
        index = jax.lax.pmin(index, axes)
        return {"best": own_rows(best, axes), "place": own_rows(index, axes)}

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        """Gives each row's gradient to the entry of its hardest negative."""
        rows, columns = (x.index.astype(logits.dtype) for x in (tile.local, tile.rotating))
        of_rows = local.stats["place"][:, None] == columns[None, :]
        of_columns = rotating.stats["place"][None, :] == rows[:, None]
        grads = local.grads["best"][:, None] * of_rows
        grads = grads + rotating.grads["best"][None, :] * of_columns
        return jnp.where(tile.negative, grads, 0)


@dataclass(frozen=True)
class Hinges(Reduction):
    """Sum over the negatives of a row of max(0, margin + logit - score of its pair).

    The weight of a row (`SideRows.weight`) is the score of its pair, without gradient.

    Finished statistics:
      `cost`: the sum.
      `count`: number of terms above 0, without gradient.
      `best`: largest logit of a negative, without gradient.
    """

    margin: float

    def start(self, side: SideRows) -> Stats:
        zeros = jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)
        return {"best": zeros + EXCLUDED, "cost": zeros, "count": zeros}

    def _excess(self, logits: jax.Array, tile: Tile) -> tuple[jax.Array, jax.Array]:
        """Returns a tile's hinges [R, T] with the pairs of its rows, and of its columns."""
        assert tile.local.weight is not None
        assert tile.rotating.weight is not None
        scores = tile.local.weight[:, None], tile.rotating.weight[None, :]
        row, column = (jnp.where(tile.negative, self.margin + logits - x, 0) for x in scores)
        return jax.nn.relu(row), jax.nn.relu(column)

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        rivals = jnp.where(tile.negative, logits, EXCLUDED)

        def along(axis: int, excess: jax.Array) -> Stats:
            count = jnp.sum((excess > 0).astype(logits.dtype), axis=axis)
            cost = jnp.sum(excess, axis=axis)
            return {"best": jnp.max(rivals, axis=axis), "cost": cost, "count": count}

        of_rows, of_columns = self._excess(logits, tile)
        return along(1, of_rows), along(0, of_columns)

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        of_rows, of_columns = self._excess(logits, tile)
        grads = local.grads["cost"][:, None] * (of_rows > 0)
        return grads + rotating.grads["cost"][None, :] * (of_columns > 0)
