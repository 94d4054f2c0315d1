"""Topologies against their definitions, at their edges, and under jax's transformations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.config.topologies import topology_part
from big_retrieval.errors import UserError
from big_retrieval.similarity import TOPOLOGIES

all_topologies = pytest.mark.parametrize("name", sorted(TOPOLOGIES))
both_precisions = pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)]
)


def draw(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


# Scores of two raw representations [M, N], straight from Table 1 of the paper.
DEFINITIONS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "sphere": lambda u, v: float(unit(u.ravel()) @ unit(v.ravel())),
    "euclidean": lambda u, v: -float(np.linalg.norm(u - v)),
    "inner": lambda u, v: float(np.sum(u * v)),
    "oblique": lambda u, v: sum(float(unit(a) @ unit(b)) for a, b in zip(u, v, strict=True)),
    "geodesic": lambda u, v: (
        -float(np.sqrt(sum(np.arccos(unit(a) @ unit(b)) ** 2 for a, b in zip(u, v, strict=True))))
    ),
}


def embeddings(name: str, *arrays: np.ndarray, dtype: str = "float64") -> list[jax.Array]:
    return [topology_part(name).project(jnp.asarray(x, dtype)) for x in arrays]


@all_topologies
@both_precisions
def test_score_is_the_definition(name: str, dtype: str) -> None:
    u, v = draw(0, 5, 3, 4), draw(1, 6, 3, 4)
    expected = [[DEFINITIONS[name](a, b) for b in v] for a in u]
    with jax.enable_x64(dtype == "float64"):
        score = topology_part(name).score(*embeddings(name, u, v, dtype=dtype))
    assert score.dtype == dtype
    tolerance = 1e-12 if dtype == "float64" else 3e-6
    np.testing.assert_allclose(score, expected, rtol=tolerance, atol=tolerance)


@all_topologies
@both_precisions
def test_paired_is_the_diagonal(name: str, dtype: str) -> None:
    u, v = draw(0, 7, 2, 5), draw(1, 7, 2, 5)
    with jax.enable_x64(dtype == "float64"):
        a, b = embeddings(name, u, v, dtype=dtype)
        paired, score = topology_part(name).paired(a, b), topology_part(name).score(a, b)
    assert paired.shape == (7,)
    np.testing.assert_allclose(paired, np.diagonal(score), rtol=1e-5, atol=1e-6)


@all_topologies
def test_narrow_types_are_promoted(name: str) -> None:
    x = jnp.asarray(draw(0, 2, 3, 4), jnp.bfloat16)
    projected = topology_part(name).project(x)
    assert projected.dtype == jnp.float32
    assert topology_part(name).score(projected.astype(jnp.bfloat16), projected).dtype == jnp.float32


@both_precisions
@pytest.mark.parametrize("name", ["sphere", "oblique", "geodesic"])
def test_projection_at_zero(name: str, dtype: str) -> None:
    """A zero vector stays zero and receives no gradient, also beside one that is not zero."""
    x = draw(0, 2, 3, 4)
    x[0] = 0.0
    x[1, 1] = 0.0
    weights = draw(1, 2, 3, 4)
    with jax.enable_x64(dtype == "float64"):
        top = topology_part(name)
        y = top.project(jnp.asarray(x, dtype))
        slope = jax.jit(jax.grad(lambda x: jnp.sum(top.project(x) * weights)))
        gradient = slope(jnp.asarray(x, dtype))
    assert np.all(np.isfinite(y))
    assert np.all(np.isfinite(gradient))
    np.testing.assert_array_equal(y[0], 0.0)
    np.testing.assert_array_equal(gradient[0], 0.0)
    if name != "sphere":
        np.testing.assert_array_equal(gradient[1, 1], 0.0)
        np.testing.assert_allclose(np.linalg.norm(y[1, [0, 2]], axis=-1), 1.0, rtol=1e-6)
    assert np.any(np.asarray(gradient[1, 0]) != 0.0)


def test_oblique_with_one_sphere_equals_sphere() -> None:
    """With M = 1 the oblique inner product is the cosine, and minus the geodesic its angle."""
    u, v = draw(0, 4, 1, 6), draw(1, 4, 1, 6)
    with jax.enable_x64(True):
        cosine = topology_part("sphere").score(*embeddings("sphere", u, v))
        np.testing.assert_allclose(
            topology_part("oblique").score(*embeddings("oblique", u, v)), cosine
        )
        angle = -topology_part("geodesic").score(*embeddings("geodesic", u, v))
    np.testing.assert_allclose(np.cos(angle), cosine, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(TOPOLOGIES.keys() - {"inner"}))  # longer is closer there
@both_precisions
def test_equal_embeddings(name: str, dtype: str) -> None:
    """Equal embeddings have the highest score and a gradient that is finite and 0."""
    best = {"sphere": 1.0, "euclidean": 0.0, "oblique": 3.0, "geodesic": 0.0}[name]
    x = draw(0, 4, 3, 8)
    with jax.enable_x64(dtype == "float64"):
        top, raw = topology_part(name), jnp.asarray(x, dtype)

        def diagonal(x: jax.Array) -> jax.Array:
            return jnp.trace(top.score(top.project(x), top.project(raw)))

        def paired(x: jax.Array) -> jax.Array:
            return jnp.sum(top.paired(top.project(x), top.project(raw)))

        scores = top.paired(top.project(raw), top.project(raw))
        gradients = [jax.jit(jax.grad(f))(raw) for f in (diagonal, paired)]
    np.testing.assert_allclose(scores, best, atol=1e-3 if dtype == "float32" else 1e-7)
    for gradient in gradients:
        np.testing.assert_allclose(gradient, 0.0, atol=2e-3 if dtype == "float32" else 1e-7)


@both_precisions
@pytest.mark.parametrize("step", [0.0, 1e-9, 1e-5, 1e-4, 1e-3, 1.0])
def test_euclidean_gradient_is_bounded(step: float, dtype: str) -> None:
    """However close two embeddings are, the gradient is finite and about as long as a direction."""
    x, away = draw(0, 1, 2, 8), draw(1, 1, 2, 8)
    top = topology_part("euclidean")
    with jax.enable_x64(dtype == "float64"):
        near = jnp.asarray(x + step * away, dtype)
        slope = jax.jit(jax.grad(lambda a, b: top.score(a, b)[0, 0], argnums=(0, 1)))
        gradients = slope(jnp.asarray(x, dtype), near)
    lengths = [np.linalg.norm(g) for g in gradients]
    assert np.all(np.isfinite(lengths))
    assert max(lengths) <= 2.0
    if step == 1.0 or (step >= 1e-5 and dtype == "float64"):
        np.testing.assert_allclose(lengths, 1.0, rtol=1e-4)


@both_precisions
@pytest.mark.parametrize("angle", [1e-2, 0.5, np.pi / 2, 3.0, np.pi - 1e-2])
def test_geodesic_gradient_has_unit_length(angle: float, dtype: str) -> None:
    """The gradient of an arc's length by the unit vector at its end has length 1 at any angle."""
    u = np.zeros((1, 1, 3))
    u[..., 0] = 1.0
    v = np.array([[[np.cos(angle), np.sin(angle), 0.0]]])
    with jax.enable_x64(dtype == "float64"):
        top = topology_part("geodesic")
        b = top.project(jnp.asarray(v, dtype))
        value, gradient = jax.value_and_grad(lambda x: top.score(top.project(x), b)[0, 0])(
            jnp.asarray(u, dtype)
        )
    tolerance = 1e-8 if dtype == "float64" else 2e-3  # float32 cosines know 1e-2 to 3 digits
    np.testing.assert_allclose(value, -angle, rtol=tolerance)
    np.testing.assert_allclose(gradient[0, 0], [0.0, 1.0, 0.0], atol=tolerance)


