"""Self-attention on TPU as two Pallas kernels, forward and gradient, from the joint product.

Scores never leave VMEM. A grid step computes some rows of a batch for one group of heads: the
fewest heads whose values fill whole tiles of 128 lanes (two heads of 64, one of 128, eight of 80).

* The joint product [B, L, 3 W] has query, key and value of a group next to each other
  (`joint_kernel`), so a grid step reads one block [R, L, 3 N]. A mesh axis may divide the groups.
* The forward pass stores maximum and inverse sum per query. The gradient pass needs no output.
* Each device computes its rows and heads. The derivative is defined outside of `shard_map`, so that
  JAX never transposes a collective, and works inside a region that is manual over other axes.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec

from big_retrieval.models.tpu_attention_body import (
    Spec,
    backward_rows,
    forward_rows,
    queries_per_pass,
)
from big_retrieval.runtime.chips import LANES, SUBLANES
from big_retrieval.runtime.mesh_axes import axis_size, logical_axes, on_each_device, row_axes
from big_retrieval.runtime.platform import traced_platform

_ROWS, _TOKENS = 8, 896  # maximum per grid step: enough to hide the cost of a step
_VMEM = 12 * 2**20  # bytes of a grid step, of the 16 MiB that the compiler grants
_F32 = jnp.float32


def obstacle(length: int, width: int, heads: int, dtype: Any, bias: jax.Array | None) -> str:
    """Returns why the kernels cannot compute an attention per device; empty if they can."""
    if bias is not None and bias.shape[1:3] != (1, 1):
        return "biases depend on the query or the head"
    parsed_dtype = jnp.dtype(dtype)
    if parsed_dtype not in (jnp.float32, jnp.bfloat16):
        return f"kernels compute in float32 or bfloat16, not in {parsed_dtype.name}"
    size = width // heads
    if size < 32 or size % 16:
        return f"the head size {size} is not a multiple of 16 of at least 32"
    if width % group_width(width, heads):
        return f"{heads} heads of {size} per device do not fill whole tiles of {LANES} lanes"
    need = _bytes(1, length, group_width(width, heads), parsed_dtype.itemsize)
    if need > _VMEM:
        return f"{length} tokens need {need / 2**20:.0f} MiB of VMEM"
    return ""


def group_width(width: int, heads: int) -> int:
    """Returns N, the width of the heads of a grid step, a multiple of 128."""
    return math.lcm(width // heads, LANES)


def joint_kernel(parts: Sequence[jax.Array], heads: int) -> jax.Array:
    """Joins the parameters [..., W] of query, key and value to [..., 3 W], by groups of heads."""
    lead, width = parts[0].shape[:-1], parts[0].shape[-1]
    n = group_width(width, heads)
    groups = [part.reshape(*lead, width // n, 1, n) for part in parts]
    return jnp.concatenate(groups, axis=-2).reshape(*lead, 3 * width)


def tpu_attention(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> jax.Array:
    """Computes softmax(q k^T / sqrt(d) + row) v, [B, L, W], without dropout or communication.

    Gradients reach `x` and `bias`, but not `row`.

    Args:
      x: [B, L, 3 W] from a product with `joint_kernel`; L is a multiple of 8.
      bias: [3 W], added to `x`, in the order of `joint_kernel`.
      row: float32 [B or 1, L], added to the scores of each key; None for nothing.
    """
    return _attention(x, _as_varying(bias, x), row, spec)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attention(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> jax.Array:
    return _forward(x, bias, row, spec)[0]


def _forward(x: jax.Array, bias: jax.Array, row: jax.Array | None, spec: Spec) -> Any:
    x = x + bias.astype(x.dtype)  # fused into the product
    wide, stats, heads, row_by = _specs(x, row)
    local = spec._replace(heads=spec.heads // axis_size(heads))

    def compute(x: jax.Array, row: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        batch, length, width = x.shape[0], x.shape[1], x.shape[2] // 3
        n = group_width(width, local.heads)
        # Two rows of statistics per head of a group, in whole tiles.
        rows = -(-2 * (n * local.heads // width) // SUBLANES) * SUBLANES
        outs = [((batch, length, width), x.dtype), ((batch, width // n, rows, length), _F32)]
        return _call(forward_rows, "attention_forward", (x,), row, outs, local)

    run = on_each_device(compute, (wide, row_by), (wide, stats), check=not _is_interpreted())
    y, s = run(x, row)
    return y, (x, bias, row, s)


def _backward(spec: Spec, residuals: Any, dy: jax.Array) -> Any:
    x, bias, row, s = residuals
    wide, stats, heads, row_by = _specs(x, row)
    local = spec._replace(heads=spec.heads // axis_size(heads))

    def compute(
        x: jax.Array, stats: jax.Array, dy: jax.Array, row: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        outs = [(x.shape, x.dtype), ((SUBLANES, x.shape[-1]), _F32)]
        dx, db = _call(backward_rows, "attention_backward", (x, stats, dy), row, outs, local)
        db = db[0]  # [3 W], the gradient of the bias
        return dx, jax.lax.psum(db, wide[0]) if wide[0] else db

    specs = (wide, stats, wide, row_by), (wide, PartitionSpec(heads))
    run = on_each_device(compute, *specs, check=not _is_interpreted())
    dx, db = run(x, s, dy, row)
    return dx, db.astype(bias.dtype), None if row is None else jnp.zeros_like(row)


_attention.defvjp(_forward, _backward)


def _specs(x: jax.Array, row: jax.Array | None) -> tuple[Any, Any, tuple[str, ...], Any]:
    """Returns shardings of [B, L, W] and statistics [B, G, S, L], axes of heads, and of `row`."""
    rows, heads = row_axes(x.shape[0]), logical_axes("heads")
    row_by = PartitionSpec(rows if row is not None and row.shape[0] > 1 else None)
    return PartitionSpec(rows, None, heads), PartitionSpec(rows, heads), heads, row_by


def _is_interpreted() -> bool:
    return traced_platform() == "cpu"  # jax cannot check interpreted kernels on a mesh


def _as_varying(x: jax.Array, like: jax.Array) -> jax.Array:
    """Returns `x` as varying over all manual axes of `like`."""
    mats = [getattr(jax.typeof(array), "mat", None) for array in (x, like)]
    if None in mats:
        return x
    more = tuple(mats[1].varying - mats[0].varying)  # type: ignore
    return jax.lax.pcast(x, more, to="varying") if more else x


def _bytes(rows: int, length: int, n: int, itemsize: int) -> int:
    """Returns the VMEM bytes of a gradient step: blocks twice, and the arrays of one head."""
    blocks = 2 * rows * length * n * 7 * itemsize
    scores = 5 * length * (-(-queries_per_pass(length) // LANES) * LANES) * 4
    return blocks + scores + 6 * length * n * 4


def _rows_per_step(batch: int, length: int, n: int, itemsize: int) -> int:
    limit = min(batch, _ROWS, max(1, _TOKENS // length))
    choices = [rows for rows in range(1, limit + 1) if batch % rows == 0]
    return max(rows for rows in choices if rows == 1 or _bytes(rows, length, n, itemsize) <= _VMEM)


def _call(
    body: Callable[..., None],
    name: str,
    arrays: tuple[jax.Array, ...],
    row: jax.Array | None,
    outs: list[tuple[tuple[int, ...], Any]],
    spec: Spec,
) -> Any:
    """Runs `body` over groups of heads (outer axis) and blocks of rows."""
    batch, length, width = (*arrays[0].shape[:2], arrays[0].shape[2] // 3)
    n, itemsize = group_width(width, spec.heads), arrays[0].dtype.itemsize
    rows = _rows_per_step(batch, length, n, itemsize)

    def block(shape: tuple[int, ...]) -> pl.BlockSpec:
        if len(shape) == 4:  # statistics [B, G, S, L]
            return pl.BlockSpec((rows, 1, *shape[2:]), lambda g, b: (b, g, 0, 0))
        if len(shape) == 2:  # a sum over all rows
            return pl.BlockSpec((shape[0], 3 * n), lambda g, b: (0, g))
        return pl.BlockSpec((rows, length, shape[2] * n // width), lambda g, b: (b, 0, g))

    specs = [block(x.shape) for x in arrays]
    if row is not None:
        shared = row.shape[0] == 1
        scale = (width // spec.heads) ** 0.5  # scores are scaled after the addition
        arrays = (*arrays, row[:, None] * scale)  # [B or 1, 1, L]
        at = (lambda g, b: (0, 0, 0)) if shared else (lambda g, b: (b, 0, 0))
        specs.append(pl.BlockSpec((1 if shared else rows, 1, length), at))
    products, passes = (2, 1) if len(outs[1][0]) == 4 else (5, 2)
    return pl.pallas_call(
        functools.partial(body, spec=spec, size=width // spec.heads),
        grid=(width // n, batch // rows),
        in_specs=specs,
        out_specs=[block(shape) for shape, _ in outs],
        out_shape=[_varying_like(shape, dtype, arrays[0]) for shape, dtype in outs],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * products * batch * length**2 * width,
            transcendentals=batch * spec.heads * length**2,
            bytes_accessed=4 * passes * batch * length * width * itemsize,
        ),
        name=name,
        interpret=_is_interpreted(),
    )(*arrays)


def _varying_like(shape: tuple[int, ...], dtype: Any, x: jax.Array) -> jax.ShapeDtypeStruct:
    """Returns the type of an output that varies over the same manual mesh axes as `x`."""
    manual = {"manual_axis_type": jax.typeof(x).mat} if hasattr(jax.typeof(x), "mat") else {}
    return jax.ShapeDtypeStruct(shape, dtype, **manual)
