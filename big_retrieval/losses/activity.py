"""How many columns lexical representations use, and when that is too few or too many."""

from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from big_retrieval import gate

Metrics = dict[str, jax.Array]
SATURATED = 0.9  # share of the vocabulary that a row has active


def activity(
    points: jax.Array, words: jax.Array | None, valid: jax.Array, top: int | None
) -> Metrics:
    """What the gate leaves of one side of a batch.

    Args:
      points: dense V(x), [B, V].
      words: int32 [B, L], columns of the rows' own words; None: they have none.
      valid: bool [B].
      top: k of the gate; None: there is none, and a column above 0 is active.

    Returns:
      `active`, columns a row has active, on average; `used`, |T(B)|, columns that some row has
      active; `neglected`, all others; `expansion`, of texts, the share of active columns that are
      no own words.
    """
    points = jax.lax.stop_gradient(points)
    width = points.shape[1]
    if top is None:
        active = points > 0
    else:
        active = gate.spread_words(gate.compact(points, top, words).columns, width) & (points > 0)
    active &= valid[:, None]
    rows = jnp.maximum(jnp.sum(valid), 1)
    total = jnp.sum(active.astype(jnp.float32))
    used = jnp.sum(jnp.any(active, axis=0).astype(jnp.float32))
    out = {"active": total / rows, "used": used, "neglected": width - used}
    if words is not None:
        own = jnp.sum((active & gate.spread_words(words, width)).astype(jnp.float32))
        out["expansion"] = 1 - own / jnp.maximum(total, 1)
    return out


def flops(points: jax.Array, valid: jax.Array) -> jax.Array:
    """The FLOPS regulariser of one side: sum_v (mean_i |V(x_i)_v|)^2 over the global batch.

    "Minimizing FLOPs to Learn Efficient Sparse Representations", as in SPLADE.

    Args:
      points: V(x), [B, V].
      valid: bool [B]; the mean is over rows that are.
    """
    kept = jnp.where(valid[:, None], jnp.abs(points), 0)
    return jnp.sum(jnp.square(jnp.sum(kept, axis=0) / jnp.maximum(jnp.sum(valid), 1)))


def warnings(metrics: Mapping[str, float], gated: bool) -> Iterator[str]:
    """Sentences about a vocabulary that collapses or saturates.

    Args:
      metrics: `active_<side>`, `neglected_<side>` and `used_<side>` of a step.
      gated: whether a gate limits what is active.
    """
    for side in ("query", "document"):
        if f"active_{side}" not in metrics:
            continue
        active, used, width = (metrics[f"{key}_{side}"] for key in ("active", "used", "neglected"))
        width += used
        if active < 1:
            yield (
                f"warning: {side} representations have {active:.2f} active columns on average: "
                "they collapse; lower the regulariser or the learning rate."
            )
        elif not gated and active > SATURATED * width:
            yield (
                f"warning: {side} representations have {active:,.0f} of {width:,.0f} columns "
                "active: nothing is sparse; raise the regulariser, or give the head a gate."
            )
        elif used <= 1.01 * active:
            yield (
                f"warning: all {side} representations have the same {active:,.0f} columns active: "
                "they collapse; lower the learning rate, or raise the batch size."
            )
