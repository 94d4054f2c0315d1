"""A loss over all pairs of your own: two margins, one for pairs and one for everything else.

    big-retrieval train --config=examples/margins.py:runlocal

Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping" (2006), with scores in
place of distances:

  L = sum_i [positive - s(q_i, d_i)]+^2 + sum_(i != j) [s(q_i, d_j) - negative]+^2

over the global batch, divided by the number of pairs. A matrix of all scores would take batch x
batch numbers on one device. Instead, a `Reduction` says three things: what the loss reads of one
tile of the matrix, how two such readings are merged, and what the gradient of a tile is. The core
computes the tiles one by one, on any mesh, with gather or ring, and never holds the matrix.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.pairwise import PairBatch, mean
from big_retrieval.losses.tiles import Axes, SavedRows, SideRows, Stats, Tile, scatter_sum


@config.register("loss")
@dataclass(frozen=True)
class Margins(config.PairLoss):
    """Squared hinges of pairs that score too low, and of others that score too high."""

    type: Literal["margins"] = "margins"
    positive: float = 0.8  # a pair that scores more costs nothing
    negative: float = 0.2  # nor does any other query and document that score less

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        yield from super().check(config, path)
        if self.positive <= self.negative:
            yield f"{path}.positive is {self.positive}; it must be above {path}.negative."

    def scalars(self) -> dict[str, float]:
        """None: the scores are compared as they are, without a logit scale."""
        return {}

    def __call__(self, context: Context) -> Result:
        """The loss, and the part of it that pairs have."""
        return self.sum_of_terms(context, self.pull_and_push)

    def pull_and_push(self, pairs: PairBatch) -> Result:
        """The loss [] of the embeddings of both sides, and `positive_loss`."""
        found, scores = pairs.statistics(SquaredExcess(self.negative))
        weights = jnp.where(pairs.counted["pair"], pairs.weights(scores), 0)
        pull = mean(jnp.square(jax.nn.relu(self.positive - scores)), weights)
        push = mean(found["query"]["cost"], weights)
        return pull + push, {"positive_loss": pull}


@dataclass(frozen=True)
class SquaredExcess:
    """The sum over the negatives of a query of [logit - above]+^2.

    A logit belongs to a document (local) and a query (rotating). It counts once, with its query, so
    that the statistic of documents stays 0.
    """

    above: float

    def start(self, side: SideRows) -> Stats:
        """Before the first tile."""
        return {"cost": jnp.zeros(side.embeddings.shape[:1], side.embeddings.dtype)}

    def read(self, logits: jax.Array, tile: Tile) -> tuple[Stats, Stats]:
        """Of a tile [R, T]: for its documents [R] and for its queries [T]."""
        cost = jnp.sum(jnp.square(self._excess(logits, tile)), axis=0)
        return {"cost": jnp.zeros_like(logits[:, 0])}, {"cost": cost}

    def _excess(self, logits: jax.Array, tile: Tile) -> jax.Array:
        return jnp.where(tile.negative, jax.nn.relu(logits - self.above), 0)

    def merge(self, a: Stats, b: Stats) -> Stats:
        """Of two sets of tiles."""
        return {"cost": a["cost"] + b["cost"]}

    def merge_devices(self, stats: Stats, axes: Axes) -> Stats:
        """Of all devices; each keeps its own rows."""
        return {"cost": scatter_sum(stats["cost"], axes)}

    def finish(self, stats: Stats) -> Stats:
        """What the loss reads."""
        return stats

    def pull(
        self, logits: jax.Array, tile: Tile, local: SavedRows, rotating: SavedRows
    ) -> jax.Array:
        """The gradient of a tile, from those of its queries' costs."""
        return rotating.grads["cost"][None, :] * 2 * self._excess(logits, tile)


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes, with the default loss beside. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.losses.margins = recipe.entry(Margins(), weight=0.1)
    return recipe.runlocal(c) if args.runlocal else c
