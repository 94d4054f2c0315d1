"""The symmetric cross-entropy over a batch of pairs."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from big_retrieval.errors import UserError

Score = Callable[[jax.Array, jax.Array], jax.Array]

# Finite, so that a row without any valid column gives a finite number (of weight 0), not NaN.
_EXCLUDED = -1e30


def contrastive_loss(
    a: jax.Array,
    b: jax.Array,
    *,
    score: Score,
    scale: jax.Array | float,
    weight: jax.Array | None = None,
    valid: jax.Array | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Symmetric cross-entropy over all pairs of a batch.

    "Design of the Topology for Contrastive Visual-Textual Alignment", Eq. 2. Row i of `a` and row
    i of `b` belong together; every other row of the batch is a negative. With the logits
    s = scale * score(a, b), L_i = 1/2 [H(i, softmax(s[i, :])) + H(i, softmax(s[:, i]))] and the
    loss is sum_i w_i L_i / sum_i w_i, w_i = 1 without `weight`. The batch is the global one: under
    jit with sharded rows the result is that of one device.

    Args:
      a: projected points of one side, [B, M, N].
      b: projected points of the other side, [B, M, N].
      score: `Topology.score`; higher is closer, without temperature.
      scale: multiplier of the scores (exp of the log temperature), scalar; differentiable.
      weight: weights of the rows as anchors, [B], not negative; a row of weight 0 stays a negative.
      valid: [B] bool; rows that are False are padding: neither anchors nor negatives, whatever they
        hold.

    Returns:
      The loss, a scalar in float32 or wider (0 when no row counts), and metrics without gradient:
      `accuracy`, the share of valid rows whose own column scores strictly above all other valid
      ones, averaged over both directions.

    Raises:
      UserError: the two sides have different numbers of rows.
    """
    if a.shape[0] != b.shape[0]:
        raise UserError(
            f"the contrastive loss pairs rows, but one side has {a.shape[0]} and the other "
            f"{b.shape[0]}: give both sides one row per pair."
        )
    rows = a.shape[0]
    kept = jnp.ones(rows, bool) if valid is None else jnp.asarray(valid).astype(bool)
    if valid is not None:  # what padding holds may be anything, NaN included
        a = jnp.where(kept[:, None, None], a, 0)
        b = jnp.where(kept[:, None, None], b, 0)
    scores = score(a, b)  # [B, B]
    counted = kept.astype(scores.dtype)
    anchors = counted if weight is None else jnp.where(kept, weight, 0).astype(scores.dtype)

    own = jnp.eye(rows, dtype=bool)
    diagonal = jnp.sum(jnp.where(own, scores, 0), axis=1)  # [B]; no gather, so it shards well
    logits = scale * scores
    by_row = jax.nn.logsumexp(jnp.where(kept[None, :], logits, _EXCLUDED), axis=1)  # [B]
    by_column = jax.nn.logsumexp(jnp.where(kept[:, None], logits, _EXCLUDED), axis=0)  # [B]
    losses = 0.5 * (by_row + by_column) - scale * diagonal  # [B]
    loss = _mean(jnp.where(kept, losses, 0), anchors)

    best_row = jnp.max(jnp.where(own | ~kept[None, :], -jnp.inf, scores), axis=1)  # [B]
    best_column = jnp.max(jnp.where(own | ~kept[:, None], -jnp.inf, scores), axis=0)  # [B]
    first = 0.5 * ((diagonal > best_row).astype(scores.dtype) + (diagonal > best_column))
    return loss, {"accuracy": jax.lax.stop_gradient(_mean(first, counted))}


def _mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """Weighted mean of [B] values; 0 when all weights are 0."""
    total = jnp.sum(weights)
    return jnp.sum(weights * values) / jnp.where(total > 0, total, 1)
