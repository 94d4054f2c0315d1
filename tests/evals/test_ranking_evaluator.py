"""The ranking evaluator on preset embeddings, against plain loops."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from big_retrieval.config import Ranking
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.errors import UserError
from big_retrieval.evals import encoding
from big_retrieval.evals.evaluators import traffic
from big_retrieval.evals.graded import graded_metrics
from big_retrieval.evals.judged import select_queries
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import TOKENIZER, Bound, PresetEncoder, bound
from tests.readers import image_reader, text_reader

QUERIES, DOCUMENTS, WIDTH = 13, 30, 6
SPECS = {
    "query": text_reader("text", length=8, tokenizer=TOKENIZER),
    "image": image_reader("image", size=8, weight=0.7, optional=True),
    "title": text_reader(
        "title", side="document", weight=0.3, length=8, tokenizer=TOKENIZER, optional=True
    ),
}
NO_IMAGE, NO_TITLE = (3, 7, 20), (5, 20)
METRICS = ("nDCG@10", "ERR", "RBP@0.9", "MRR", "MAP", "R@5")


def source() -> Any:
    rng = np.random.default_rng(3)
    texts = [{"text": f"query {i}"} for i in range(QUERIES)]
    pixels = np.zeros((8, 8, 3), np.uint8)
    documents = [
        {
            "title": None if i in NO_TITLE else f"title {i}",
            "image": None if i in NO_IMAGE else pixels,
        }
        for i in range(DOCUMENTS)
    ]
    pairs = rng.permutation(QUERIES * DOCUMENTS)[:80]
    score = rng.integers(1, 101, 80).astype(float)
    judged = Qrels((pairs // DOCUMENTS).astype(int), (pairs % DOCUMENTS).astype(int), score)
    return SimpleNamespace(
        queries=Records(Rows(texts, "queries"), image=(), text=""),
        documents=Records(Rows(documents, "documents"), image=("image",), text=""),
        qrels=judged,
    )


class Preset(PresetEncoder):
    """An encoder with embeddings for every field and record; texts skip the missing records."""

    def __init__(self, devices: int = 1, constant: bool = False) -> None:
        rng = np.random.default_rng(1)
        project: Any = TOPOLOGIES["sphere"].project
        shape = DOCUMENTS, 1, WIDTH
        drawn = {name: rng.normal(size=shape).astype(np.float32) for name in SPECS}
        drawn = {name: np.ones_like(x) for name, x in drawn.items()} if constant else drawn
        super().__init__(devices, **{name: np.asarray(project(x)) for name, x in drawn.items()})

    def take_rows(self, field: str, records: np.ndarray, batches: list[Any]) -> np.ndarray:
        if field == "title":
            records = np.delete(np.arange(DOCUMENTS), NO_TITLE)[records]
        return self.tables[field][records]


def evaluator(encoder: Encoder, pairs: Any = None, **changes: Any) -> Bound:
    task = Ranking(metrics=METRICS, depth=12, chunk=4, **changes)
    return bound(task, pairs or source(), SPECS, TOPOLOGIES["sphere"], encoder)


def relevance_by_query() -> list[dict[int, float]]:
    """Relevance by document, for each query."""
    qrels, out = source().qrels, [dict[int, float]() for _ in range(QUERIES)]
    for q, d, score in zip(qrels.query, qrels.document, qrels.score, strict=True):
        out[q][int(d)] = score
    return out


def expected(table: dict[str, np.ndarray], weights: dict[str, float]) -> dict[str, float]:
    """The metrics by loops over queries and documents."""
    values = []
    for q, relevance in enumerate(relevance_by_query()):
        scores = {}
        for d in range(DOCUMENTS):
            present = {"image": d not in NO_IMAGE, "title": d not in NO_TITLE}
            mixed = sum(
                weight * table[f][d, 0] for f, weight in weights.items() if present[f] and weight
            )
            if np.any(mixed):
                scores[d] = table["query"][q, 0] @ (mixed / np.linalg.norm(mixed))
        order = sorted(scores, key=lambda d, s=scores: -s[d])[:12]
        row = np.array([[relevance.get(d, 0.0) for d in order]])
        judged = np.array([[*relevance.values(), 0.0]])
        values.append(graded_metrics(row, judged, METRICS))
    return {name: float(np.mean([v[name][0] for v in values])) for name in METRICS}


@pytest.mark.parametrize("devices", [1, 8])
def test_ranking_equals_loops(devices: int) -> None:
    encoder = Preset(devices)
    found = evaluator(encoder, documents=("title", "image=0.1,title=0.9")).run({})
    weightings = {
        "": {"image": 0.7, "title": 0.3},
        "title/": {"title": 1.0},
        "image=0.1,title=0.9/": {"image": 0.1, "title": 0.9},
    }
    by_hand = {
        f"{prefix}{name}": pytest.approx(value, rel=1e-6)
        for prefix, weights in weightings.items()
        for name, value in expected(encoder.tables, weights).items()
    }
    assert found == by_hand


def test_constant_scores_find_nothing() -> None:
    """Ties count against the model, also beyond the depth."""
    found = evaluator(Preset(constant=True)).run({})
    assert found["nDCG@10"] == found["R@5"] == 0  # far fewer than 19 of 29 documents are judged


def test_select_queries_splits_dev_and_test() -> None:
    parts = [
        select_queries(Ranking(queries=part, dev_seed=seed), 50)  # type: ignore
        for seed in (0, 1)
        for part in ("dev", "test", "all")
    ]
    assert [len(part) for part in parts] == [10, 40, 50] * 2
    for dev, test, every in (parts[:3], parts[3:]):
        np.testing.assert_array_equal(np.sort(np.concatenate([dev, test])), every)
    assert not np.array_equal(parts[0], parts[3])


def test_metrics_of_selected_queries(said: list[str]) -> None:
    encoder = Preset()
    every = evaluator(encoder).run({})
    dev = evaluator(encoder, queries="dev").run({})
    test = evaluator(encoder, queries="test").run({})
    for name in METRICS:
        assert (3 * dev[name] + 10 * test[name]) / 13 == pytest.approx(every[name])
    assert said[0].startswith("13 queries against 30 documents, 80 qrels (3 without image")
    assert said[1].startswith(f"13 queries are few: nDCG@10 {every['nDCG@10']:.3f} is from ")
    assert said[2].startswith("3 queries")


def with_ids() -> Any:
    pairs = source()
    pairs.queries.ids = lambda: pa.array([f"q{n}" for n in range(QUERIES)])
    return pairs


def test_query_file_selects_queries(tmp_path: Path, said: list[str]) -> None:
    names = {0: "q0_{!@#~}_", 5: "q5_{!@#~}_", 7: "q7"}  # GCL's authors append a separator

    def task(*names: str) -> Bound:
        file = tmp_path / f"{len(names)}{names[0]}.json"
        file.write_text(json.dumps({name: {"d": 100} for name in names}))
        return evaluator(Preset(), with_ids(), query_file=str(file))

    several: Any = task(*names.values(), "unknown")
    np.testing.assert_array_equal(several.part.judgements(several.context).asked, [*names])
    assert len(said) == 1
    assert "1 of 4 queries of " in said[0]
    values = [task(name).run({}) for name in names.values()]
    means = {m: np.mean([v[m] for v in values]) for m in METRICS}
    assert several.run({}) == pytest.approx(means)


@pytest.mark.parametrize("content", ['{"other": {}}', "[1]", "{"])
def test_bad_query_file_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "gt.json"
    file.write_text(content)
    with pytest.raises(UserError, match=r"gt\.json"):
        evaluator(Preset(), with_ids(), query_file=str(file)).check()


def test_no_selected_query_is_rejected() -> None:
    with pytest.raises(UserError, match="queries='test' selects no query"):
        evaluator(Preset(), queries="test", dev_share=0.99).check()


def test_traffic_averages_metrics_by_weight() -> None:
    encoder = Preset()
    evaluators = {
        "ranking/a": evaluator(encoder, traffic=3.0),
        "ranking/b": evaluator(encoder, traffic=1.0),
        "ranking/c": evaluator(encoder),
    }
    found = {"ranking/a/ERR": 0.2, "ranking/b/ERR": 0.6, "ranking/c/ERR": 9, "ranking/a/MRR": 1}
    assert traffic(evaluators, found) == {"ranking/traffic/ERR": pytest.approx(0.3)}
    assert traffic(evaluators, {"ranking/a/ERR": 0.2}) == {}
    assert traffic({}, found) == {}


@pytest.mark.parametrize("count", [None, 6])
def test_examples_show_grades_and_their_sums(count: int | None) -> None:
    _, shown = evaluator(Preset(), shown=count).examples({})
    (direction,) = shown["directions"]
    assert direction["answers"] == DOCUMENTS
    assert [group["name"] for group in direction["groups"]] == ["spread", "deepest"]
    lowest = [e["metrics"]["nDCG@10"] for e in direction["groups"][1]["examples"]]
    assert lowest == sorted(lowest)
    for example in direction["groups"][0]["examples"]:
        judged = relevance_by_query()[example["place"]]
        assert example["query"]["text"] == f"query {example['place']}"
        assert example["summed"] == (count or 10)
        assert example["best_sum"] == sum(sorted(judged.values(), reverse=True)[: count or 10])
        assert len(example["answers"]) == (count or 5)
        assert example["right_answers"] == len(judged)
        for answer in example["answers"]:
            assert answer["relevance"] == judged.get(answer["record"], 0.0)
            assert ("picture" in answer) == (answer["record"] not in NO_IMAGE)
            assert ("text" in answer) == (answer["record"] not in NO_TITLE)


def test_single_ranking_overwrites_the_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several rankings of the same fields keep the arrays; blocks of 7 rows are moved."""
    monkeypatch.setattr(encoding, "ROWS", 7)
    single = evaluator(Preset()).run({})
    several = evaluator(Preset(), documents=("title",)).run({})
    assert single == {name: several[name] for name in METRICS}
    assert several["title/nDCG@10"] == pytest.approx(
        expected(Preset().tables, {"title": 1.0})["nDCG@10"]
    )
    x = np.arange(20, dtype=np.float32)[:, None, None] + 1
    fields, present = {"image": x.copy()}, {"image": np.arange(20) % 3 > 0}
    arguments: Any = (TOPOLOGIES["inner"], fields, {"image": 0.7}, present)
    kept, rows = encoding.average(*arguments), np.flatnonzero(present["image"])
    np.testing.assert_array_equal(fields["image"], x)
    mixed = encoding.average(*arguments, overwrite=True)
    chosen = encoding.chosen_rows(mixed, rows, overwrite=True)
    assert np.shares_memory(chosen, fields["image"])
    np.testing.assert_array_equal(chosen, kept[rows])
