"""Losses of latent target decoding (LTD), and their decoders, which exist in training only.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval": a contrastive loss keeps only the features that tell the captions of a batch apart. A
decoder that has to rebuild the caption, or a vector of it, from the caption's embedding keeps the
other features, too. Its loss L_rec is added by a weight (`weight`, Eq. 7) or is a constraint
(`constraint.bound`, Eq. 9).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import AtLeast1, Config, Loss, register
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.pairwise import mean
from big_retrieval.models.class_tokens import mean_of_positions
from big_retrieval.models.layers import Dense, parameter, uniform, wide
from big_retrieval.models.recurrent import GruLayer

Fields = Mapping[str, Mapping[str, jax.Array]]


@dataclass(frozen=True)
class DecoderLoss(Loss):
    """Base class of losses whose decoder reads the embedding of a field.

    All class tokens (or sub-spheres) [M, N] of the embedding are read as one vector. The embedding
    of a lexical head, which has a number for every term, is not read: its decoder gets the mean of
    the tower's vectors over the positions.
    """

    field: str = "text"  # whose embeddings are decoded

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.field not in config.encoded:
            known = ", ".join(config.encoded)
            yield f"{path}.field is {self.field!r}, which no tower reads; known: {known}."

    def reads_vectors(self, config: Config) -> tuple[str, ...]:
        return (self.field,) if config.fields[self.field].head.lexical else ()


@register("loss")
@dataclass(frozen=True)
class LatentTarget(DecoderLoss):
    """How far three linear layers are from a caption's target, given its embedding (Eqs. 5, 6)."""

    type: Literal["latent_target"] = "latent_target"
    target: str = "target"  # the array field of the targets: vectors of a sentence encoder
    hidden: AtLeast1 = 1024  # width of the decoder's two hidden layers
    # the mean over the rows of 1 - cosine, or of the Euclidean distance
    distance: Literal["cosine", "l2"] = "cosine"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        target = config.fields.get(self.target)
        if target is None or target.side != "target":
            known = ", ".join(config.side("target")) or "none"
            yield f"{path}.target is {self.target!r}, no field of the side 'target' ({known})."
            return
        shape, dtype = target.shapes().get("values", ((), ""))
        if len(shape) != 1 or not dtype.startswith("float"):
            yield (
                f"{path}.target is {self.target!r}, which has values of the shape {shape} and the "
                f"type {dtype or 'none'}; name an array field of float vectors, shape (size,)."
            )

    def runlocal(self) -> "LatentTarget":
        return dataclasses.replace(self, hidden=min(64, self.hidden))

    def module(self, config: Config) -> nn.Module:
        (size,) = config.fields[self.target].shapes()["values"][0]
        return TargetDecoder(self, size, bool(self.reads_vectors(config)))

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have both embedding and target."""
        decoded = context.output  # [B, size]
        target = context.batch.fields[self.target]["values"].astype(decoded.dtype)
        counted = rows_with(context.batch, (self.field, self.target))
        cost = DISTANCES[self.distance](decoded, target)  # [B]
        return mean(cost, counted.astype(cost.dtype)), {}


@register("loss")
@dataclass(frozen=True)
class InputTarget(DecoderLoss):
    """Minus the log-likelihood of a text's own tokens, given its embedding (ITD, Eq. 4).

    A GRU that starts from the embedding reads each token (those of the batch, augmented as the
    tower gets them) and predicts the next one. Summed over the tokens, mean over the rows: L is
    about log(words of the vocabulary) times tokens at the start of a run.
    """

    type: Literal["input_target"] = "input_target"
    words: AtLeast1 = 300  # width of the decoder's own word vectors, which start random
    # width of the GRU; None: that of the embedding, which is then its first state as it is; any
    # other width puts a linear map in between
    hidden: AtLeast1 | None = None
    # "time": as the paper's authors released it, for comparisons only; positions, padding
    # included, then compete instead of words, and L is no likelihood
    softmax_over: Literal["vocabulary", "time"] = "vocabulary"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        field = config.encoded.get(self.field)
        if field is not None and field.modality != "text":
            texts = ", ".join(n for n, f in config.encoded.items() if f.modality == "text")
            yield (
                f"{path}.field is {self.field!r}, which has no tokens; name a text "
                f"({texts or 'there is none'})."
            )

    def runlocal(self) -> "InputTarget":
        hidden = None if self.hidden is None else min(64, self.hidden)
        return dataclasses.replace(self, words=min(32, self.words), hidden=hidden)

    def module(self, config: Config) -> nn.Module:
        return InputDecoder(self, config.tokenizer.vocab_size, bool(self.reads_vectors(config)))

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have the text."""
        cost = context.output  # [B]
        counted = rows_with(context.batch, (self.field,))
        return mean(cost, counted.astype(cost.dtype)), {}


