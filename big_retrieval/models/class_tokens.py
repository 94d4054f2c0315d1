"""Class tokens of texts: M copies of one token, pooling, and their weight in attention."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from big_retrieval.models.layers import wide


class Tiled(NamedTuple):
    """Texts with M - 1 additional tokens, L' = L + M - 1."""

    ids: jax.Array  # int [B, L']
    mask: jax.Array  # [B, L'], true (or 1) at tokens
    place: jax.Array  # int32 [B or 1, L'], row of the position table
    copy: jax.Array  # int32 [B or 1, L'], index of the class token, 0 to M - 1; -1 elsewhere


def tile_first(ids: jax.Array, mask: jax.Array, times: int) -> Tiled:
    """Repeats the first token `times` times; every copy has its own position."""
    ids, mask = (
        jnp.concatenate([jnp.repeat(x[:, :1], times, axis=1), x[:, 1:]], axis=1)
        for x in (ids, mask)
    )
    positions = jnp.arange(ids.shape[1])[None]  # [1, L']
    return Tiled(ids, mask, positions, jnp.where(positions < times, positions, -1))


def tile_last(ids: jax.Array, mask: jax.Array, times: int) -> Tiled:
    """Repeats the last token of each row `times` times; all copies have its position."""
    end = jnp.sum(mask.astype(jnp.int32), axis=1, keepdims=True) - 1  # [B, 1]
    order = jnp.arange(ids.shape[1] + times - 1)[None]  # [1, L']
    after = order - end  # [B, L'], 0 at the last token
    positions = order - jnp.clip(after, 0, times - 1)
    ids = jnp.take_along_axis(ids, jnp.maximum(positions, 0), axis=1)
    copy = jnp.where((after >= 0) & (after < times), after, -1)
    return Tiled(ids, (after < times).astype(mask.dtype), positions, copy)


def pooled(x: jax.Array, tiled: Tiled, pool: str, times: int) -> jax.Array:
    """Pools positions [B, L', W] to [B, M, W]; "none" returns them all. See `config.Bert.pool`."""
    if pool == "first":
        return x[:, :times]
    if pool == "none":
        return x
    if pool == "mean":
        return mean_of_positions(x, tiled.mask)
    assert pool == "last", pool
    first = jnp.argmax(tiled.copy == 0, axis=1)[:, None]  # [B, 1]
    return jnp.take_along_axis(x, (first + jnp.arange(times))[:, :, None], axis=1)


def mean_of_positions(x: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Returns the mean [B, 1, W] of vectors [B, L, W] over the mask, bool [B, L]; None for all."""
    share = jnp.ones(x.shape[:2], bool) if mask is None else mask
    share = share.astype(wide(x.dtype))
    share = share / jnp.maximum(jnp.sum(share, axis=1, keepdims=True), 1)  # [B, L]
    mean = jnp.einsum("bl,blw->bw", share, x, precision="highest")
    return mean[:, None].astype(x.dtype)


def weigh_as_one(copy: jax.Array, times: int, causal: bool = False) -> jax.Array:
    """Returns an attention bias with which M = `times` class tokens have the weight of one token.

    A token that sees m class tokens adds -log m to their scores. Copying the class token of a model
    M times then changes nothing. The bias is float32 [B or 1, 1, L', L'] by query and key; [B or 1,
    1, 1, L'] if not causal.

    Args:
      copy: [B or 1, L'], see `Tiled`.
      causal: True if a copy sees only itself and earlier copies.
    """
    seen = jnp.array(times)
    if causal:
        seen = jnp.where(copy >= 0, copy + 1, times)[:, None, :, None]
    keys = (copy >= 0)[:, None, None, :]
    return jnp.where(keys, -jnp.log(seen.astype(jnp.float32)), 0.0)
