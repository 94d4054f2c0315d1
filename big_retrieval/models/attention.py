"""Multi-head self-attention with masks, causal order and biases by relative position."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from big_retrieval.errors import UserError
from big_retrieval.models.attention_choice import Kernel
from big_retrieval.models.layers import (
    BlockInit,
    Dense,
    Dtype,
    Initializer,
    dropout,
    flat_matmul,
    parameter,
    wide,
)
from big_retrieval.models.rounded_attention import rounded_attention
from big_retrieval.models.sharded_attention import cudnn_attention, pallas_attention
from big_retrieval.models.tpu_attention import joint_kernel
from big_retrieval.models.tpu_attention_body import Spec
from big_retrieval.runtime.platform import traced_platform

# Not -inf: exp(_EXCLUDED - max) is 0, too, and a row with only this value is uniform.
_EXCLUDED = -1e30
_PARTS = ("query", "key", "value")


class Attention(nn.Module):
    """Multi-head self-attention with parameters query, key, value, out; scale 1 / sqrt(W / H).

    Every kernel has the same parameters, computes in the type of the inputs with statistics in
    float32, and excludes the padding after `tokens` from the keys.
    """

    heads: int
    inits: BlockInit
    dropout: float = 0.0
    causal: bool = False  # position i attends to 0 .. i only
    deterministic: bool = True
    kernel: Kernel = "plain"  # see `choose_kernel`, whose `TILES` divide L
    tokens: int | None = None  # tokens before the padding; None for L
    dtype: Dtype = jnp.float32

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
          mask: [B or 1, L], true (or not 0) at the keys that count; None for all. With a
            `kernel` other than "plain", only the first keys of a row may be true. A row without
            keys gives finite values without meaning.
          rows: see `layers.dropout`.
          bias: added to the scores, broadcast to [B, H, L, L]; None for nothing.

        Raises:
          UserError: the width is not a multiple of the heads.
        """
        width = x.shape[-1]
        if width % self.heads:
            raise UserError(f"width {width} is not a multiple of heads {self.heads}.")
        tokens = self.tokens or x.shape[1]
        if self.kernel == "tpu":
            y = self._joint(x, mask, bias, tokens)
        else:
            split = (*x.shape[:-1], self.heads, width // self.heads)
            q, k, v = (
                self._dense(name, ("embed", "heads"), width)(x).reshape(split) for name in _PARTS
            )  # [B, L, H, d] each
            if mask is None and tokens < x.shape[1]:
                mask = jnp.arange(x.shape[1])[None] < tokens
            if self.kernel == "gpu":
                y = cudnn_attention(q, k, v, mask, self.causal)
            else:
                y = self._plain(q, k, v, mask, rows, bias)
        return self._dense("out", ("heads", "embed"), width)(y.reshape(x.shape))

    def _joint(
        self, x: jax.Array, mask: jax.Array | None, bias: jax.Array | None, tokens: int
    ) -> jax.Array:
        """Computes attention by the Pallas kernels, from one product for query, key and value."""
        if self.has_variable("params", "joint"):
            joint = self.get_variable("params", "joint")
        else:
            width = x.shape[-1]
            tables = {
                name: _Affine(width, self.inits.qkv, self.dtype, name=name)(width)
                for name in _PARTS
            }
            joint = join_parts(tables, self.heads)["joint"]
        row = None if bias is None else bias[:, 0, 0].astype(jnp.float32)  # [B or 1, L]
        if mask is not None:
            excluded = jnp.where(mask.astype(bool), 0, _EXCLUDED)
            row = excluded if row is None else row + excluded
        y = flat_matmul(x, joint["kernel"], self.dtype, self.dtype)  # [B, L, 3 W]
        keys = tokens if mask is None else x.shape[1]  # a mask excludes the padding
        return pallas_attention(y, joint["bias"], row, Spec(self.heads, keys, self.causal))

    def _plain(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        mask: jax.Array | None,
        rows: jax.Array | None,
        bias: jax.Array | None,
    ) -> jax.Array:
        """Computes attention by XLA, [B, L, H, d] -> [B, L, H, d]."""
        extra = self._extra(q.shape[1], mask, bias)
        rate = 0.0 if self.deterministic else self.dropout
        low = jnp.dtype(self.dtype).itemsize < 4 and traced_platform() != "cpu"
        if low and not rate:
            return rounded_attention(q, k, v, extra)
        q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))
        # [B, H, L, d] each, a layout that makes the products twice as fast on CPUs
        stats = wide(self.dtype)
        logits = jnp.einsum(
            "bhqd,bhkd->bhqk", q, k, preferred_element_type=self.dtype if low else stats
        ).astype(stats)  # [B, H, L, L]
        logits = logits * (q.shape[-1] ** -0.5)
        for part in extra:
            logits = logits + part.astype(stats)
        logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
        weights = jnp.exp(logits)
        # The division follows the sum over keys: d values per query instead of L.
        total = jnp.sum(weights, axis=-1, keepdims=True)  # [B, H, L, 1]
        weights = dropout(weights.astype(self.dtype), self.dropout, self.deterministic, rows)
        y = jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=stats)
        return (y / total).astype(self.dtype).swapaxes(1, 2)  # [B, L, H, d]

    def _extra(
        self, length: int, mask: jax.Array | None, bias: jax.Array | None
    ) -> list[jax.Array]:
        """Returns arrays to add to the scores, broadcast to [B, H, L, L]."""
        extra = [] if bias is None else [bias]
        if self.causal:
            seen = np.tril(np.ones((length, length), bool))  # [L, L]
            extra.append(jnp.where(seen, 0, _EXCLUDED))
        if mask is not None:
            extra.append(jnp.where(mask.astype(bool), 0, _EXCLUDED)[:, None, None, :])
        return extra

    def _dense(self, name: str, axes: tuple[str, str], width: int) -> Dense:
        init = self.inits.out if name == "out" else self.inits.qkv
        return Dense(width, axes, init, dtype=self.dtype, name=name)


