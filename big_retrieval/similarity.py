"""Topologies: they project representations to embeddings, and score two embeddings.

The same object scores training, evaluation and search. The four dense topologies of "Design of the
Topology for Contrastive Visual-Textual Alignment" (Table 1):

| name | class | score(u, v) | range |
| --- | --- | --- | --- |
| sphere | Sphere | cosine of the whole vectors | [-1, 1] |
| euclidean | Euclidean | -||u - v||_2 | (-inf, 0] |
| oblique | Oblique | sum_j cos(u_j, v_j) | [-M, M] |
| geodesic | Geodesic | -sqrt(sum_j arccos^2 cos(u_j, v_j)) | [-pi sqrt(M), 0] |

In addition: `Inner` ("inner"), the inner product of dense vectors or of lexical ones [..., 1, V].

The paper's Ob(n, m) has n = N and m = M. All arithmetic is in float32 or wider, with full-precision
matrix products. Topologies are hashable and compare equal by class and keys, so they can be static
arguments.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from big_retrieval.config.registry import register
from big_retrieval.config.topologies import Topology
from big_retrieval.errors import UserError

_TINY_NORM = 1e-12


class FlatProduct(Topology):
    """Scores that are one matrix product of the flattened embeddings."""

    def score(self, a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = _flat_sides(a, b)  # [rows, M*N], [columns, M*N]
        return jnp.matmul(a, b.T, precision="highest")  # [rows, columns]

    def paired(self, a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = _flat_sides(a, b, same_rows=True)  # [rows, M*N] twice
        return jnp.sum(a * b, axis=-1)  # [rows]


@register("topology")
@dataclass(frozen=True)
class Sphere(FlatProduct):
    """One sphere: the cosine of the flattened [M*N] vectors (CLIP); 0 is projected to 0."""

    type: Literal["sphere"] = "sphere"

    def project(self, x: jax.Array) -> jax.Array:
        return unit(x, (-2, -1))


@register("topology")
@dataclass(frozen=True)
class Euclidean(Topology):
    """The negative l2 distance of the flattened vectors, not squared or normalized (Table 1)."""

    type: Literal["euclidean"] = "euclidean"

    def project(self, x: jax.Array) -> jax.Array:
        return _promote(x)

    def score(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Computes -sqrt(|u|^2 + |v|^2 - 2 uv).

        The rounding error of the sum is |u|^2 + |v|^2 times the machine epsilon. If the sum is 0 or
        less, the score and its gradient are 0.
        """
        a, b = _flat_sides(a, b)  # [rows, M*N], [columns, M*N]
        squares = jnp.sum(a * a, -1)[:, None] + jnp.sum(b * b, -1)[None, :]  # [rows, columns]
        return -_safe_sqrt(squares - 2.0 * jnp.matmul(a, b.T, precision="highest"))

    def paired(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Computes the scores from differences: more exact than `score` for close vectors."""
        a, b = _flat_sides(a, b, same_rows=True)  # [rows, M*N] twice
        return -_safe_sqrt(jnp.sum(jnp.square(a - b), axis=-1))  # [rows]


@register("topology")
@dataclass(frozen=True)
class Inner(FlatProduct):
    """The inner product of the flattened [M*N] vectors, not normalized (DPR, VDR)."""

    type: Literal["inner"] = "inner"

    def project(self, x: jax.Array) -> jax.Array:
        return _promote(x)


@register("topology")
@dataclass(frozen=True)
class Oblique(FlatProduct):
    """The oblique manifold with the trace of U^T V as score (paper, Eq. 3 and Table 1).

    With M = 1 it equals `Sphere`. `project` divides every sub-sphere by its norm; 0 stays 0.
    """

    type: Literal["oblique"] = "oblique"

    def project(self, x: jax.Array) -> jax.Array:
        return unit(x, -1)


@register("topology")
@dataclass(frozen=True)
class Geodesic(Topology):
    """The oblique manifold with its geodesic distance (paper, Table 1): the product metric.

    Equal embeddings have the score -sqrt(eps), with eps the machine epsilon, and gradient 0 through
    `project`; antipodal sub-spheres have a finite gradient.
    """

    type: Literal["geodesic"] = "geodesic"

    def project(self, x: jax.Array) -> jax.Array:
        return unit(x, -1)

    def score(self, a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = _sides(a, b)
        cosines = jnp.einsum("rmn,cmn->mrc", a, b, precision="highest")  # [M, rows, columns]
        return -_root_of_arcs(cosines, axis=0)  # [rows, columns]

    def paired(self, a: jax.Array, b: jax.Array) -> jax.Array:
        a, b = _sides(a, b, same_rows=True)
        return -_root_of_arcs(jnp.sum(a * b, axis=-1), axis=-1)  # [rows]

    def numbers_per_score(self, shape: tuple[int, ...]) -> int:
        return shape[-2]

    def combine(self, embeddings: Sequence[jax.Array] | jax.Array, weights: jax.Array) -> jax.Array:
        """Returns the average with every sub-sphere at norm 1 again."""
        return self.project(super().combine(embeddings, weights))


TOPOLOGIES: dict[str, Topology] = {
    x.type: x for x in (Sphere(), Euclidean(), Inner(), Oblique(), Geodesic())
}


def _promote(x: jax.Array) -> jax.Array:
    """Returns x in float32 or wider."""
    x = jnp.asarray(x)
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def unit(x: jax.Array, axes: int | tuple[int, ...]) -> jax.Array:
    """Computes x / max(||x||, 1e-12), with gradient 0 if ||x|| is at most 1e-12."""
    x = _promote(x)
    squared = jnp.sum(x * x, axis=axes, keepdims=True)
    tiny = squared <= _TINY_NORM**2
    norm = jnp.sqrt(jnp.where(tiny, 1.0, squared))  # the 1 keeps the unused branch finite
    return jnp.where(tiny, jax.lax.stop_gradient(x) / _TINY_NORM, x / norm)


def _sides(a: jax.Array, b: jax.Array, same_rows: bool = False) -> tuple[jax.Array, jax.Array]:
    """Checks the shapes of both sides and returns them in their common type."""
    first = 0 if same_rows else 1
    if a.ndim != 3 or b.ndim != 3 or a.shape[first:] != b.shape[first:]:
        raise UserError(
            f"Cannot compare embeddings of shapes {a.shape} and {b.shape}: both sides need the "
            "same number and size of class tokens (or spheres)."
        )
    dtype = jnp.promote_types(jnp.promote_types(a.dtype, b.dtype), jnp.float32)
    return a.astype(dtype), b.astype(dtype)


def _flat_sides(a: jax.Array, b: jax.Array, same_rows: bool = False) -> tuple[jax.Array, jax.Array]:
    """Returns `_sides` with M and N joined."""
    a, b = _sides(a, b, same_rows)
    size = math.prod(a.shape[1:])
    return a.reshape(a.shape[0], size), b.reshape(b.shape[0], size)  # [rows, M*N], [columns, M*N]


def _safe_sqrt(x: jax.Array) -> jax.Array:
    """Computes sqrt(x) if x > 0, else 0 with gradient 0. NaN stays NaN."""
    flat = x <= 0.0
    return jnp.where(flat, 0.0, jnp.sqrt(jnp.where(flat, 1.0, x)))


def _root_of_arcs(cosines: jax.Array, axis: int) -> jax.Array:
    """Computes sqrt(sum arccos^2(cosines)) over the sub-spheres."""
    # Epsilon under the root keeps its slope below 1 / (2 sqrt(eps)) at 0, where otherwise rounding
    # errors of the cosines dominate the gradient; a distance d changes only by eps / (2 d).
    eps = jnp.finfo(cosines.dtype).eps
    return jnp.sqrt(jnp.sum(_arccos_squared(cosines), axis=axis) + eps)


@jax.custom_jvp
def _arccos_squared(c: jax.Array) -> jax.Array:
    """Computes arccos(c)^2, with c clipped to [-1, 1]."""
    c = jnp.clip(c, -1.0, 1.0)
    # The atan2 form has full relative precision at both ends, where 1 - c and 1 + c are exact.
    return jnp.square(jnp.arctan2(jnp.sqrt((1.0 - c) * (1.0 + c)), c))


@_arccos_squared.defjvp
def _arccos_squared_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Computes the slope -2 theta / sin(theta); -2 if c >= 1 (above 1 only by rounding).

    At c = -1 it is the slope at c = -1 + 8 eps. The tangent of c falls like sin(theta), so the
    gradient of an embedding stays below 2 pi near c = -1.
    """
    (c,), (tangent,) = primals, tangents
    inner = jnp.clip(c, -1.0 + 8.0 * jnp.finfo(c.dtype).eps, 1.0)
    sine = jnp.sqrt((1.0 - inner) * (1.0 + inner))
    at_one = sine == 0.0
    ratio = jnp.where(at_one, 1.0, jnp.arctan2(sine, inner) / jnp.where(at_one, 1.0, sine))
    return _arccos_squared(c), -2.0 * ratio * tangent
