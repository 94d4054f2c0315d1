"""Positives against sets, and blocks of queries with lists of judged documents."""

import numpy as np
import pytest
import scipy.sparse

from benchmarks.tradeoff_systems import contain
from big_retrieval.data.judged import qrels
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.evals.positives import Positives


def test_positives_have_an_id_or_a_key_in_common() -> None:
    further = scipy.sparse.csr_array(([1.0, 1.0], ([0, 3], [4, 0])), shape=(4, 5))
    found = Positives(np.array([7, 3, 9, 3]), np.array([3, 7, 3, 5, 7]), further)
    assert found.padded(slice(0, 4)).tolist() == [[1, 4], [0, 2], [-1, -1], [0, 2]]
    assert found.padded([2]).tolist() == [[-1]]
    assert found.mask(0).tolist() == [False, True, False, False, True]
    asked = np.array([[1, -1], [1, 2], [0, 4], [2, 3]])
    expected = [[True, False], [False, True], [False, False], [True, False]]
    assert contain(found, asked).tolist() == expected


def test_a_block_of_queries_is_bounded_by_their_longest_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = [1, 2, 9, 1, 1, 1, 0]
    query = np.repeat(np.arange(7), lengths).astype(np.int32)
    judged = Qrels(query, np.arange(len(query), dtype=np.int32), np.ones(len(query)))
    monkeypatch.setattr(qrels, "CELLS", 4)
    blocks = [block.tolist() for block in judged.blocks(np.arange(6))]
    assert blocks == [[0, 1], [2], [3, 4, 5]]
    monkeypatch.setattr(qrels, "QUERIES", 2)
    assert [len(block) for block in judged.blocks(np.arange(6))] == [2, 1, 2, 1]
