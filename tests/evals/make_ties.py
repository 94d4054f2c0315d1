"""Writes ties.json by hand: tied scores, and the metrics of sentence-transformers 6.2."""

import json
from pathlib import Path

import numpy as np
from sentence_transformers.evaluation import InformationRetrievalEvaluator

QUERIES, DOCUMENTS = 12, 40


def main() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 9, (QUERIES, DOCUMENTS)) / 8
    right = {f"q{q}": rng.choice(DOCUMENTS, 1 + q % 3, replace=False) for q in range(QUERIES)}
    evaluator = InformationRetrievalEvaluator(
        {query: query for query in right},
        {f"d{d}": str(d) for d in range(DOCUMENTS)},
        {query: {f"d{d}" for d in found} for query, found in right.items()},
        mrr_at_k=[10], ndcg_at_k=[10], precision_recall_at_k=[10, 30], map_at_k=[10],
        accuracy_at_k=[1],
    )  # fmt: skip
    hits = [
        [{"corpus_id": f"d{d}", "score": float(score)} for d, score in enumerate(row)]
        for row in scores
    ]
    found = evaluator.compute_metrics(hits)
    content = {
        "scores": scores.tolist(),
        "right": [found.tolist() for found in right.values()],
        "metrics": {
            "nDCG@10": float(found["ndcg@k"][10]),
            "MRR@10": float(found["mrr@k"][10]),
            "R@10": float(found["recall@k"][10]),
            "R@30": float(found["recall@k"][30]),
        },
    }
    text = json.dumps(content)
    Path(__file__).with_name("ties.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
