"""Losses of latent target decoding (LTD), and their decoders, which exist only in training.

"Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
Retrieval": a contrastive loss keeps only the features that distinguish the captions of a batch. A
decoder that rebuilds the caption, or a vector of it, from the caption's embedding also keeps the
other features. Its loss L_rec has a weight (`weight`, Eq. 7) or is a constraint
(`constraint.bound`, Eq. 9).
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.nn import initializers

from big_retrieval.batch import Batch, Reps
from big_retrieval.config import AtLeast1, Config, Loss, register
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.pairwise import mean
from big_retrieval.models.class_tokens import mean_of_positions
from big_retrieval.models.layers import Dense, look_up, parameter, uniform, wide
from big_retrieval.models.recurrent import GruLayer

Fields = Mapping[str, Mapping[str, jax.Array]]


@dataclass(frozen=True)
class DecoderLoss(Loss):
    """Base class of losses whose decoder reads the embedding of a field.

    The decoder reads all class tokens (or sub-spheres) [M, N] as one vector. For a lexical head it
    reads the mean of the tower's vectors over the positions instead.
    """

    field: str = "text"  # field whose embeddings are decoded

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.field not in config.encoded:
            names = ", ".join(config.encoded)
            yield f"{path}.field: no tower reads {self.field!r}. Choices: {names}."

    def reads_vectors(self, config: Config) -> tuple[str, ...]:
        return (self.field,) if config.fields[self.field].head.lexical else ()


@register("loss")
@dataclass(frozen=True)
class LatentTarget(DecoderLoss):
    """Distance of a caption's target to the decoder's output for its embedding (Eqs. 5, 6)."""

    type: Literal["latent_target"] = "latent_target"
    target: str = "target"  # array field of the targets, vectors of a sentence encoder
    hidden: AtLeast1 = 1024  # width of the decoder's two hidden layers
    # mean over the rows of 1 - cosine, or of the Euclidean distance
    distance: Literal["cosine", "l2"] = "cosine"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        target = config.fields.get(self.target)
        if target is None or target.side != "target":
            names = ", ".join(config.side("target")) or "none"
            yield f"{path}.target: {self.target!r} is not a target field. Choices: {names}."
            return
        shape, dtype = target.shapes().get("values", ((), ""))
        if len(shape) != 1 or not dtype.startswith("float"):
            yield (
                f"{path}.target: {self.target!r} has values of shape {shape} and type "
                f"{dtype or 'none'}. Use an array field of float vectors, shape (size,)."
            )

    def runlocal(self) -> "LatentTarget":
        return dataclasses.replace(self, hidden=min(64, self.hidden))

    def module(self, config: Config) -> nn.Module:
        (size,) = config.fields[self.target].shapes()["values"][0]
        return TargetDecoder(self, size, bool(self.reads_vectors(config)))

    def __call__(self, context: Context) -> Result:
        """Returns the mean over the rows of the global batch with embedding and target."""
        decoded = context.output  # [B, size]
        target = context.batch.fields[self.target]["values"].astype(decoded.dtype)
        counted = rows_with(context.batch, (self.field, self.target))
        cost = DISTANCES[self.distance](decoded, target)  # [B]
        return mean(cost, counted.astype(cost.dtype)), {}


@register("loss")
@dataclass(frozen=True)
class InputTarget(DecoderLoss):
    """Negative log-likelihood of a text's tokens, given its embedding (ITD, Eq. 4).

    A GRU that starts from the embedding reads each token, augmented as for the tower, and predicts
    the next one. The loss is summed over the tokens, with a mean over the rows: at the start of a
    run, L is about the number of tokens times log(vocabulary size).
    """

    type: Literal["input_target"] = "input_target"
    words: AtLeast1 = 300  # size of the decoder's word vectors, which start random
    # width of the GRU; None for the embedding's, which then is the first state; with another width,
    # the first state is a linear map of the embedding
    hidden: AtLeast1 | None = None
    # "time": as in the authors' release, for comparisons only: positions, padding included, compete
    # instead of words, and L is not a likelihood
    softmax_over: Literal["vocabulary", "time"] = "vocabulary"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        field = config.encoded.get(self.field)
        if field is not None and field.modality != "text":
            texts = ", ".join(n for n, f in config.encoded.items() if f.modality == "text")
            yield f"{path}.field: {self.field!r} is not a text. Choices: {texts or 'none'}."

    def runlocal(self) -> "InputTarget":
        hidden = None if self.hidden is None else min(64, self.hidden)
        return dataclasses.replace(self, words=min(32, self.words), hidden=hidden)

    def module(self, config: Config) -> nn.Module:
        return InputDecoder(self, config.tokenizer.vocab_size, bool(self.reads_vectors(config)))

    def __call__(self, context: Context) -> Result:
        """Returns the mean over the rows of the global batch that have the text."""
        cost = context.output  # [B]
        counted = rows_with(context.batch, (self.field,))
        return mean(cost, counted.astype(cost.dtype)), {}


def rows_with(batch: Batch, fields: Sequence[str]) -> jax.Array:
    """Returns bool [B]: rows that are not padding and have a value of all these fields."""
    rows = batch.valid
    for field in fields:
        rows = rows & batch.fields[field].get("present", True)
    return rows


def cosine_distance(a: jax.Array, b: jax.Array, least: float = 1e-8) -> jax.Array:
    """Computes 1 - cosine of rows [B, D], [B]; the product of norms counts as at least `least`."""
    squares = jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1)
    return 1 - jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.maximum(squares, least**2))


def euclidean_distance(a: jax.Array, b: jax.Array) -> jax.Array:
    """Computes the Euclidean distance of rows [B, D], [B]; equal rows have gradient 0."""
    return jnp.sqrt(jnp.maximum(jnp.sum(jnp.square(a - b), axis=1), 1e-30))


DISTANCES = {"cosine": cosine_distance, "l2": euclidean_distance}


def decoder_input(reps: Reps, fields: Fields, name: str, pooled: bool) -> jax.Array:
    """Returns the vectors of a field for a decoder, [b, W], float32 or wider.

    Args:
      pooled: use the mean of the tower's vectors [b, L, W] over the positions instead of the
        flattened embedding [b, M, N].
    """
    if pooled:
        x = mean_of_positions(reps.vectors[name], fields[name].get("mask"))
    else:
        x = reps.embeddings[name]
    return x.reshape(x.shape[0], -1).astype(wide(x.dtype))


class TargetDecoder(nn.Module):
    """Three linear layers with ReLU between them (LTD, Eq. 5); `layer_0` to `layer_2`.

    Kernels start Xavier-uniform, biases from U(+-1 / sqrt(inputs)).
    """

    spec: LatentTarget
    size: int  # of a target
    pooled: bool = False  # see `decoder_input`

    @nn.compact
    def __call__(
        self, reps: Reps, fields: Fields, *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        x = decoder_input(reps, fields, self.spec.field, self.pooled)
        layers = (
            (self.spec.hidden, ("embed", "mlp")),
            (self.spec.hidden, ("mlp", "embed")),
            (self.size, ("embed", "projection")),
        )
        for i, (width, axes) in enumerate(layers):
            x = nn.relu(x) if i else x
            kernel, bias = initializers.xavier_uniform(), uniform(x.shape[-1] ** -0.5)
            x = Dense(width, axes, kernel, bias, dtype=x.dtype, name=f"layer_{i}")(x)
        return x


class InputDecoder(nn.Module):
    """A GRU that predicts each token of a text from its embedding and the tokens before (Eq. 4).

    The first state of the GRU is the embedding, or a linear map (`first_state`) of it if the widths
    differ. All layers have PyTorch's initial values.
    """

    spec: InputTarget
    vocab_size: int
    pooled: bool = False  # see `decoder_input`

    def __call__(
        self, reps: Reps, fields: Fields, *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        """Returns the negative log-likelihood of the tokens of b texts, [b]."""
        arrays = fields[self.spec.field]
        logits = self.logits(reps, fields)
        # Over time, padding competes, too, as in the release. The release pads to the longest text
        # of the batch; here texts are padded to the field's length.
        axis = -1 if self.spec.softmax_over == "vocabulary" else 1
        scores = jax.nn.log_softmax(logits, axis=axis)[:, :-1]  # position t predicts token t + 1
        of_token = jnp.take_along_axis(scores, arrays["ids"][:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(jnp.where(arrays["mask"][:, 1:], of_token, 0), axis=1)

    @nn.compact
    def logits(self, reps: Reps, fields: Fields) -> jax.Array:
        """Returns the logits of every word at every position, [b, L, V]; the bias at padding."""
        ids, mask = (fields[self.spec.field][key] for key in ("ids", "mask"))
        state = decoder_input(reps, fields, self.spec.field, self.pooled)
        hidden = self.spec.hidden or state.shape[-1]
        if hidden != state.shape[-1]:
            start = uniform(state.shape[-1] ** -0.5)
            axes = ("embed", "projection")
            state = Dense(hidden, axes, start, start, dtype=state.dtype, name="first_state")(state)
        shape, axes = (self.vocab_size, self.spec.words), ("vocab", "embed")
        table = parameter(self, "words", initializers.normal(1.0), shape, axes)
        states, _ = GruLayer(hidden, dtype=state.dtype, name="gru")(
            look_up(table, ids), mask, state
        )
        states = states * mask[..., None]  # [b, L, hidden]
        axes, start = ("embed", "vocab"), uniform(hidden**-0.5)
        return Dense(self.vocab_size, axes, start, start, dtype=states.dtype, name="predict")(
            states
        )
