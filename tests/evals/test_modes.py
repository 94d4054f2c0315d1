"""Search modes of lexical models: bags of words, narrower gates."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.errors import UserError
from big_retrieval.evals.modes import in_mode, narrowed, parse_mode, words_shared

KEY = "config.evals.<name>.modes"


def sparse(rows: object) -> scipy.sparse.csr_array:
    return scipy.sparse.csr_array(np.asarray(rows, np.float32))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 8), st.booleans())
def test_narrowed_equals_a_plain_sort(seed: int, top_k: int, with_bow: bool) -> None:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((5, 7)) < 0.6, rng.integers(1, 4, (5, 7)), 0).astype(np.float32)
    bow = (rng.random((5, 7)) < 0.3).astype(np.float32)
    found = narrowed(sparse(dense), top_k, sparse(bow) if with_bow else None).toarray()
    for row, out, words in zip(dense, found, bow, strict=True):
        strongest = [c for c in np.argsort(-row, kind="stable") if row[c] > 0][:top_k]
        kept = set(strongest) | ({*np.flatnonzero(words)} if with_bow else set())
        np.testing.assert_array_equal(out, [x if c in kept else 0 for c, x in enumerate(row)])


def test_in_mode_returns_representations_of_mode() -> None:
    embeddings, bow = sparse([[3, 0, 2, 1]]), sparse([[0, 1, 0, 1]])
    expected = {
        "bag": [[0, 1, 0, 1]],
        "binary": [[3, 0, 2, 1]],
        "top_k=1": [[3, 0, 0, 1]],
        "top_k=0": [[0, 0, 0, 1]],
        "top_k=all/1": [[3, 0, 2, 1]],
    }
    for text, row in expected.items():
        found = in_mode(embeddings, parse_mode(text, KEY), "query", bow)
        np.testing.assert_array_equal(found.toarray(), row, err_msg=text)
    found = in_mode(embeddings, parse_mode("top_k=all/1", KEY), "document", None)
    np.testing.assert_array_equal(found.toarray(), [[3, 0, 0, 0]])


@pytest.mark.parametrize("text", ["bags", "top_k", "top_k=-1", "top_k=1/2/3", ""])
def test_parse_mode_rejects(text: str) -> None:
    with pytest.raises(UserError, match="modes has"):
        parse_mode(text, KEY)


def test_in_mode_rejects_bags_of_images() -> None:
    with pytest.raises(UserError, match="has images"):
        in_mode(sparse([[1]]), parse_mode("binary", KEY), "document", None)


def test_words_shared() -> None:
    embeddings = sparse([[5, 4, 3, 2], [0, 0, 0, 9], [0, 0, 0, 0]])
    bow = sparse([[1, 0, 1, 1], [0, 0, 0, 2], [1, 1, 1, 1]])
    assert words_shared(embeddings, bow, 2) == pytest.approx((1 / 2 + 1 + 0) / 3)