class _Affine(nn.Module):
    """Parameters of a `Dense` layer of query, key or value, without its product."""

    features: int
    kernel_init: Initializer
    dtype: Dtype

    @nn.compact
    def __call__(self, width: int) -> dict[str, jax.Array]:
        """Input width -> kernel [width, features] and bias [features]."""
        shape, axes = (width, self.features), ("embed", "heads")
        kernel = parameter(self, "kernel", self.kernel_init, shape, axes)
        zeros = nn.initializers.zeros
        bias = parameter(self, "bias", zeros, shape[1:], axes[1:])
        return {"kernel": kernel, "bias": bias}


def join_parts(params: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Replaces query, key and value in the parameters of `Attention` (kernel "tpu") by "joint".

    `joint_kernel` gives its kernel [W, 3 W] and bias [3 W]. A loop over layers then joins the
    parameters, and splits their gradients, once instead of in every pass.
    """
    parts = [params[name] for name in _PARTS]
    joint = {key: joint_kernel([part[key] for part in parts], heads) for key in ("kernel", "bias")}
    return {**{name: params[name] for name in params if name not in _PARTS}, "joint": joint}


def relative_buckets(length: int, count: int, farthest: int = 128) -> np.ndarray:
    """Returns the bucket of each pair of positions (T5 and MPNet, both directions), int32 [L, L].

    Entry [i, j] is the bucket of j - i. One half of the buckets is for keys before the query, the
    other half for keys after it. In each half, the first half has one bucket per distance; the
    others grow with the logarithm of the distance up to `farthest`, and the last one has all
    larger distances.
    """
    ahead = np.arange(length)[None, :] - np.arange(length)[:, None]  # [L, L]
    half, distance = count // 2, np.abs(ahead)
    exact = half // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(farthest / exact)
    far = np.minimum(exact + (growth * (half - exact)).astype(np.int32), half - 1)
    bucket = np.where(distance < exact, distance, far)
    return (bucket + np.where(ahead > 0, half, 0)).astype(np.int32)  # [L, L]