@both_precisions
def test_geodesic_of_antipodes(dtype: str) -> None:
    """Distance pi per sub-sphere, and a gradient that is finite, there and beside it."""
    x = draw(0, 1, 4, 8)
    with jax.enable_x64(dtype == "float64"):
        top = topology_part("geodesic")
        far = top.project(jnp.asarray(-x, dtype))
        score = top.paired(top.project(jnp.asarray(x, dtype)), far)
        np.testing.assert_allclose(score, -2 * np.pi, rtol=1e-3)
        slope = jax.jit(jax.grad(lambda x: top.score(top.project(x), far)[0, 0]))
        for step in (0.0, 1e-7, 1e-5, 1e-3):
            near = jnp.asarray(x + step * draw(1, 1, 4, 8), dtype)
            gradient = slope(near)
            length = np.linalg.norm(gradient, axis=-1) * np.linalg.norm(near, axis=-1)
            assert np.all(length <= 1.01), (step, length)  # nothing is steeper than an arc


def test_geodesic_slope_at_both_ends() -> None:
    """d arccos^2 / dc is -2 at c = 1 and past it; at c = -1 it is large but finite."""
    top = topology_part("geodesic")
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):

            def score(c: jax.Array) -> jax.Array:
                e = jnp.ones((1, 2, 1), c.dtype)  # one sub-sphere orthogonal: the root is smooth
                other = jnp.stack([c, jnp.zeros_like(c)]).reshape(1, 2, 1)
                return top.score(e, other)[0, 0]

            slope = jax.jit(jax.grad(score))
            eps = np.finfo(dtype).eps
            for c in (1.0, 1.0 + eps, 1.0 - eps):  # d(-sqrt(arc^2 + (pi/2)^2)) = 1 / (pi / 2)
                np.testing.assert_allclose(slope(jnp.asarray(c, dtype)), 2 / np.pi, rtol=1e-5)
            for c in (-1.0, -1.0 - eps):
                bottom = float(slope(jnp.asarray(c, dtype)))
                assert np.isfinite(bottom)
                assert bottom > 100.0


