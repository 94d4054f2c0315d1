"""Multi-head self-attention: masked, causal, with biases by relative position."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from big_retrieval.errors import UserError
from big_retrieval.models.layers import BlockInit, Dense, Dtype, dropout, wide

# Instead of -inf: exp(_EXCLUDED - max) is 0 all the same, and a row of nothing else is uniform.
_EXCLUDED = -1e30


class Attention(nn.Module):
    """Multi-head self-attention with parameters query, key, value, out; scale 1 / sqrt(W / H)."""

    heads: int
    inits: BlockInit
    dropout: float = 0.0
    causal: bool = False  # position i looks at 0 .. i only
    deterministic: bool = True
    dtype: Dtype = jnp.float32
    param_dtype: Dtype = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array | None = None,
        rows: jax.Array | None = None,
        bias: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, W] -> [B, L, W].

        Args:
          x: [B, L, W] in `dtype`.
          mask: [B, L], true (or not 0) at the keys that may be looked at; None: all. A row without
            any is looked at evenly: its result means nothing, but is finite.
          rows: see `layers.dropout`.
          bias: added to the scores, broadcast to [B, H, L, L]; None: none.

        Raises:
          UserError: the width is no multiple of the heads.
        """
        width = x.shape[-1]
        if width % self.heads:
            raise UserError(f"width {width} is not a multiple of heads {self.heads}.")
        split = (*x.shape[:-1], self.heads, width // self.heads)
        q, k, v = (
            self._dense(name, ("embed", "heads"), width)(x).reshape(split).swapaxes(1, 2)
            for name in ("query", "key", "value")
        )  # [B, H, L, d] each, a layout that makes the products twice as fast on CPUs
        stats = wide(self.dtype)
        logits = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=stats)  # [B, H, L, L]
        logits = logits * (split[-1] ** -0.5)
        if bias is not None:
            logits = logits + bias.astype(stats)
        if self.causal:
            seen = np.tril(np.ones((x.shape[1],) * 2, bool))  # [L, L]
            logits = logits + jnp.where(seen, 0, _EXCLUDED)
        if mask is not None:
            logits = logits + jnp.where(mask.astype(bool), 0, _EXCLUDED)[:, None, None, :]
        logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        weights = jnp.exp(logits)
        # Divided by behind the sum over keys, where there are d values a query and not L.
        total = jnp.sum(weights, axis=-1, keepdims=True)  # [B, H, L, 1]
        weights = dropout(weights.astype(self.dtype), self.dropout, self.deterministic, rows)
        y = jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=stats)
        y = (y / total).astype(self.dtype).swapaxes(1, 2).reshape(x.shape)  # [B, L, W]
        return self._dense("out", ("heads", "embed"), width)(y)

    def _dense(self, name: str, axes: tuple[str, str], width: int) -> Dense:
        init = self.inits.out if name == "out" else self.inits.qkv
        return Dense(width, axes, init, dtype=self.dtype, param_dtype=self.param_dtype, name=name)


def relative_buckets(length: int, count: int, farthest: int = 128) -> np.ndarray:
    """Which bias each pair of positions has (T5 and MPNet, both directions): int32 [L, L].

    Entry [i, j] is the bucket of j - i: half of the buckets for keys behind, half for keys ahead;
    of each half, one for every distance below half of it, the rest growing with the logarithm of
    the distance up to `farthest`, the last for all beyond.

    Args:
      length: L.
      count: buckets.
      farthest: distance from which on all are one.
    """
    ahead = np.arange(length)[None, :] - np.arange(length)[:, None]  # [L, L]
    half, distance = count // 2, np.abs(ahead)
    exact = half // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(farthest / exact)
    far = np.minimum(exact + (growth * (half - exact)).astype(np.int32), half - 1)
    bucket = np.where(distance < exact, distance, far)
    return (bucket + np.where(ahead > 0, half, 0)).astype(np.int32)  # [L, L]
