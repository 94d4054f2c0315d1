"""Gated recurrent units: a layer of one direction, and the text tower of two directions."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.linen.spmd import with_logical_constraint
from jax.nn import initializers

from big_retrieval.config import Config
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.config.towers import Fitted, Tower
from big_retrieval.models.class_tokens import mean_of_positions
from big_retrieval.models.layers import Dtype, flat_matmul, look_up, parameter, uniform, wide
from big_retrieval.models.word_vectors import fit_words


class GruLayer(nn.Module):
    """A gated recurrent unit of one direction, with PyTorch's gates and two biases.

        r = sigmoid(W_r x + b_r + U_r h + c_r)      reset gate
        z = sigmoid(W_z x + b_z + U_z h + c_z)      update gate
        n = tanh(W_n x + b_n + r (U_n h + c_n))     proposal
        h' = (1 - z) n + z h

    Parameters: `input_kernel [I, 3 H]` (W), `input_bias [3 H]` (b), `hidden_kernel [H, 3 H]` (U),
    `hidden_bias [3 H]` (c), gates in the order r, z, n: PyTorch's `weight_ih`, `bias_ih`,
    `weight_hh` and `bias_hh`, the matrices transposed. All start from U(+-1 / sqrt(H)).
    """

    features: int  # H
    # of the product with the inputs. The recurrence is in float32 or wider, because it adds up the
    # rounding of all steps.
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        first: jax.Array | None = None,
        *,
        reverse: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Inputs [B, L, I] -> (states [B, L, H], the last state [B, H]), in float32 or wider.

        Args:
          mask: bool [B, L]; False keeps the state. None for all True.
          first: state [B, H] before the first input; None for 0.
          reverse: read the last input first.
        """
        dtype, gates = wide(self.dtype), 3 * self.features
        init = uniform(self.features**-0.5)

        def param(name: str, *shape: int) -> jax.Array:
            axes = ("embed", "gate")[-len(shape) :]
            return parameter(self, name, init, shape, axes)

        inputs = flat_matmul(x, param("input_kernel", x.shape[-1], gates), self.dtype, dtype)
        inputs = inputs + param("input_bias", gates).astype(dtype)  # [B, L, 3 H]
        # A sharded kernel is gathered once, and not in every step.
        kernel = with_logical_constraint(param("hidden_kernel", self.features, gates), (None, None))
        kernel, bias = kernel.astype(dtype), param("hidden_bias", gates).astype(dtype)
        keep = jnp.ones(x.shape[:2], bool) if mask is None else mask.astype(bool)

        def step(h: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            of_x, counts = at  # one position, [B, 3 H], [B]
            of_h = h @ kernel + bias
            r, z, n = jnp.split(of_x, 3, axis=-1)
            r_h, z_h, n_h = jnp.split(of_h, 3, axis=-1)
            z, r = jax.nn.sigmoid(z + z_h), jax.nn.sigmoid(r + r_h)
            new = (1 - z) * jnp.tanh(n + r * n_h) + z * h
            h = jnp.where(counts[:, None], new, h)
            return h, h

        h = jnp.zeros((x.shape[0], self.features), dtype) if first is None else first.astype(dtype)
        h = with_logical_constraint(h, ("batch", "embed_act"))
        by_step = inputs.swapaxes(0, 1), keep.T  # [L, B, 3 H], [L, B]
        last, states = jax.lax.scan(step, h, by_step, reverse=reverse)
        return states.swapaxes(0, 1), last


@register("tower")
@dataclass(frozen=True)
class Gru(Tower):
    """A bidirectional GRU over word vectors, which may start from a file: one vector per text."""

    modality: ClassVar[str] = "text"
    computed_by: ClassVar[tuple[str, ...]] = ("width", "words", "read")
    table: ClassVar[str] = "token_embedding"  # parameter [V, words]
    type: Literal["gru"] = "gru"
    width: AtLeast1 = 1024  # width of the output, half of it from each direction
    words: AtLeast1 = 300  # size of a word vector
    # file of initial word vectors with lines `word v1 v2 ...` (GloVe); empty for random ones
    glove: str = ""
    # "last": both directions' states at the last word, where the backward one has seen only this
    # word (PCME, LTD); "mean": the mean of the states at all words (VSE++)
    read: Literal["last", "mean"] = "last"

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.width % 2:
            yield f"{path}.width is {self.width}; it must be even, for two directions."

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> nn.Module:
        return RecurrentText(self, vocab_size, **module)

    def first_values(self, drawn: Callable[[str], Any], tokenizer: Any) -> Fitted:
        if not self.glove:
            return super().first_values(drawn, tokenizer)
        return fit_words(self.glove, self.table, drawn(self.table), tokenizer)

    def runlocal(self) -> "Gru":
        words = self.words if self.glove else min(32, self.words)  # a file sets the size
        return dataclasses.replace(self, width=min(64, self.width), words=words)


class RecurrentText(nn.Module):
    """Module of a `Gru`: `token_embedding [V, words]` from N(0, 1), `forward` and `backward`."""

    spec: Gru
    vocab_size: int
    dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self, ids: jax.Array, mask: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """Ids int32 [B, L], mask [B, L] true at the first tokens of a row -> [B, 1, W], or 0."""
        del train, rows  # nothing is random
        shape, axes = (self.vocab_size, self.spec.words), ("vocab", "embed")
        table = parameter(self, self.spec.table, initializers.normal(1.0), shape, axes)
        x = look_up(table, ids)  # [B, L, words]
        mask = mask.astype(bool)
        forward, backward = (
            GruLayer(self.spec.width // 2, name=name, dtype=self.dtype)
            for name in ("forward", "backward")
        )
        states, last = forward(x, mask)
        if self.spec.read == "mean":
            both = [states, backward(x, mask, reverse=True)[0]]
            mean = mean_of_positions(jnp.concatenate(both, axis=-1), mask)
            return mean.astype(self.dtype)  # [B, 1, W]
        # The last word comes first in the backward direction: its state is a single step.
        end = jnp.maximum(jnp.sum(mask, axis=1) - 1, 0)[:, None]  # [B, 1]
        word = jnp.take_along_axis(x, end[..., None], axis=1)  # [B, 1, words]
        _, back = backward(word, mask[:, :1])
        return jnp.concatenate([last, back], axis=-1)[:, None].astype(self.dtype)
