"""Decoders of embeddings: networks that losses own, which exist in training only (LTD)."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.batch import Reps
from big_retrieval.config import InputTarget, LatentTarget
from big_retrieval.models.class_tokens import mean_of_positions
from big_retrieval.models.layers import Dense, parameter, uniform, wide
from big_retrieval.models.recurrent import GruLayer

Fields = Mapping[str, Mapping[str, jax.Array]]


def decoder_input(reps: Reps, fields: Fields, name: str, pooled: bool) -> jax.Array:
    """What a decoder reads of a field, [b, W], float32 or wider.

    Args:
      reps: of the rows.
      fields: their arrays.
      name: of the field.
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
      spec: of the loss that owns the decoder.
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

    The embedding is the GRU's first state; where the GRU is of another width, a linear map
    (`first_state`) of the embedding is. All layers start as PyTorch's do.

    Attributes:
      spec: of the loss that owns the decoder.
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
        """Of every word at every position, [b, L, V]; padding has the last layer's bias."""
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