def test_scores_keep_nan() -> None:
    x = np.full((2, 2, 3), np.nan, np.float32)
    for name, top in TOPOLOGIES.items():
        p = top.project(jnp.asarray(x))
        assert np.all(np.isnan(top.score(p, p))), name
        assert np.all(np.isnan(top.paired(p, p))), name


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(1e-3, 1e3))
def test_scores_are_symmetric_and_in_range(seed: int, scale: float) -> None:
    """Symmetry, ranges, the triangle inequality of metrics, invariance to a block's length."""
    x = draw(seed, 4, 3, 5)
    longer = x * np.exp(draw(seed + 1, 4, 3, 1))
    with jax.enable_x64(True):
        for name, top in TOPOLOGIES.items():
            (p,) = embeddings(name, x * scale)
            score = np.asarray(top.score(p, p))
            np.testing.assert_allclose(score, score.T, atol=1e-6 * scale)
            if name in ("euclidean", "geodesic"):
                d = -score
                slack = 1e-6 * (1 + scale)
                assert np.all(d[:, None, :] <= d[:, :, None] + d[None, :, :] + slack)
                assert np.all(d <= np.pi * np.sqrt(3)) or name == "euclidean"
            elif name != "inner":
                assert np.all(np.abs(score) <= (1 if name == "sphere" else 3) + 1e-9)
            if name in ("oblique", "geodesic"):
                (q,) = embeddings(name, longer)
                np.testing.assert_allclose(top.score(q, p), score, atol=1e-6)


def test_combine_averages_scores_of_inner_products() -> None:
    fields, other = draw(0, 3, 5, 2, 4), draw(1, 6, 2, 4)
    weights = np.array([1.0, 2.0, 5.0])
    with jax.enable_x64(True):
        for name in ("sphere", "oblique"):
            top = topology_part(name)
            p, q = embeddings(name, fields, other)
            combined = top.score(top.combine(p, jnp.asarray(weights)), q)
            each = np.stack([top.score(x, q) for x in p])
            np.testing.assert_allclose(combined, np.average(each, axis=0, weights=weights))


def test_combine_of_metrics() -> None:
    """Euclidean averages; the geodesic goes back to unit length; only ratios of weights count."""
    fields, weights = draw(0, 3, 5, 2, 4), np.array([0.2, 0.3, 0.5])
    with jax.enable_x64(True):
        for name in ("euclidean", "geodesic"):
            (p,) = embeddings(name, fields)
            combined = topology_part(name).combine(p, jnp.asarray(weights))
            average = np.average(p, axis=0, weights=weights)
            if name == "geodesic":
                average = average / np.linalg.norm(average, axis=-1, keepdims=True)
            np.testing.assert_allclose(combined, average)
            again = topology_part(name).combine(p, jnp.asarray(4 * weights))
            np.testing.assert_allclose(again, combined)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(UserError, match=r"'obliqe'.*sphere.*euclidean.*oblique.*geodesic"):
        topology_part("obliqe")


@all_topologies
def test_shapes_that_do_not_fit(name: str) -> None:
    top = topology_part(name)
    a, b = jnp.ones((4, 2, 8)), jnp.ones((5, 1, 16))
    with pytest.raises(UserError, match=r"\(4, 2, 8\) and \(5, 1, 16\)"):
        top.score(a, b)
    with pytest.raises(UserError):
        top.paired(a, jnp.ones((5, 2, 8)))
