"""Graded ranking metrics against plain sums and trec_eval; ties, and rejected inputs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from big_retrieval.errors import UserError
from big_retrieval.evals.graded import (
    Metric,
    graded_metrics,
    mean_metrics,
    order,
    parse_metric,
)
from big_retrieval.evals.judged import relevance_of

ALL = ["nDCG@3", "nDCG", "ERR", "ERR@2", "RBP@0.9", "MRR", "MRR@1", "MAP", "MAP@4", "R@3", "P@3"]


def by_hand(ranked: list[float], judged: list[float]) -> dict[str, float]:
    def dcg(relevance: list[float]) -> float:
        return sum(g / math.log2(r + 1) for r, g in enumerate(relevance, 1))

    def err(relevance: list[float]) -> float:
        total, reached = 0.0, 1.0
        for rank, value in enumerate(relevance, 1):
            stop = (2**value - 1) / 2 ** max(judged)
            total, reached = total + reached * stop / rank, reached * (1 - stop)
        return total

    def rr(relevance: list[float]) -> float:
        return next((1 / r for r, g in enumerate(relevance, 1) if g > 0), 0.0)

    def precision(k: int) -> float:
        return sum(g > 0 for g in ranked[:k]) / k

    def ap(k: int) -> float:
        hits = [precision(r) for r, g in enumerate(ranked[:k], 1) if g > 0]
        return sum(hits) / relevant if relevant else 0.0

    best, relevant = sorted(judged, reverse=True), sum(g > 0 for g in judged)
    top = max(judged)
    rbp = sum(0.1 * g / top * 0.9**r for r, g in enumerate(ranked)) if top else 0.0
    return {
        "nDCG@3": dcg(ranked[:3]) / dcg(best[:3]) if top else 0.0,
        "nDCG": dcg(ranked) / dcg(best) if top else 0.0,
        "ERR": err(ranked),
        "ERR@2": err(ranked[:2]),
        "RBP@0.9": rbp,
        "MRR": rr(ranked),
        "MRR@1": rr(ranked[:1]),
        "MAP": ap(len(ranked)),
        "MAP@4": ap(4),
        "R@3": 3 * precision(3) / relevant if relevant else 0.0,
        "P@3": precision(3),
    }


def test_graded_metrics_equal_plain_sums() -> None:
    rng = np.random.default_rng(0)
    judged = rng.integers(0, 6, (40, 9)) * (rng.random((40, 9)) < 0.5)
    judged[4] = 0
    padded = np.concatenate([judged, np.zeros((40, 6))], axis=1)
    ranked = np.stack([rng.permutation(row)[:7] for row in padded])
    found = graded_metrics(ranked, judged, ALL)
    expected = [by_hand(list(r), list(j)) for r, j in zip(ranked, judged, strict=True)]
    assert set(found) == set(ALL)
    for name, values in found.items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, [row[name] for row in expected], atol=1e-12)
    assert all(values[4] == 0 for values in found.values())


def test_err_with_linear_gain_and_large_relevance() -> None:
    ranked = np.array([[0.0, 80.0, 100.0]])
    stops = [0.0, 80 / 101, 100 / 101]
    expected = stops[1] / 2 + (1 - stops[1]) * stops[2] / 3
    linear = graded_metrics(ranked, ranked, ["ERR"], "linear")["ERR"]
    np.testing.assert_allclose(linear, [expected])
    huge = graded_metrics(ranked * 1e3, ranked * 1e3, ["ERR"])["ERR"]
    np.testing.assert_allclose(huge, [1 / 3])


def trec(ranked: np.ndarray, scores: np.ndarray, judged: np.ndarray, relevance: np.ndarray) -> list:
    """Metrics of trec_eval; document ids are texts of different lengths."""
    qrel, run = {}, {}
    for query in range(len(judged)):
        pairs = zip(judged[query], relevance[query], strict=True)
        qrel[str(query)] = {f"d{doc}": int(value) for doc, value in pairs if doc >= 0}
        pairs = zip(ranked[query], scores[query], strict=True)
        run[str(query)] = {f"d{doc}": float(score) for doc, score in pairs if doc >= 0}
    measures = {"ndcg_cut.3,10", "ndcg", "recip_rank", "map", "map_cut.5", "recall.3,10", "P.3,10"}
    found = pytrec_eval.RelevanceEvaluator(qrel, measures).evaluate(run)
    return [found[str(query)] for query in range(len(judged))]


@pytest.mark.parametrize("ties", [False, True])
def test_graded_metrics_equal_trec_eval(ties) -> None:
    rng = np.random.default_rng(int(ties))
    ranked = np.stack([rng.permutation(200)[:40] for _ in range(60)])
    judged = np.stack([rng.permutation(200)[:30] for _ in range(60)])
    relevance = rng.integers(0, 5, judged.shape) * (rng.random(judged.shape) < 0.7)
    scores = rng.integers(0, 12 if ties else 10**6, ranked.shape) / 8
    judged[:20, 20:] = -1
    ranked[5:30, 15:], scores[5:30, 15:] = -1, -np.inf
    names = {
        "nDCG@3": "ndcg_cut_3", "nDCG@10": "ndcg_cut_10", "nDCG": "ndcg", "MRR": "recip_rank",
        "MAP": "map", "MAP@5": "map_cut_5", "R@3": "recall_3", "R@10": "recall_10", "P@3": "P_3",
        "P@10": "P_10",
    }  # fmt: skip
    rows = trec(ranked, scores, judged, relevance)
    found = relevance_of(ranked, judged, relevance)
    keys = np.array([[f"d{doc}" for doc in row] for row in ranked])
    found = np.take_along_axis(found, order(scores, found, keys), 1)
    values = graded_metrics(found, np.where(judged >= 0, relevance, 0), list(names))
    for name, measure in names.items():
        expected = [row[measure] for row in rows]
        assert np.ptp(expected) > 0, name
        np.testing.assert_allclose(values[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


def test_order_of_ties() -> None:
    scores = np.array([[1.0, 2.0, 2.0, 2.0, 1.0, -np.inf]])
    relevance = np.array([[9.0, 3.0, 0.0, 5.0, 0.0, 0.0]])
    assert order(scores, relevance).tolist() == [[2, 1, 3, 4, 0, 5]]
    assert order(scores, relevance, "given").tolist() == [[1, 2, 3, 0, 4, 5]]
    names = np.array([["a", "d10", "d9", "d1", "b", ""]])
    assert order(scores, relevance, names).tolist() == [[2, 1, 3, 4, 0, 5]]
    assert order(scores, relevance, -np.arange(6.0)[None]).tolist() == [[1, 2, 3, 0, 4, 5]]
    nothing, judged = np.zeros((1, 100)), np.pad(np.full((1, 5), 3.0), ((0, 0), (0, 95)))
    ranked = np.take_along_axis(judged, order(nothing, judged), 1)
    assert graded_metrics(ranked, judged, ["nDCG@10"])["nDCG@10"] == [0]
    nan = np.array([[np.nan, 1.0, np.nan]])
    assert order(nan, np.array([[2.0, 1.0, 0.0]])).tolist() == [[2, 1, 0]]


def test_sentence_transformers_differs_only_in_the_order_of_ties() -> None:
    """Its evaluators rank tied documents by ascending id."""
    found = json.loads(Path(__file__).with_name("ties.json").read_text())
    scores, expected = np.array(found["scores"]), found["metrics"]
    relevance = np.zeros(scores.shape)
    for query, right in enumerate(found["right"]):
        relevance[query, right] = 1
    ids = np.array([f"d{document}" for document in range(scores.shape[1])])
    ascending = np.broadcast_to(-np.unique(ids, return_inverse=True)[1], scores.shape)
    for ties, same in ((ascending, True), ("against", False)):
        ranked = np.take_along_axis(relevance, order(scores, relevance, ties), 1)
        means = mean_metrics(graded_metrics(ranked, relevance, list(expected)))
        assert (means == pytest.approx(expected, abs=1e-9)) == same


def test_relevance_of_documents() -> None:
    judged, relevance = np.array([[4, 0, -1], [-1, -1, -1]]), np.array([[3, 1, 7], [0, 0, 0]])
    documents = np.array([[0, 4, -1, 2], [4, 0, 1, -1]])
    assert relevance_of(documents, judged, relevance).tolist() == [[1, 3, 0, 0], [0, 0, 0, 0]]
    assert relevance_of(documents, judged[1:].repeat(2, 0), relevance).tolist() == [[0] * 4] * 2


def test_mean_metrics_counts_queries_without_a_ranking() -> None:
    values = {"nDCG": np.array([1.0, 0.5, np.nan]), "MRR": np.array([1.0, 1.0, 0.0])}
    ran = np.array([True, True, False])
    assert mean_metrics(values, ran) == {"nDCG": 0.5, "MRR": 2 / 3}
    assert mean_metrics(values, ran, "run") == {"nDCG": 0.75, "MRR": 1.0}
    assert mean_metrics({"MRR": values["MRR"]}) == {"MRR": 2 / 3}
    assert math.isnan(mean_metrics({"a": np.zeros(0)})["a"])
    assert math.isnan(mean_metrics(values, ran & False, "run")["MRR"])


def test_parse_metric() -> None:
    assert parse_metric("nDCG@10") == Metric("nDCG", 10)
    assert parse_metric("MAP") == Metric("MAP")
    assert parse_metric("RBP@0.75") == Metric("RBP", None, 0.75)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NDCG@10", "did you mean 'nDCG@10'"),
        ("nDG@10", "did you mean 'nDCG@10'"),
        ("accuracy", "known: nDCG@10, nDCG, ERR"),
        ("", "known: nDCG@10"),
        ("nDCG@", "needs a number of documents: nDCG@10"),
        ("MRR@0", "needs a number of documents: MRR@10"),
        ("P@-1", "needs a number"),
        ("R@1.5", "needs a number"),
        ("R", "needs a number of documents: R@10"),
        ("RBP", "needs a persistence"),
        ("RBP@1", "needs a persistence"),
        ("RBP@nan", "needs a persistence"),
    ],
)
def test_parse_metric_rejects(name, message) -> None:
    with pytest.raises(UserError, match=message):
        parse_metric(name)


@pytest.mark.parametrize(
    ("relevance", "judged", "message"),
    [
        (np.zeros((2, 3)), np.zeros((3, 3)), "must be 2-D"),
        (np.zeros(3), np.zeros(3), "must be 2-D"),
        (np.zeros((1, 3)), -np.ones((1, 3)), "judged must be finite and not negative"),
        (np.full((1, 3), np.nan), np.ones((1, 3)), "relevance must be finite"),
        (np.full((1, 3), 2.0), np.ones((1, 3)), "query 0: a ranked document has a higher"),
    ],
)
def test_graded_metrics_rejects(relevance, judged, message) -> None:
    with pytest.raises(UserError, match=message):
        graded_metrics(relevance, judged, ["nDCG"])


def test_order_rejects_different_shapes() -> None:
    with pytest.raises(UserError, match="the same 2-D shape"):
        order(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 2)))


def test_empty_ranking_has_zero_metrics() -> None:
    found = graded_metrics(np.zeros((1, 0)), np.ones((1, 2)), ALL)
    assert {name: values.tolist() for name, values in found.items()} == {n: [0.0] for n in ALL}
