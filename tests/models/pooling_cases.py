"""Random cases of pooled logits and their definition in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval.models.pooling import max_pool


def draw(batch: int = 4, length: int = 7, width: int = 6, columns: int = 37) -> dict[str, Any]:
    """Inputs, mask and the weights of the sum that is differentiated; gaps are no ties."""
    rng = np.random.default_rng(batch + 10 * length + 100 * columns)
    mask = np.arange(length) < rng.integers(1, length, (batch, 1), endpoint=True)
    return {
        "hidden": rng.normal(size=(batch, length, width)),
        "kernel": rng.normal(size=(columns, width)),
        "bias": rng.normal(size=columns),
        "mask": mask,
        "g": rng.normal(size=(batch, columns)),
    }


def by_definition(x: dict[str, Any], pooling: str = "max", top_k: int | None = None) -> Any:
    """(pooled, d_hidden, d_kernel, d_bias) in float64."""
    logits = np.einsum("bld,vd->blv", x["hidden"], x["kernel"]) + x["bias"]
    masked = np.where(x["mask"][:, :, None], logits, -np.inf)
    ranks = np.argsort(np.argsort(-masked, axis=1, kind="stable"), axis=1)  # 0: the largest
    size = 1 if pooling == "max" else (top_k or logits.shape[1])
    count = np.minimum(x["mask"].sum(1), size)[:, None, None]
    share = (ranks < size) & x["mask"][:, :, None]
    values, slope = logits, np.ones_like(logits)
    if pooling == "mean":
        slope = np.exp(np.minimum(logits, 0))
        values = np.where(logits >= 0, logits + 1, slope)
        share = share / count
    pooled = np.sum(np.where(share > 0, values * share, 0), axis=1)
    d = x["g"][:, None] * share * slope  # [B, L, V]
    d_hidden = np.einsum("blv,vd->bld", d, x["kernel"])
    return pooled, d_hidden, np.einsum("blv,bld->vd", d, x["hidden"]), d.sum((0, 1))


def columns_by_definition(x: dict[str, Any], columns: Any) -> Any:
    """Inputs of some columns, and `by_definition`; other rows of the kernel have no gradient."""
    some, kernel = np.asarray(columns), x["kernel"]
    part = {**x, "bias": x["bias"][some], "g": x["g"][:, some]}
    pooled, d_hidden, d_some, d_bias = by_definition({**part, "kernel": kernel[some]})
    d_kernel = np.zeros_like(kernel)
    d_kernel[some] = d_some
    return part, (pooled, d_hidden, d_kernel, d_bias)


def pool_with_gradients(x: dict[str, Any], pool: Callable[..., jax.Array]) -> Any:
    """(pooled, d_hidden, d_kernel, d_bias) of `pool` in float32."""

    @jax.jit
    def run(arrays: Any, mask: jax.Array, g: jax.Array) -> Any:
        pooled, pull = jax.vjp(lambda *a: pool(*a, mask), *arrays)
        return pooled, *pull(g)

    arrays = [jnp.asarray(x[name], jnp.float32) for name in ("hidden", "kernel", "bias")]
    return run(arrays, jnp.asarray(x["mask"]), jnp.asarray(x["g"], jnp.float32))


def maximum(**options: Any) -> Callable[..., jax.Array]:
    return lambda *arrays: max_pool(*arrays, **options)[0]
