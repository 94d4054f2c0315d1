"""What is computed of the losses of latent target decoding; see `config/ltd.py`."""

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval.batch import Batch
from big_retrieval.config import InputTarget, LatentTarget
from big_retrieval.losses.function import Context, LossFunction, Result
from big_retrieval.losses.pairwise import mean
from big_retrieval.models.decoders import InputDecoder, TargetDecoder


@dataclass(frozen=True)
class LatentTargetLoss(LossFunction):
    """The mean distance of decoded embeddings from their targets.

    Attributes:
      part: the part of the configuration.
      name: of the loss, under which the decoder's outputs are found.
      pooled: whether the decoder reads the tower's vectors, see `decoder_input`.
      size: numbers of a target.
    """

    part: LatentTarget
    name: str
    pooled: bool
    size: int

    def module(self) -> nn.Module:
        """The decoder."""
        return TargetDecoder(self.part, self.size, self.pooled)

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have both embedding and target."""
        decoded = context.reps.extra[self.name]  # [B, size]
        target = context.batch.fields[self.part.target]["values"].astype(decoded.dtype)
        counted = rows_with(context.batch, (self.part.field, self.part.target))
        cost = DISTANCES[self.part.distance](decoded, target)  # [B]
        return mean(cost, counted.astype(cost.dtype)), {}


@dataclass(frozen=True)
class InputTargetLoss(LossFunction):
    """Minus the log-likelihood of a text's tokens, the mean over the texts.

    Attributes:
      part: the part of the configuration.
      name: of the loss, under which the decoder's outputs are found.
      pooled: whether the decoder reads the tower's vectors, see `decoder_input`.
      vocab_size: ids of the tokenizer.
    """

    part: InputTarget
    name: str
    pooled: bool
    vocab_size: int

    def module(self) -> nn.Module:
        """The decoder."""
        return InputDecoder(self.part, self.vocab_size, self.pooled)

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have the text."""
        cost = context.reps.extra[self.name]  # [B]
        counted = rows_with(context.batch, (self.part.field,))
        return mean(cost, counted.astype(cost.dtype)), {}


def rows_with(batch: Batch, fields: Sequence[str]) -> jax.Array:
    """bool [B]: the rows of a batch that are no padding and have a value of all these fields."""
    found = batch.valid
    for field in fields:  # an optional one may be missing
        found = found & batch.fields[field].get("present", True)
    return found


def cosine_distance(a: jax.Array, b: jax.Array, least: float = 1e-8) -> jax.Array:
    """1 - cosine of rows [B, D] of both, [B]; the product of their norms is at least `least`."""
    squares = jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1)
    return 1 - jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.maximum(squares, least**2))


def euclidean_distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of rows [B, D] of both, [B]; its gradient is 0 where they are equal."""
    return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=1), 1e-30))


DISTANCES = {"cosine": cosine_distance, "l2": euclidean_distance}
