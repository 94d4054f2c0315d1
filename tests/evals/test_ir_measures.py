"""ir_measures finds our numbers in the run files of `search`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from big_retrieval.evals.comparison import values_of_run
from big_retrieval.evals.trec import read_qrels, read_run
from big_retrieval.retrieval.searching import IndexSearcher
from tests.retrieval.index_cases import make_inverted

NAMES = {"nDCG@10": "nDCG@10", "nDCG": "nDCG", "MRR@10": "RR@10", "MAP@20": "AP@20"}
NAMES |= {name: name for name in ("R@10", "R@100", "P@5")}
if shutil.which("perl"):  # gdeval, which ir_measures runs for ERR, is written in Perl
    NAMES["ERR@20"] = "ERR@20"


def by_ir_measures(qrels: Path, run: Path, names: dict[str, str]) -> dict[str, float]:
    """Means over queries by our names."""
    measures = pytest.importorskip("ir_measures")
    wanted = {ours: measures.parse_measure(theirs) for ours, theirs in names.items()}
    found = measures.calc_aggregate(
        list(wanted.values()),
        list(measures.read_trec_qrels(str(qrels))),
        list(measures.read_trec_run(str(run))),
    )
    return {ours: found[measure] for ours, measure in wanted.items()}


def write_qrels(path: Path, qrels: dict[str, dict[str, int]]) -> Path:
    lines = [f"{q} 0 {d} {s}\n" for q, found in qrels.items() for d, s in found.items()]
    path.write_text("".join(lines))
    return path


def test_the_run_of_a_search(tmp_path: Path) -> None:
    """gdeval takes numbers as queries, and relevance up to 4, which every query has here."""
    rng = np.random.default_rng(0)
    rows, queries = (
        sparse.csr_array(np.float32(rng.random((n, 30)) * (rng.random((n, 30)) < 0.3)))
        for n in (200, 12)
    )

    def encode(texts: Any) -> Any:
        return queries[[int(text) for text in texts]]

    index = make_inverted(tmp_path / "index", rows)
    searcher = IndexSearcher(index, "bag", "query", False, "text", encode)
    lines = [json.dumps({"id": str(i), "text": str(i)}) for i in range(12)]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    run = tmp_path / "run.trec"
    searcher.write_run(str(tmp_path / "queries.jsonl"), run, 100)
    chosen = {str(i): rng.choice(200, 20, replace=False).tolist() for i in range(12)}
    grades = [4, *rng.integers(0, 5, 19).tolist()]
    found = {q: dict(zip((f"d{d}" for d in ds), grades, strict=True)) for q, ds in chosen.items()}
    qrels = write_qrels(tmp_path / "qrels", found)
    _, values = values_of_run(read_run(run), read_qrels(qrels), list(NAMES))
    theirs = by_ir_measures(qrels, run, NAMES)
    for name in NAMES:
        assert values[name].mean() == pytest.approx(theirs[name], abs=2e-6), name

    pytest.importorskip("cwl")  # RBP; of relevance 0 and 1, as ir_measures' takes no others
    binary = {q: {d: int(s > 0) for d, s in of.items()} for q, of in found.items()}
    qrels = write_qrels(tmp_path / "binary", binary)
    _, values = values_of_run(read_run(run), read_qrels(qrels), ["RBP@0.9"])
    theirs = by_ir_measures(qrels, run, {"RBP@0.9": "RBP(p=0.9, rel=1)"})
    assert values["RBP@0.9"].mean() == pytest.approx(theirs["RBP@0.9"], abs=1e-6)
