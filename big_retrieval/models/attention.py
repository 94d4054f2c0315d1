"""Multi-head self-attention with masks, causal order and biases, and the choice of its kernel."""

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from big_retrieval.config.towers import AttentionChoice
from big_retrieval.errors import UserError
from big_retrieval.models import gpu_attention, tpu_attention
from big_retrieval.models.layers import EXCLUDED, BlockInit, Dense, Dtype, flat_matmul
from big_retrieval.models.plain_attention import plain_attention
from big_retrieval.models.tpu_attention import joint_kernel
from big_retrieval.models.tpu_attention_body import Spec
from big_retrieval.runtime.chips import SUBLANES
from big_retrieval.runtime.mesh_axes import axis_size, logical_axes
from big_retrieval.runtime.platform import traced_platform

Kernel = Literal["plain", "tpu", "gpu"]  # XLA, the Pallas kernels, cuDNN
# Lengths must be multiples of these.
TILES: Mapping[str, int] = {"plain": 1, "tpu": SUBLANES, "gpu": 2}
_PARTS = ("query", "key", "value")


def choose_kernel(
    choice: AttentionChoice,
    shape: tuple[int, ...],
    heads: int,
    dtype: Any,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    bias: jax.Array | None = None,
) -> Kernel:
    """Returns the kernel with which the traced program computes attention of [B, L, W].

    Args:
      choice: the key `attention` of a tower; "kernel" is an error if no kernel can compute it.
      dropout: rate in effect.
    """
    if choice == "plain":
        return "plain"
    platform, devices = traced_platform(), axis_size(logical_axes("heads"))
    _, length, width = shape
    length += -length % TILES.get(platform, 1)
    if platform not in ("tpu", "gpu"):
        reason = f"there are kernels for TPUs and GPUs, this program is for {platform}"
    elif dropout:
        reason = f"kernels have no dropout, which is {dropout}"
    elif heads % devices:
        reason = f"the mesh axis of heads, {devices}, does not divide {heads} heads"
    elif platform == "gpu":
        local = (length, heads // devices, width // heads)
        reason = gpu_attention.obstacle(local, dtype, causal, bias)
    else:
        reason = tpu_attention.obstacle(length, width // devices, heads // devices, dtype, bias)
    if not reason:
        return "tpu" if platform == "tpu" else "gpu"
    if choice == "kernel":
        raise UserError(f"attention 'kernel' of a tower cannot run: {reason}. Set it to 'auto'.")
    return "plain"


def pad_tokens(
    count: int, x: jax.Array, mask: jax.Array | None, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Appends `count` tokens of zeros to x [B, L, W], and keys to a mask and a bias by key."""
    x = jnp.pad(x, ((0, 0), (0, count), (0, 0)))
    mask = None if mask is None else jnp.pad(mask, ((0, 0), (0, count)))
    bias = None if bias is None else jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (0, count)))
    return x, mask, bias


class Attention(nn.Module):
    """Multi-head self-attention with parameters query, key, value, out; scale 1 / sqrt(W / H).

    Every kernel has the same parameters, computes in the type of the inputs with statistics in
    float32, and excludes the padding after `tokens` from the keys.
    """

    heads: int
    inits: BlockInit
    dropout: float = 0.0  # rate in effect: 0 outside training
    causal: bool = False  # position i attends to 0 .. i only
    kernel: Kernel = "plain"  # from `choose_kernel`; `TILES` divide L
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
          mask: [B or 1, L], true (or not 0) at the keys that count; None for all. With a `kernel`
            other than "plain", only the first keys of a row may be true. A row without keys gives
            arbitrary finite values.
          bias: added to the scores, broadcast to [B, H, L, L]; None for nothing.
        """
        width = x.shape[-1]
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
                y = gpu_attention.cudnn_attention(q, k, v, mask, self.causal)
            else:
                y = plain_attention(q, k, v, mask, bias, self.causal, self.dropout, rows)
        return self._dense("out", ("heads", "embed"), width)(y.reshape(x.shape))

    def _joint(
        self, x: jax.Array, mask: jax.Array | None, bias: jax.Array | None, tokens: int
    ) -> jax.Array:
        """Computes attention by the Pallas kernels, from one product for query, key and value."""
        params = nn.unbox(self.variables["params"])
        joint = (params if "joint" in params else join_parts(params, self.heads))["joint"]
        row = None if bias is None else bias[:, 0, 0].astype(jnp.float32)  # [B or 1, L]
        if mask is not None:
            excluded = jnp.where(mask.astype(bool), 0, EXCLUDED)
            row = excluded if row is None else row + excluded
        y = flat_matmul(x, joint["kernel"], self.dtype, self.dtype)  # [B, L, 3 W]
        keys = tokens if mask is None else x.shape[1]  # a mask excludes the padding
        spec = Spec(self.heads, keys, self.causal)
        return tpu_attention.tpu_attention(y, joint["bias"], row, spec)

    def _dense(self, name: str, axes: tuple[str, str], width: int) -> Dense:
        init = self.inits.out if name == "out" else self.inits.qkv
        return Dense(width, axes, init, dtype=self.dtype, name=name)


def join_parts(params: Mapping[str, Any], heads: int) -> dict[str, Any]:
    """Joins query, key and value in the parameters of `Attention` (kernel "tpu") to "joint".

    A loop over layers then joins them, and splits their gradients, once instead of in every pass.
    """
    parts = [params[name] for name in _PARTS]
    joint = {key: joint_kernel([part[key] for part in parts], heads) for key in ("kernel", "bias")}
    return {**{name: params[name] for name in params if name not in _PARTS}, "joint": joint}
