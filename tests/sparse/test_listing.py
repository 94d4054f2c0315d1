"""Listings and averages against plain loops."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval.errors import UserError
from big_retrieval.explain.vocabulary import box, usage_of
from big_retrieval.sparse import listing

V = 9
WORDS = [f"w{i}" for i in range(V)]
ROWS = st.lists(st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 3.0]), min_size=V, max_size=V)
COUNTS = st.one_of(st.none(), st.integers(1, V + 2))


def expected(row: list[float], count: int | None) -> list[tuple[str, float]]:
    """The strongest by a plain sort."""
    order = sorted((i for i in range(V) if row[i]), key=lambda i: (-row[i], i))
    return [(WORDS[i], row[i]) for i in order[:count]]


@given(row=ROWS, count=COUNTS)
def test_strongest_equals_a_plain_sort(row: list[float], count: int | None) -> None:
    assert listing.strongest(np.array(row), WORDS, count) == expected(row, count)
    sparse = scipy.sparse.csr_array(np.array([row]))
    assert listing.strongest(sparse, WORDS, count) == expected(row, count)


def test_strongest_of_unsorted_sparse_row() -> None:
    values, terms = np.array([1.0, 2.0, 1.0]), np.array([5, 7, 2])
    row = scipy.sparse.csr_array((values, terms, np.array([0, 3])), shape=(1, V))
    assert listing.strongest(row, WORDS) == [("w7", 2.0), ("w2", 1.0), ("w5", 1.0)]


@settings(deadline=None)
@given(query=ROWS, document=ROWS, count=COUNTS)
def test_shared_equals_plain_products(
    query: list[float], document: list[float], count: int | None
) -> None:
    score = float(np.dot(query, document))
    kept = [{w for w, _ in expected(row, count)} for row in (query, document)]
    products = [
        (-query[i] * document[i], i) for i in range(V) if all(WORDS[i] in side for side in kept)
    ]
    for make in (np.array, lambda row: scipy.sparse.csr_array(np.array([row]))):
        found = listing.shared(make(query), make(document), WORDS, count)
        assert found.score == pytest.approx(score)
        assert [word for word, *_ in found.words] == [WORDS[i] for _, i in sorted(products)]
        for word, product, share in found.words:
            i = WORDS.index(word)
            assert product == query[i] * document[i]
            assert share == pytest.approx(product / score)
        if count is None and score:
            assert sum(share for *_, share in found.words) == pytest.approx(1)


@pytest.mark.parametrize("sparse", [False, True])
def test_usage_of_blocks(sparse: bool) -> None:
    rng = np.random.default_rng(0)
    rows = rng.random((10, V)) * (rng.random((10, V)) < 0.4)
    rows[:, 3] = 0
    blocks = [rows[:4], rows[4:5], rows[5:]]
    found = usage_of([scipy.sparse.csr_array(block) if sparse else block for block in blocks])
    assert found.rows == 10
    np.testing.assert_allclose(found.means, rows.mean(axis=0))
    np.testing.assert_allclose(found.shares, (rows > 0).mean(axis=0))
    assert found.coverage == np.count_nonzero(rows.any(axis=0)) == V - 1
    assert found.nonzero == pytest.approx((rows > 0).sum() / 10)
    assert found.weight(2) == pytest.approx(np.sort(rows.sum(axis=0))[-2:].sum() / rows.sum())
    with pytest.raises(UserError, match="Nothing to average"):
        usage_of([])


def test_box_by_hand() -> None:
    means = np.array([0.0, 1, 2, 3, 4, 5, 6, 7, 8, 50])  # 0 is an unused word
    found = box(means)
    assert (found.first, found.median, found.third) == (3, 5, 7)  # of 1 to 8 and 50
    assert (found.low, found.high, found.mean) == (1, 8, pytest.approx(86 / 9))
    assert found.outside.tolist() == [9]
    assert found.values.tolist() == [50]
    assert box(means, 3).median == 8  # of 50, 8, 7
    with pytest.raises(UserError, match="every term is 0"):
        box(np.zeros(4))


@settings(deadline=None)  # the first call imports matplotlib
@given(values=st.lists(st.floats(0.001, 10), min_size=1, max_size=30))
def test_box_equals_matplotlib(values: list[float]) -> None:
    cbook = pytest.importorskip("matplotlib.cbook")
    (expected,) = cbook.boxplot_stats(np.array(values))
    found = box(np.array(values), None)
    for name, key in {"low": "whislo", "first": "q1", "median": "med", "high": "whishi"}.items():
        assert getattr(found, name) == pytest.approx(expected[key])
    assert sorted(found.values.tolist()) == sorted(expected["fliers"].tolist())