def rows_with(batch: Batch, fields: Sequence[str]) -> jax.Array:
    """Returns bool [B]: rows that are not padding and have a value of all these fields."""
    found = batch.valid
    for field in fields:  # an optional one may be missing
        found = found & batch.fields[field].get("present", True)
    return found


def cosine_distance(a: jax.Array, b: jax.Array, least: float = 1e-8) -> jax.Array:
    """1 - cosine of rows [B, D] of both, [B]; the product of their norms is at least `least`."""
    squares = jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1)
    return 1 - jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.maximum(squares, least**2))


def euclidean_distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """Euclidean distance of rows [B, D], [B]; its gradient is 0 where they are equal."""
    return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=1), 1e-30))


DISTANCES = {"cosine": cosine_distance, "l2": euclidean_distance}


def decoder_input(reps: Reps, fields: Fields, name: str, pooled: bool) -> jax.Array:
    """Returns the vectors of a field that a decoder reads, [b, W], float32 or wider.

    Args:
      pooled: take the mean of the tower's vectors [b, L, W] over the positions, instead of the
        embedding [b, M, N] with all class tokens side by side (W = M * N).
    """
    if pooled:
        x = mean_of_positions(reps.vectors[name], fields[name].get("mask"))
    else:
        x = reps.embeddings[name]
    return x.reshape(x.shape[0], -1).astype(wide(x.dtype))


class TargetDecoder(nn.Module):
    """Three linear layers with ReLU between them (LTD, Eq. 5); `layer_0` to `layer_2`.

    They start as PyTorch's do where their kernels are drawn anew: kernels Xavier-uniform, biases
    from U(+-1 / sqrt(inputs)).

    Attributes:
      size: numbers of a target.
      pooled: see `decoder_input`.
    """

    spec: LatentTarget
    size: int
    pooled: bool = False

    @nn.compact
    def __call__(
        self, reps: Reps, fields: Fields, *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        """Embeddings of b rows -> [b, size]."""
        x = decoder_input(reps, fields, self.spec.field, self.pooled)
        layers = (
            (self.spec.hidden, ("embed", "mlp")),
            (self.spec.hidden, ("mlp", "embed")),
            (self.size, ("embed", "projection")),
        )
        for number, (width, axes) in enumerate(layers):
            x = nn.relu(x) if number else x
            kernel, bias = initializers.xavier_uniform(), uniform(x.shape[-1] ** -0.5)
            x = Dense(width, axes, kernel, bias, dtype=x.dtype, name=f"layer_{number}")(x)
        return x


class InputDecoder(nn.Module):
    """A GRU that predicts each token of a text from its embedding and the tokens before (Eq. 4).

    The embedding is the GRU's first state. If the GRU is of another width, a linear map
    (`first_state`) of the embedding is. All layers start as PyTorch's do.

    Attributes:
      vocab_size: ids of the tokenizer.
      pooled: see `decoder_input`.
    """

    spec: InputTarget
    vocab_size: int
    pooled: bool = False

    def __call__(
        self, reps: Reps, fields: Fields, *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        """Minus the log-likelihood of the tokens of b texts, [b]."""
        arrays = fields[self.spec.field]
        logits = self.logits(reps, fields)
        # Over time, padding competes, too, as in the release, which pads to the batch's longest
        # text; here texts are padded to the field's length.
        axis = -1 if self.spec.softmax_over == "vocabulary" else 1
        found = jax.nn.log_softmax(logits, axis=axis)[:, :-1]  # position t predicts token t + 1
        chosen = jnp.take_along_axis(found, arrays["ids"][:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(arrays["mask"][:, 1:], chosen, 0), axis=1)

    @nn.compact
    def logits(self, reps: Reps, fields: Fields) -> jax.Array:
        """Logits of every word at every position, [b, L, V]; padding has the last layer's bias."""
        ids, mask = (fields[self.spec.field][key] for key in ("ids", "mask"))
        state = decoder_input(reps, fields, self.spec.field, self.pooled)
        hidden = self.spec.hidden or state.shape[-1]
        if hidden != state.shape[-1]:
            start = uniform(state.shape[-1] ** -0.5)
            axes = ("embed", "projection")
            state = Dense(hidden, axes, start, start, dtype=state.dtype, name="first_state")(state)
        shape, axes = (self.vocab_size, self.spec.words), ("vocab", "embed")
        table = parameter(self, "words", initializers.normal(1.0), shape, axes, jnp.float32)
        table = with_logical_constraint(table, (None, None))  # whole for the look-up, as BERT's
        states, _ = GruLayer(hidden, dtype=state.dtype, name="gru")(
            jnp.take(table, ids, axis=0), mask, state
        )
        states = states * mask[..., None]  # [b, L, hidden]
        axes, start = ("embed", "vocab"), uniform(hidden**-0.5)
        return Dense(self.vocab_size, axes, start, start, dtype=states.dtype, name="predict")(
            states
        )
