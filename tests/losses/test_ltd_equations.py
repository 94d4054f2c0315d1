"""Equations 2 and 10 to 15 of the LTD paper against automatic differentiation of our loss.

The paper's text has errors of signs, which the tests name: Eqs. 2b to 2d give the derivatives of -L
under the name of those of L; the sums of Eqs. 10b, 10c, 11a and 11b are printed with a minus where
Eqs. 10a and 12 have a plus; and Eq. 15b names v+ for v-.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.losses.contrastive import contrastive_loss
from big_retrieval.losses.pairwise import PairBatch
from big_retrieval.similarity import Inner

TAU = 0.3
EXACT = {"rtol": 1e-10, "atol": 1e-12}


@dataclass(frozen=True)
class Query:
    """A query q [D], its match v+ [D] and negatives [S, D]; L_con of them, and its gradients."""

    q: np.ndarray
    match: np.ndarray
    negatives: np.ndarray
    loss: float
    by_q: np.ndarray
    by_match: np.ndarray
    by_negatives: np.ndarray

    def z(self, v: np.ndarray) -> np.ndarray:
        """Z(q, v), Eqs. 2a and 12, of vectors [..., D]."""
        total = exp(self.q @ self.match) + np.sum(exp(self.negatives @ self.q))
        return exp(v @ self.q) / total


def exp(score: np.ndarray) -> np.ndarray:
    """exp(score / tau)."""
    return np.exp(score / TAU)


@pytest.fixture(scope="module")
def query() -> Query:
    """One query of a batch: the others have no weight, but their documents are its negatives."""
    rng = np.random.default_rng(0)
    sides = rng.normal(size=(2, 6, 5))
    sides /= np.linalg.norm(sides, axis=2, keepdims=True)
    with jax.enable_x64(True):

        def loss(queries: jax.Array, documents: jax.Array) -> jax.Array:
            sides = queries[:, None], documents[:, None]
            pairs = PairBatch(*sides, Inner(), 1 / TAU, weight=jnp.arange(6) == 0)
            return contrastive_loss(pairs, directions="query")[0]

        value, grads = jax.value_and_grad(loss, argnums=(0, 1))(*map(jnp.asarray, sides))
    assert not np.any(grads[0][1:])
    (q, *_), (match, *negatives) = sides
    of_q, of_documents = (np.asarray(grad) for grad in grads)
    gradients = of_q[0], of_documents[0], of_documents[1:]
    return Query(q, match, np.array(negatives), float(value), *gradients)


def test_loss_equals_equation_10(query: Query) -> None:
    """Eq. 10a; Eqs. 10b and 10c with the plus of Eq. 10a, and not as printed."""
    positive, others = query.q @ query.match, np.sum(exp(query.negatives @ query.q))
    np.testing.assert_allclose(
        -np.log(exp(positive) / (exp(positive) + others)), query.loss, **EXACT
    )
    right = positive / TAU - np.log(exp(positive) + others)
    np.testing.assert_allclose(-right, query.loss, **EXACT)
    with np.errstate(invalid="ignore"):
        printed = positive / TAU - np.log(exp(positive) - others)
    assert not np.isclose(-printed, query.loss)


def test_gradient_by_query_equals_equations(query: Query) -> None:
    """Eqs. 11a, 11b with the pluses, 13a to 13c, and 2b, which is of -L."""
    v, tau = query.match, TAU
    positive, others = exp(query.q @ v), exp(query.negatives @ query.q)
    weighted = positive * v / tau + others @ query.negatives / tau
    by_parts = v / tau - weighted / (positive + np.sum(others))
    np.testing.assert_allclose(by_parts, -query.by_q, **EXACT)
    printed = positive * v / tau - others @ query.negatives / tau
    printed = v / tau - printed / (positive - np.sum(others))
    assert not np.allclose(printed, -query.by_q)
    rest = query.z(query.negatives) @ query.negatives
    np.testing.assert_allclose(v / tau - query.z(v) * v / tau - rest / tau, -query.by_q, **EXACT)
    np.testing.assert_allclose((1 - query.z(v)) * v - rest, -query.by_q * tau, **EXACT)


def test_gradients_by_candidates_equal_equations(query: Query) -> None:
    """Eqs. 14a, 14b, 15a and 15b, and 2c and 2d, which are of -L."""
    q, z = query.q, query.z
    np.testing.assert_allclose(q / TAU - z(query.match) * q / TAU, -query.by_match, **EXACT)
    np.testing.assert_allclose((1 - z(query.match)) * q, -query.by_match * TAU, **EXACT)
    np.testing.assert_allclose(-z(query.negatives)[:, None] * q, -query.by_negatives * TAU, **EXACT)
    total = z(query.match) + np.sum(z(query.negatives))
    assert total == pytest.approx(1, abs=1e-12)
