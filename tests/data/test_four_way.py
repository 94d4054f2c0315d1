"""The four-way split of judged pairs."""

import numpy as np
import pytest

from big_retrieval.data.judged.four_way import (
    SPLITS,
    SplitOptions,
    draw_split,
    on_both_sides,
    split_of,
)
from big_retrieval.errors import UserError

QUERIES = [f"query {n}" for n in range(100)]
DOCUMENTS = [f"document {n}" for n in range(300)]


def test_draw_has_shares_and_split_of_names_pairs() -> None:
    parts = draw_split(QUERIES, DOCUMENTS, SplitOptions())
    assert parts.query_trains.sum() == 80
    assert parts.document_trains.sum() == 150
    assert parts.query_is_dev[parts.query_trains].sum() == 16
    assert parts.query_is_dev[~parts.query_trains].sum() == 4
    rng = np.random.default_rng(0)
    query, document = rng.integers(0, 100, 5000), rng.integers(0, 300, 5000)
    names = {
        (True, True): "in_domain", (False, True): "novel_query", (True, False): "novel_document",
        (False, False): "zero_shot",
    }  # fmt: skip
    for q, d, split in zip(query, document, split_of(query, document, parts), strict=True):
        assert SPLITS[split] == names[parts.query_trains[q], parts.document_trains[d]]


def test_draw_depends_on_seed_and_keys() -> None:
    first, again, other = (draw_split(QUERIES, DOCUMENTS, SplitOptions(seed)) for seed in (3, 3, 4))
    for name in ("query_trains", "document_trains", "query_is_dev"):
        one = getattr(first, name)
        np.testing.assert_array_equal(one, getattr(again, name))
        assert (one != getattr(other, name)).any()
    order = np.random.default_rng(0).permutation(100)
    moved = draw_split([QUERIES[i] for i in order], DOCUMENTS[::-1], SplitOptions(3))
    np.testing.assert_array_equal(moved.query_trains, first.query_trains[order])
    np.testing.assert_array_equal(moved.query_is_dev, first.query_is_dev[order])
    np.testing.assert_array_equal(moved.document_trains, first.document_trains[::-1])
    same = draw_split(QUERIES, QUERIES, SplitOptions(query_share=0.5))
    assert (same.query_trains != same.document_trains).any()


@pytest.mark.parametrize("seed", range(5))
def test_draw_keeps_equal_keys_together(seed) -> None:
    brands = [f"brand {n % 7}" for n in range(300)]
    queries = [f"query {n // 3}" for n in range(100)]
    parts = draw_split(queries, brands, SplitOptions(seed))
    for keys, trains in ((queries, parts.query_trains), (brands, parts.document_trains)):
        assert on_both_sides(keys, trains) == []
        assert 0 < trains.sum() < len(keys)
    assert on_both_sides(queries, parts.query_is_dev) == []
    assert abs(parts.query_trains.sum() - 80) <= 2  # half a group


def test_on_both_sides_finds_leaks() -> None:
    trains = np.array([True, False, True, False])
    assert on_both_sides(["b", "b", "a", "a"], trains) == ["a", "b"]
    assert on_both_sides(["b", "c", "b", "a"], trains) == []


@pytest.mark.parametrize(
    ("queries", "documents", "keys", "message"),
    [
        (QUERIES, DOCUMENTS, {"query_share": 1.0}, "share of the queries for training is 1.0"),
        (QUERIES, DOCUMENTS, {"document_share": 0.0}, "share of the documents"),
        (["a"] * 9, DOCUMENTS, {}, r"9 queries in 1 group\(s\) cannot be split 80% to 20%"),
        (QUERIES, ["a"], {}, "1 documents in 1 group"),
        ([], DOCUMENTS, {}, "0 queries"),
    ],
)
def test_draw_rejects_impossible_shares(queries, documents, keys, message) -> None:
    with pytest.raises(UserError, match=message):
        draw_split(queries, documents, SplitOptions(**keys))
