"""Queries that are documents, too: the search skips them, as BEIR's evaluator does."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval

from big_retrieval.config import Beir, Config, Ranking, TextField
from big_retrieval.data.build import make_source
from big_retrieval.evals.bm25 import Bm25Ranking, text_columns
from big_retrieval.evals.judged import JudgedQueries, same_id_documents, without
from big_retrieval.evals.trec import read_run
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import TOKENIZER, Bound, PresetEncoder, bound
from tests.readers import text_reader

DEPTH = 6
FIELDS: dict[str, Any] = {
    "query": TextField(column="query"),
    "text": TextField(side="document", column="text"),
}
SPECS = {
    name: text_reader(field.column, side=field.side, length=8, tokenizer=TOKENIZER)
    for name, field in FIELDS.items()
}
CORPUS = {  # of different lengths, so that no scores tie
    f"d{i}": f"common word{i} word{(i * 7) % 5}" + i * " more" for i in range(12)
}
QUERIES = {"d3": CORPUS["d3"], "q1": "common word4", "d7": CORPUS["d7"], "d0": CORPUS["d0"]}
QRELS = {"d3": {"d4": 2, "d5": 1}, "q1": {"d4": 1}, "d7": {"d2": 1}, "d0": {"d9": 1}}


def task(folder: Path, **changes: Any) -> Ranking:
    """An evaluator of a folder of BEIR's layout."""
    for name, texts in (("corpus", CORPUS), ("queries", QUERIES)):
        rows = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("".join(rows))
    pairs = [f"{q}\t{d}\t{value}\n" for q, found in QRELS.items() for d, value in found.items()]
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(pairs))
    data = Beir(path=str(folder))
    keys: dict[str, Any] = {"metrics": ("nDCG@10", "R@5"), "depth": DEPTH}
    return Ranking(data=data, **(keys | changes))


def ranking(config: Ranking) -> Bound:
    """A model that ranks the document with the query's id first."""
    rng, names = np.random.default_rng(0), list(CORPUS)
    documents = rng.normal(size=(len(CORPUS), 1, 6)).astype(np.float32)
    queries = rng.normal(size=(len(QUERIES), 1, 6)).astype(np.float32)
    for index, query in enumerate(QUERIES):
        if query in names:
            queries[index] = 3 * documents[names.index(query)]
    encoder, source = PresetEncoder(query=queries, text=documents), make_source(config.data)
    return bound(config, source, SPECS, TOPOLOGIES["inner"], encoder, name="test")


def trec(run: dict[str, list[tuple[str, float]]]) -> dict[str, float]:
    """trec_eval's means over all judged queries."""
    scores = {query: dict(ranking) for query, ranking in run.items()}
    rows = pytrec_eval.RelevanceEvaluator(QRELS, {"ndcg_cut.10", "recall.5"}).evaluate(scores)
    names = {"nDCG@10": "ndcg_cut_10", "R@5": "recall_5"}
    return {name: float(np.mean([rows[q][x] for q in QRELS])) for name, x in names.items()}


def bm25(config: Ranking) -> Bound:
    source: Any = make_source(config.data)
    part = Bm25Ranking(**vars(config), columns=text_columns(Config(fields=FIELDS)))
    return bound(part, source, {}, None, None)


@pytest.mark.parametrize("make", [ranking, bm25])
def test_ranking_skips_the_document_with_the_query_id(
    make: Any, tmp_path: Path, said: list[str]
) -> None:
    found = make(task(tmp_path)).run({}, rankings=tmp_path / "new")
    assert said[0].endswith("; 3 queries skip the document with their id")
    run = read_run(tmp_path / "new" / "run.trec")
    assert found == pytest.approx(trec(run))
    make(task(tmp_path, same_id="keep", depth=20)).run({}, rankings=tmp_path / "kept")
    kept = read_run(tmp_path / "kept" / "run.trec")
    for query, documents in run.items():
        assert [d for d, _ in kept[query]].count(query) == (query in CORPUS)
        assert documents == [pair for pair in kept[query] if pair[0] != query][:DEPTH]
        assert len(documents) == DEPTH


def test_same_id_keys(tmp_path: Path) -> None:
    beir = task(tmp_path)
    source: Any = make_source(beir.data)
    assert same_id_documents(beir, source).tolist() == [3, -1, 7, 0]
    keep = same_id_documents(task(tmp_path, same_id="keep"), source)
    other = same_id_documents(Ranking(), source)  # of data in another form
    assert keep.tolist() == other.tolist() == [-1] * 4
    assert same_id_documents(Ranking(same_id="drop"), source).tolist() == [3, -1, 7, 0]
    summary = JudgedQueries(task(tmp_path, same_id="keep"), source).summary("", "")
    assert summary == "4 queries against 12 documents, 5 qrels"


def test_same_id_of_relevant_documents_skips_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """Queries and documents are numbered separately."""
    monkeypatch.setitem(QRELS, "d7", {"d7": 1, "d2": 1})
    config = task(tmp_path)
    source: Any = make_source(config.data)
    assert same_id_documents(config, source).tolist() == [-1] * 4
    assert "1 queries have the id of a document that is relevant" in said[0]
    drop = task(tmp_path, same_id="drop")
    assert same_id_documents(drop, source).tolist() == [3, -1, 7, 0]


def test_without_removes_document_and_closes_gap() -> None:
    hits, scores = np.array([[4, 2, 1], [0, 4, -1]]), np.array([[3.0, 2, 1], [2, 1, -np.inf]])
    kept, values = without(hits, scores, np.array([2, -1]), 2)
    assert kept.tolist() == [[4, 1], [0, 4]]
    assert values.tolist() == [[3, 1], [2, 1]]
    kept, values = without(hits, scores, np.array([2, -1]), 3)
    assert kept.tolist() == [[4, 1, -1], [0, 4, -1]]
    assert values.tolist() == [[3, 1, -np.inf], [2, 1, -np.inf]]
