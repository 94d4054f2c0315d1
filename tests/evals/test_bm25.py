"""BM25 against its formula written out."""

import math
import re
import sys
from collections import Counter

import numpy as np
import pytest

from benchmarks.tradeoff_systems import word_counts, word_weights
from big_retrieval.errors import UserError
from big_retrieval.evals.bm25 import Bm25

DOCUMENTS = [
    "a red circle", "a blue square", "a red square and a red circle", "Übergrößen für Männer", "",
    "a red circle", "circle", "5 g of salt", "...",
]  # fmt: skip
QUERIES = ["red circle", "RED", "für übergrößen", "5 g", "unseen words", "", "circle circle unseen"]


def by_hand(query: str, k1: float, b: float) -> list[float]:
    words = [re.findall(r"\w+", text.lower()) for text in DOCUMENTS]
    mean = sum(map(len, words)) / len(words)
    out = []
    for document in words:
        counts, total = Counter(document), 0.0
        for word in re.findall(r"\w+", query.lower()):
            n = sum(word in other for other in words)
            idf = math.log(1 + (len(words) - n + 0.5) / (n + 0.5))
            norm = k1 * (1 - b + b * len(document) / mean)
            total += idf * counts[word] / (counts[word] + norm) if counts[word] else 0
        out.append(total)
    return out


@pytest.mark.parametrize("depth", [1, 2, 20])
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4)])
def test_search_equals_the_formula(depth, k1, b) -> None:
    indices, scores, _ = Bm25(DOCUMENTS, k1=k1, b=b).search(QUERIES, depth)
    assert indices.dtype == np.int32
    assert indices.shape == scores.shape == (len(QUERIES), depth)
    for query, hits, values in zip(QUERIES, indices, scores, strict=True):
        expected = by_hand(query, k1, b)
        order = sorted(range(len(DOCUMENTS)), key=lambda i, e=expected: (-e[i], i))
        order = [i for i in order if expected[i] > 0][:depth]
        assert hits.tolist() == order + [-1] * (depth - len(order))
        np.testing.assert_allclose(values[: len(order)], [expected[i] for i in order], rtol=1e-5)
        assert np.isneginf(values[len(order) :]).all()


def test_words_are_not_cut_at_combining_marks() -> None:
    documents = ["\u092a\u093e\u0928\u0940", "\u092a\u093e\u0928", "the caf\u00e9s", "s"]
    found, _, _ = Bm25(documents).search(["\u092a\u093e\u0928", "cafe\u0301s"], 2)
    assert found.tolist() == [[1, -1], [2, -1]]


def test_scores_are_word_counts_times_word_weights() -> None:
    index = Bm25(DOCUMENTS)
    scores = (word_counts(index, QUERIES) @ word_weights(index, len(DOCUMENTS)).T).toarray()
    np.testing.assert_allclose(scores, [by_hand(q, 1.2, 0.75) for q in QUERIES], rtol=1e-5)
    empty = Bm25(["", "..."])
    assert (word_counts(empty, ["red"]) @ word_weights(empty, 2).T).toarray().tolist() == [[0, 0]]


def test_parts_add_up_to_the_score() -> None:
    index = Bm25(DOCUMENTS)
    for query in QUERIES:
        for document, score in enumerate(by_hand(query, 1.2, 0.75)):
            parts = index.parts(query, document)
            values = [value for _, value in parts]
            np.testing.assert_allclose(sum(values), score, rtol=1e-5)
            assert values == sorted(values, reverse=True)
            for word, value in parts:
                count = query.lower().split().count(word)
                expected = count * by_hand(word, 1.2, 0.75)[document]
                np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert Bm25(["", "..."]).parts("red", 0) == []


def test_search_without_documents_or_queries() -> None:
    for documents in ([], ["", "..."]):
        indices, scores, _ = Bm25(documents).search(["red"], 3)
        assert indices.tolist() == [[-1, -1, -1]]
        assert np.isneginf(scores).all()
    assert Bm25(DOCUMENTS).search([], 3)[0].shape == (0, 3)


def test_bm25_rejects_depth_zero_and_missing_library(monkeypatch) -> None:
    with pytest.raises(UserError, match="depth of a search is 0"):
        Bm25(DOCUMENTS).search(["red"], 0)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(UserError, match=r"install the extra big_retrieval\[bm25\]"):
        Bm25(DOCUMENTS)
