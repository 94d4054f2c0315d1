"""Choice of the fused attention for a platform, shapes and options."""

import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp

from big_retrieval.config.towers import AttentionChoice
from big_retrieval.errors import UserError
from big_retrieval.models import tpu_attention
from big_retrieval.models.sharded_attention import axis_size, mesh_axes
from big_retrieval.runtime.chips import SUBLANES
from big_retrieval.runtime.platform import traced_platform

Kernel = Literal["plain", "tpu", "gpu"]
# Lengths must be multiples of these.
TILES: Mapping[str, int] = {"plain": 1, "tpu": SUBLANES, "gpu": 2}


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
    """Returns how the traced program computes attention.

    Args:
      choice: the key `attention` of a tower.
      shape: B, L, W.
      dropout: rate that is in effect.

    Returns:
      "tpu" for the Pallas kernels, "gpu" for cuDNN, "plain" for XLA.

    Raises:
      UserError: the choice is "kernel", and no kernel can compute this attention.
    """
    if choice == "plain":
        return "plain"
    platform = traced_platform()
    reason = _obstacle(platform, shape, heads, dtype, causal, dropout, bias)
    if not reason:
        return "tpu" if platform == "tpu" else "gpu"
    if choice == "kernel":
        raise UserError(
            f"attention 'kernel' of a tower cannot run: {reason}. Set the tower's attention to "
            "'auto'."
        )
    return "plain"


def pad_tokens(
    count: int, x: jax.Array, mask: jax.Array | None, bias: jax.Array | None
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
    """Appends `count` tokens of zeros to x [B, L, W], and keys to a mask and a bias by key."""
    x = jnp.pad(x, ((0, 0), (0, count), (0, 0)))
    mask = None if mask is None else jnp.pad(mask, ((0, 0), (0, count)))
    bias = None if bias is None else jnp.pad(bias, ((0, 0), (0, 0), (0, 0), (0, count)))
    return x, mask, bias


def _obstacle(
    platform: str,
    shape: tuple[int, ...],
    heads: int,
    dtype: Any,
    causal: bool,
    dropout: float,
    bias: jax.Array | None,
) -> str:
    """Returns the reason why no kernel can compute the attention; empty if one can."""
    _, length, width = shape
    if platform not in ("tpu", "gpu"):
        return f"there are kernels for TPUs and GPUs, this program is for {platform}"
    if dropout:
        return f"kernels have no dropout, which is {dropout}"
    devices = axis_size(mesh_axes("heads"))
    if heads % devices:
        return f"the mesh axis of heads, {devices}, does not divide {heads} heads"
    length += -length % TILES[platform]
    if platform == "gpu":
        if bias is not None:
            return "biases to the scores are not passed to cuDNN"
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.manual_axes and axis_size(mesh_axes("batch") + mesh_axes("heads")) > 1:
            # jax cannot lower the residuals of a shard_map inside another one.
            return "in a region that is manual over some mesh axes, cuDNN needs the others to be 1"
        return _cudnn_obstacle((length, heads // devices, width // heads), dtype, causal)
    if bias is not None and bias.shape[1:3] != (1, 1):
        return "biases depend on the query or the head"
    kind = jnp.dtype(dtype)
    if kind not in (jnp.float32, jnp.bfloat16):
        return f"kernels compute in float32 or bfloat16, not in {kind.name}"
    return tpu_attention.obstacle(length, width // devices, heads // devices, kind.itemsize)


def _cudnn_obstacle(shape: tuple[int, ...], dtype: Any, causal: bool) -> str:
    """Returns jax's own reason why cuDNN cannot compute [L, H, d]; empty if it can."""

    def gradients(x: jax.Array) -> Any:
        attend = functools.partial(jax.nn.dot_product_attention, implementation="cudnn")
        y, pull = jax.vjp(lambda x: attend(x, x, x, is_causal=causal), x)
        return pull(y)

    try:
        jax.eval_shape(gradients, jax.ShapeDtypeStruct((1, *shape), dtype))
    except (NotImplementedError, RuntimeError, ValueError) as error:
        return str(error).rstrip(".")
    return ""
