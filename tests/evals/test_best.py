"""The best documents of each query, and what the compiler makes of them."""

import jax
import numpy as np
import pytest
from scipy.sparse import csr_array

from big_retrieval.config.topologies import topology_part
from big_retrieval.evals.ranks import DocumentScorer, best_of
from tests.evals.test_ranks import ENCODERS


@pytest.mark.parametrize("depth", [1, 7, 40])
@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_best_documents_are_those_of_a_plain_sort(depth: int, graded: bool, sparse: bool) -> None:
    rng = np.random.default_rng(depth)
    documents = rng.integers(-2, 3, (40, 1, 2)).astype(np.float32)  # with ties
    queries = rng.integers(-2, 3, (11, 1, 2)).astype(np.float32)
    queries[3], documents[5] = 0, 0 if sparse else np.nan
    relevance = rng.integers(0, 3, (11, 40))
    score = topology_part("inner").score
    a, b = (csr_array(x[:, 0]) if sparse else x for x in (queries, documents))
    scorer = DocumentScorer(b, score=score, encoder=ENCODERS[8], chunk=4)
    of_query = (lambda query: relevance[query]) if graded else None
    found, scores = scorer.best(a, depth, of_query)
    table = queries[:, 0] @ documents[:, 0].T
    table[np.isnan(table)] = -np.inf
    second = relevance if graded else np.tile(np.arange(40), (11, 1))
    expected = np.lexsort((second, -table), axis=1)[:, :depth]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(scores, np.take_along_axis(table, expected, 1))


def test_not_all_documents_are_sorted() -> None:
    score = topology_part("sphere").score
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((4, 1, 8), (4,), (500, 1, 8))]
    program = jax.jit(best_of(score, 10)).lower(*shapes).compile().as_text()
    assert "TopK" in program
    assert " sort(" not in program


def test_ties_are_ordered_by_the_scores_that_are_computed_for_them() -> None:
    """Scores of fewer queries at a time may be rounded otherwise."""
    documents = np.linspace(0, 1, 30, dtype=np.float32).repeat(2)[:, None, None]  # pairs are equal

    def score(queries: jax.Array, documents: jax.Array) -> jax.Array:
        return queries[:, 0] @ documents[:, 0].T * (1 + 1e-6 * len(queries))

    scorer = DocumentScorer(documents, score=score, encoder=ENCODERS[1], chunk=8)
    queries = np.ones((9, 1, 1), np.float32)
    queries[1:8] = -1
    found, _ = scorer.best(queries, 5, lambda query: np.arange(60))
    assert found[8].tolist() == [58, 59, 56, 57, 54]
