"""Ranks against a plain loop: several right documents, ties, NaN, chunks and devices."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from big_retrieval import parallel
from big_retrieval.evals.ranks import ranks
from big_retrieval.evals.retrieval import summarise
from big_retrieval.inference.encoder import Encoder
from tests.helpers import tiny

QUERIES, DOCUMENTS = 11, 6
VALUES = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])


def encoder(devices: int) -> Encoder:
    """An encoder that only ranks."""
    mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
    return Encoder(None, mesh, 8)  # type: ignore


ENCODERS = {devices: encoder(devices) for devices in (1, 8)}


def look_up(queries: jax.Array, documents: jax.Array) -> jax.Array:
    """A query's embedding is its row of scores, a document's its place in there."""
    return queries[:, documents[:, 0, 0].astype(int), 0]


def ranked(
    scores: np.ndarray, query_ids: np.ndarray, document_ids: np.ndarray, *, chunk: int, devices: int
) -> np.ndarray:
    """`ranks` on a table of scores [Q, D]."""
    places = np.zeros((scores.shape[1], scores.shape[1], 1), np.float32)  # [D, D, 1]
    places[:, 0, 0] = np.arange(scores.shape[1])
    return ranks(
        scores[..., None].astype(np.float32), query_ids, places, document_ids,
        score=look_up, encoder=ENCODERS[devices], chunk=chunk,
    )  # fmt: skip


def plain(scores: np.ndarray, query_ids: np.ndarray, document_ids: np.ndarray) -> list[int]:
    """The same by one loop over all pairs."""
    found = []
    for row, query in zip(scores, query_ids, strict=True):
        right = [s for s, d in zip(row, document_ids, strict=True) if d == query]
        wrong = [s for s, d in zip(row, document_ids, strict=True) if d != query]
        best = max(right, default=-np.inf) if not np.isnan(right).any() else np.nan
        found.append(1 + sum(1 for s in wrong if not s < best))
    return found


@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(VALUES, min_size=QUERIES * DOCUMENTS, max_size=QUERIES * DOCUMENTS),
    owners=st.lists(st.integers(0, 3), min_size=DOCUMENTS, max_size=DOCUMENTS),
    chunk=st.sampled_from([1, 3, 16]),
    devices=st.sampled_from([1, 8]),
)
def test_ranks_are_those_of_a_plain_loop(
    scores: list[float], owners: list[int], chunk: int, devices: int
) -> None:
    table = np.reshape(scores, (QUERIES, DOCUMENTS))
    ids, owned = np.arange(QUERIES) % 4, np.asarray(owners)
    found = ranked(table, ids, owned, chunk=chunk, devices=devices)
    assert found.dtype == np.int64
    assert found.tolist() == plain(table, ids, owned)


def test_a_hand_made_table() -> None:
    scores = np.array([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0], [1.0, 1.0, 0.0], [0.0, np.nan, 1.0]])
    ids, owners = np.array([0, 1, 0, 0]), np.array([0, 1, 0])
    # Best of two right ones; last; a tie with the wrong one; a wrong one without a number.
    assert ranked(scores, ids, owners, chunk=4, devices=1).tolist() == [1, 3, 2, 2]


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_scoring_everything_alike_is_no_better_than_chance(value: float) -> None:
    ids = np.arange(DOCUMENTS)
    found = ranked(np.full((DOCUMENTS, DOCUMENTS), value), ids, ids, chunk=4, devices=8)
    for k in range(1, DOCUMENTS):
        assert summarise(found, (k,))[f"R@{k}"] <= k / DOCUMENTS


def test_summary() -> None:
    found = summarise(np.array([1, 2, 2, 7, 30]), (1, 2, 10))
    assert found == {
        "R@1": 0.2, "R@2": 0.6, "R@10": 0.8, "mean_rank": 8.4, "median_rank": 2.0
    }  # fmt: skip
