"""Metrics of the active terms of lexical representations, and warnings about them."""

import functools
import sys
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp

from big_retrieval.losses.context import Context, metrics_if_logged
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.sparse import gate

Metrics = dict[str, jax.Array]
SATURATED = 0.9  # share of active terms above which a representation counts as saturated
ALL = sys.maxsize  # k of a gate that keeps all terms
WATCHED = ("nonzero", "coverage", "neglected", "effective")


def of_sides(
    context: Context, pairs: PairBatch, words: Mapping[str, jax.Array], gates: Mapping[str, int]
) -> Metrics:
    """Returns `activity` of both sides as `<metric>_<side>`, if the step is logged.

    Args:
      pairs: lexical embeddings [B, 1, V].
      gates: side -> k of its gate; sides without a gate are missing.
    """
    out = {}
    for side, embeddings in (("query", pairs.query_values), ("document", pairs.document)):
        valid = pairs.counted[side]
        inputs = jax.lax.stop_gradient((embeddings[:, 0], words.get(side), valid))
        measure = functools.partial(activity, *inputs, gates.get(side))
        metrics = metrics_if_logged(context.logged, measure)
        out |= {f"{metric}_{side}": value for metric, value in metrics.items()}
    return out


def activity(
    embeddings: jax.Array, bow: jax.Array | None, valid: jax.Array, top_k: int | None
) -> Metrics:
    """Returns metrics of the active terms of one side of a batch: terms above 0 after the gate.

    Args:
      embeddings: dense V(x), [B, V].
      bow: int32 [B, L], term ids of the rows' words; None for rows without words.
      valid: bool [B].
      top_k: k of the gate; None for no gate.

    Returns:
      `nonzero`: mean number of active terms per row.
      `coverage`: |T(B)|, number of terms that are active in at least one row.
      `neglected`: number of all other terms.
      `effective`: mean of (sum_v V_v)^2 / sum_v V_v^2 without a gate; V if all terms are equal.
      `expansion`: share of the active terms that are not words of the row; only with `bow`.
    """
    embeddings = jax.lax.stop_gradient(embeddings)
    width = embeddings.shape[1]
    active = embeddings > 0
    if top_k is not None:
        active = gate.dense_mask(gate.sparsify(embeddings, top_k, bow).terms, width) & active
    active &= valid[:, None]
    rows = jnp.maximum(jnp.sum(valid), 1)
    total = jnp.sum(active.astype(jnp.float32))
    coverage = jnp.sum(jnp.any(active, axis=0).astype(jnp.float32))
    out = {"nonzero": total / rows, "coverage": coverage, "neglected": width - coverage}
    squares = jnp.maximum(jnp.sum(jnp.square(embeddings), axis=1), 1e-30)
    covered = jnp.square(jnp.sum(embeddings, axis=1)) / squares
    out["effective"] = jnp.sum(jnp.where(valid, covered, 0)) / rows
    if bow is not None:
        word_total = jnp.sum((active & gate.dense_mask(bow, width)).astype(jnp.float32))
        out["expansion"] = 1 - word_total / jnp.maximum(total, 1)
    return out


def flops(embeddings: jax.Array, valid: jax.Array) -> jax.Array:
    """Computes the FLOPS regularizer of one side, sum_v (mean_i |V(x_i)_v|)^2, over valid rows i.

    "Minimizing FLOPs to Learn Efficient Sparse Representations", as in SPLADE.

    Args:
      embeddings: V(x), [B, 1, V].
    """
    magnitudes = jnp.where(valid[:, None, None], jnp.abs(embeddings), 0)
    return jnp.sum(jnp.square(jnp.sum(magnitudes, axis=0) / jnp.maximum(jnp.sum(valid), 1)))


def warnings(metrics: Mapping[str, float], gates: Mapping[str, int]) -> Iterator[str]:
    """Yields a warning for each side whose vocabulary collapses or saturates.

    Args:
      metrics: `activity` of a step, by `<name>_<side>`.
    """
    for side in ("query", "document"):
        if f"nonzero_{side}" in metrics:
            of_side = {name: metrics[f"{name}_{side}"] for name in WATCHED}
            if message := _warning(side, of_side, gates.get(side)):
                yield message


def _warning(side: str, metrics: Mapping[str, float], gate: int | None) -> str | None:
    active, coverage = metrics["nonzero"], metrics["coverage"]
    width = coverage + metrics["neglected"]
    if gate != 0:  # 0 keeps only the words of a text, and no terms of an image
        if active < 1:
            return (
                f"{side} representations collapse: {active:.2f} active terms on average. Lower the "
                "regularizer or the learning rate."
            )
        if coverage <= 1.01 * active and active <= SATURATED * width:
            return (
                f"{side} representations collapse: all have the same {active:,.0f} active terms. "
                "Lower the learning rate, or raise the batch size."
            )
    if gate is None and active > SATURATED * width:
        return (
            f"{side} representations are not sparse: {active:,.0f} of {width:,.0f} terms are "
            "active. Raise the regularizer, or give the head a gate."
        )
    if metrics["effective"] > SATURATED * width:
        return (
            f"{side} representations are nearly equal in all {width:,.0f} terms before the gate. "
            "If that stays, give the head use_bias=True and a negative bias_init."
        )
    return None
