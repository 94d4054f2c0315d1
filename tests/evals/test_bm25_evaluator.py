"""Ranking evaluators with BM25, against metrics by hand."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, ImageField, Ranking, Retrieval, TextField
from big_retrieval.data.build import make_source
from big_retrieval.errors import UserError
from big_retrieval.evals import evaluators as evals
from big_retrieval.evals.bm25 import (
    Bm25Ranking,
    make_bm25_evaluators,
    side_texts,
    text_columns,
)
from big_retrieval.evals.comparison import values_of_run
from big_retrieval.evals.judged import select_queries
from big_retrieval.evals.trec import read_qrels, read_run
from tests.evals.bound import bound

QUERIES = {"q1": "red circle", "q2": "unseen words", "q3": "Acme", "q4": ""}
DOCUMENTS = {
    "d1": {"title": "red circle", "brand": "acme"},
    "d2": {"title": "red square", "brand": None},
    "d3": {"title": "blue star", "brand": "acme star"},
    "d4": {"title": "", "brand": None},
    "d5": {"title": ["green hexagon", "red circle"], "brand": None},
}
PAIRS = [
    ("q1", "d1", 50), ("q1", "d2", 100), ("q1", "d3", 80), ("q2", "d3", 10), ("q3", "d3", 7),
    ("q3", "d4", 3), ("q4", "d1", 5), ("q1", "d5", 0),
]  # fmt: skip
METRICS = ("nDCG@10", "MRR", "R@10", "P@1")
TITLE = TextField(side="document", column="title")
BRAND = TextField(side="document", column="brand", prefix="circle red ")


def judged(folder: Path) -> configs.Graded:
    """Writes the files of these pairs."""
    tables = {
        "queries": [{"query_id": key, "query": text} for key, text in QUERIES.items()],
        "documents": [{"document_id": key, **row} for key, row in DOCUMENTS.items()],
        "pairs": [dict(zip(("query_id", "document_id", "score"), p, strict=True)) for p in PAIRS],
    }
    for name, rows in tables.items():
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text)
    paths: Any = {name: str(folder / f"{name}.jsonl") for name in tables}
    return configs.Graded(path=paths.pop("pairs"), **paths, text=("query", "title", "brand"))


def config(folder: Path, *titles: TextField, **changes: Any) -> Config:
    """A config with text fields of documents and one ranking evaluator."""
    fields = {f"text{i}": field for i, field in enumerate(titles)}
    fields |= {"query": TextField(column="query", prefix="red circle ")}
    ranking = replace(Ranking(data=judged(folder), metrics=METRICS), **changes)
    return Config(fields=fields, evals={"test": ranking})


def metrics_of(c: Config) -> dict[str, float]:
    sources = {name: make_source(ev.data) for name, ev in c.evals.items()}
    made, _ = make_bm25_evaluators(c, sources)
    for part, context in made.values():
        part.check_data(context)
    return evals.run(made, set(made), None)


def test_metrics_by_hand(tmp_path: Path, said: list[str]) -> None:
    found = metrics_of(config(tmp_path, TITLE))
    best = 100 + 80 / math.log2(3) + 50 / 2
    expected = {
        "nDCG@10": (50 + 100 / math.log2(3)) / best / 4,  # d1, d2; q2 to q4 find nothing
        "MRR": 1 / 4,
        "R@10": 2 / 3 / 4,
        "P@1": 1 / 4,
    }
    assert found == pytest.approx({f"ranking/test/{name}": x for name, x in expected.items()})
    assert "4 queries against 5 documents by BM25, 8 qrels" in said[0]
    assert (
        "1 queries without text, 1 documents without text, 3 queries without any result" in said[0]
    )


def test_texts_of_several_columns_are_joined_without_prefixes(
    tmp_path: Path, said: list[str]
) -> None:
    found = metrics_of(config(tmp_path, TITLE, BRAND, TITLE, metrics=("R@10", "MRR")))
    # q3 finds d1 and d3, the shorter d1 first; no query finds d4, whose columns are empty.
    assert found["ranking/test/R@10"] == pytest.approx((2 / 3 + 1 / 2) / 4)
    assert found["ranking/test/MRR"] == pytest.approx((1 + 1 / 2) / 4)
    assert "1 documents without text" in said[0]
    c = config(tmp_path, TITLE, BRAND)
    assert text_columns(c) == {"query": ("query",), "document": ("title", "brand")}
    documents = make_source(c.evals["test"].data).documents  # type: ignore
    texts = side_texts(documents, ("title", "brand"))
    assert texts == ["red circle acme", "red square", "blue star acme star", "", "green hexagon"]
    assert side_texts(documents, ("brand",), np.array([2, 1])) == ["acme star", ""]


def test_depth_and_queries(tmp_path: Path) -> None:
    found = metrics_of(config(tmp_path, TITLE, depth=1, metrics=("R@10",)))
    assert found["ranking/test/R@10"] == pytest.approx(1 / 3 / 4)
    c = config(tmp_path, TITLE, queries="dev", dev_share=0.5, dev_seed=3, metrics=("P@1",))
    indices = select_queries(c.evals["test"], 4)  # type: ignore
    assert metrics_of(c)["ranking/test/P@1"] == pytest.approx(float(0 in indices) / 2)


def test_make_bm25_evaluators_needs_rankings_of_texts(tmp_path: Path) -> None:
    c = config(tmp_path, TITLE)
    for evaluators, words in (({}, "has no evaluator"), ({"a": Retrieval()}, "has retrieval/a")):
        with pytest.raises(UserError, match=words):
            make_bm25_evaluators(replace(c, evals=evaluators), {})
    made, skipped = make_bm25_evaluators(replace(c, evals={**c.evals, "a": Retrieval()}), {})
    assert (list(made), skipped) == (["ranking/test"], ["retrieval/a"])
    pictures = {"query": c.fields["query"], "image": ImageField()}
    with pytest.raises(UserError, match="needs a text field on the document side"):
        text_columns(replace(c, fields=pictures))
    with pytest.raises(UserError, match="needs a text field on the query side"):
        text_columns(replace(c, fields={"text": TITLE}))


def test_columns_without_texts_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column 'nope'"):
        metrics_of(config(tmp_path, replace(TITLE, column="nope")))
    c = config(tmp_path, BRAND)
    lines = (tmp_path / "documents.jsonl").read_text().splitlines()
    rows = [{**json.loads(line), "brand": ""} for line in lines]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="has no text in 'brand'"):
        metrics_of(c)


def test_missing_judged_documents_count_as_not_found(tmp_path: Path, said: list[str]) -> None:
    """As in trec_eval: q1 misses one of two documents, q3 its only document."""
    made = config(tmp_path, TITLE, metrics=("nDCG@10", "MRR", "R@10"))
    rows = [("q1", "d1", 1), ("q1", "gone", 1), ("q3", "lost", 1)]
    names = ("query_id", "document_id", "score")
    lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
    (tmp_path / "pairs.jsonl").write_text("".join(lines))
    found = metrics_of(made)
    expected = {"nDCG@10": 1 / (1 + 1 / math.log2(3)) / 2, "MRR": 1 / 2, "R@10": 1 / 4}
    assert found == pytest.approx({f"ranking/test/{name}": x for name, x in expected.items()})
    assert "2 queries against 5 documents by BM25, 1 qrels and 2 of missing documents" in said[-2]


def test_run_of_bm25_has_the_metrics_of_the_evaluator(tmp_path: Path) -> None:
    """For ids of any form, and tied scores."""
    ids = ["a b", "a%20b", '"Weird"_Song', '12"_Single', "a\u00a0b", "d'", "50%", "zz"]
    (tmp_path / "qrels").mkdir()
    rows = {
        "corpus": [{"_id": x, "text": f"apple w{i // 4}"} for i, x in enumerate(ids)],
        "queries": [{"_id": f"q {x}", "text": f"apple w{i // 4}"} for i, x in enumerate(ids)],
    }
    for name, records in rows.items():
        text = "".join(json.dumps(row) + "\n" for row in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
    qrels = tmp_path / "qrels" / "test.tsv"
    with qrels.open("w", newline="") as file:
        table = csv.writer(file, "excel-tab")
        pairs = [(f"q {x}", x, 1 + i % 2) for i, x in enumerate(ids)]
        table.writerows([("query-id", "corpus-id", "score"), *pairs, ("q zz", "gone", 1)])
    data = configs.Beir(path=str(tmp_path))
    metrics = ("nDCG@10", "MRR", "R@3", "MAP")
    columns = {"query": ("query",), "document": ("text",)}
    part = Bm25Ranking(data=data, metrics=metrics, columns=columns)
    expected = bound(part, make_source(data), {}, None, None).run({}, rankings=tmp_path)
    run = read_run(tmp_path / "run.trec")
    _, values = values_of_run(run, read_qrels(qrels), metrics)
    assert {name: x.mean() for name, x in values.items()} == pytest.approx(expected)
    assert 0 < expected["MRR"] < 1
