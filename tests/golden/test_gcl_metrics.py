"""Reference values of "Generalized Contrastive Learning": weights of scores, ranking metrics.

What the arrays are and the tolerances: data/gcl/README.md. Every array of a file is compared or
goes into something that is compared.
"""

from collections.abc import Mapping

import numpy as np
import pytest

from big_retrieval.config import PairLabels
from big_retrieval.data.weights import make_weight
from big_retrieval.evals.graded import graded_metrics, mean_metrics
from big_retrieval.evals.graded_order import grades_of, order

Case = Mapping[str, np.ndarray]

BEIR = {"beir_ndcg": "nDCG", "beir_map": "MAP", "beir_recall": "R", "beir_precision": "P"}


@pytest.mark.golden("gcl", "score_to_weight.npz")
def test_score_to_weight(case: Case) -> None:
    """Eqs. 1 to 3 for two best scores."""
    names = ("linear", "inverse", "inverse_sqrt", "piecewise")
    assert set(case) == {
        *(f"{name}{end}" for name in (*names, "scores", "s_max") for end in ("", "_b")),
        "constant", "constant_c",
    }  # fmt: skip
    for end in ("", "_b"):
        for name in names:
            labels = PairLabels(score="score", weight=name, s_max=float(case[f"s_max{end}"]))
            ours = make_weight(labels)(case[f"scores{end}"])
            np.testing.assert_allclose(ours, case[f"{name}{end}"], rtol=1e-12, err_msg=name)
    labels = PairLabels(score="score", weight=str(case["constant_c"]))
    np.testing.assert_array_equal(make_weight(labels)(case["scores"]), case["constant"])
    ours = make_weight(PairLabels(score="score"))(case["scores"])
    np.testing.assert_array_equal(ours, case["constant"] / case["constant_c"])


def run_grades(case: Case, trec_ties: bool) -> np.ndarray:
    """The grades of a run in rank order, [Q, depth]."""
    found = grades_of(case["run_docs"], case["qrel_docs"], case["qrel_rels"])
    scores = np.where(case["run_docs"] < 0, -np.inf, case["run_scores"])
    names = np.array([[f"d{doc:04d}" for doc in row] for row in case["run_docs"]])
    places = order(scores, found, names if trec_ties else "given")
    return np.take_along_axis(found, places, axis=1)


@pytest.mark.golden("gcl", "metrics_*.npz")
def test_metrics(case: Case) -> None:
    """Every metric of every query and every mean, ties as the reference breaks them."""
    ks, missing, compared = case["ks"].tolist(), case["run_missing"], set()
    judged = np.where(case["qrel_docs"] >= 0, case["qrel_rels"], 0)
    np.testing.assert_array_equal(missing, (case["run_docs"] < 0).all(axis=1))
    assert np.isnan(case["run_scores"][case["run_docs"] < 0]).all()

    stable = run_grades(case, trec_ties=False)
    names = {"err": "ERR", "rbp7": "RBP@0.7", "rbp8": "RBP@0.8", "rbp9": "RBP@0.9"}
    ours = graded_metrics(stable, judged, list(names.values()))
    means = mean_metrics(ours, ~missing)
    for theirs, name in names.items():
        np.testing.assert_allclose(ours[name], case[f"{theirs}_per_query"], rtol=1e-9)
        np.testing.assert_allclose(means[name], case[f"mean_{theirs}"], rtol=1e-9)
        compared |= {f"{theirs}_per_query", f"mean_{theirs}"}
    linear = graded_metrics(stable, judged, ["ERR"], "linear")["ERR"]
    np.testing.assert_allclose(linear, case["err_paper_text_per_query"], rtol=1e-9)

    trec, over_run = run_grades(case, trec_ties=True), ~missing
    ours = graded_metrics(trec, judged, [f"{name}@{k}" for name in BEIR.values() for k in ks])
    mrr = graded_metrics(stable, judged, [f"MRR@{k}" for k in ks])
    means = mean_metrics(ours, over_run, "run") | mean_metrics(mrr, over_run)
    per_query = np.stack([ours[f"nDCG@{k}"] for k in ks], axis=1)  # [Q, K]
    expected = case["ndcg_per_query"]
    np.testing.assert_array_equal(np.isnan(expected).all(axis=1), missing)
    np.testing.assert_allclose(per_query[~missing], expected[~missing], rtol=1e-9, atol=1e-12)
    for theirs, name in (BEIR | {"beir_mrr": "MRR"}).items():
        found = [means[f"{name}@{k}"] for k in ks]
        np.testing.assert_allclose(found, case[theirs], atol=1e-5, err_msg=theirs)
    inputs = {"qrel_docs", "qrel_rels", "run_docs", "run_scores", "run_missing", "ks"}
    outputs = {*BEIR, "beir_mrr", "ndcg_per_query", "err_paper_text_per_query"}
    assert set(case) == compared | inputs | outputs
