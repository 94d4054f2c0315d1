"""The ranking evaluator on embeddings that are known, against plain loops."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.config import ImageField, Ranking, TextField
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.judged.qrels import Qrels
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import encoding
from big_retrieval.evals.evaluators import traffic
from big_retrieval.evals.graded import graded_metrics
from big_retrieval.evals.judged import select_queries
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.inference.encoder import Encoder
from big_retrieval.report.example_files.ranking import _item
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import Bound, bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

QUERIES, DOCUMENTS, WIDTH = 13, 30, 6
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
FIELDS = {
    "query": TextField(column="text"),
    "image": ImageField(weight=0.7, optional=True),
    "title": TextField(side="document", column="title", weight=0.3, optional=True),
}
SPECS = {
    "query": text_reader("text", length=8, tokenizer=TOKENIZER),
    "image": image_reader("image", size=8, weight=0.7, optional=True),
    "title": text_reader(
        "title", side="document", weight=0.3, length=8, tokenizer=TOKENIZER, optional=True
    ),
}
NO_IMAGE, NO_TITLE, NEITHER = (3, 7, 20), (5, 20), 20
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
    """An encoder with embeddings of its own for every field and record."""

    def __init__(self, devices: int = 1, alike: bool = False) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        rng = np.random.default_rng(1)
        self.table = {
            name: rng.normal(size=(DOCUMENTS, 1, WIDTH)).astype(np.float32) for name in FIELDS
        }
        if alike:
            self.table = {name: np.ones_like(x) for name, x in self.table.items()}
        self.table = {
            name: np.asarray(TOPOLOGIES["sphere"].project(x)) for name, x in self.table.items()
        }

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        kept = np.concatenate([batch["record"][batch["valid"]] for batch in batches])
        records = kept
        if field == "title":  # texts are numbered without the missing ones
            records = np.array([i for i in range(DOCUMENTS) if i not in NO_TITLE])[kept]
        return self.table[field][records], kept


def evaluator(encoder: Encoder, of: Any = None, **changes: Any) -> Bound:
    task = Ranking(metrics=METRICS, depth=12, chunk=4, **changes)
    return bound(task, of or source(), SPECS, TOPOLOGIES["sphere"], encoder)


def expected(table: dict[str, np.ndarray], weights: dict[str, float]) -> dict[str, float]:
    """The same by loops over queries and documents."""
    of, values = source(), []
    for q in range(QUERIES):
        scores = {}
        for d in range(DOCUMENTS):
            present = {"image": d not in NO_IMAGE, "title": d not in NO_TITLE}
            mixed = sum(
                weight * table[f][d, 0] for f, weight in weights.items() if present[f] and weight
            )
            if np.any(mixed):
                scores[d] = table["query"][q, 0] @ (mixed / np.linalg.norm(mixed))
        relevance = {
            int(d): s
            for n, d, s in zip(of.qrels.query, of.qrels.document, of.qrels.score, strict=True)
            if n == q
        }
        order = sorted(scores, key=lambda d, s=scores: -s[d])[:12]
        row = np.array([[relevance.get(d, 0.0) for d in order]])
        judged = np.array([[*relevance.values(), 0.0]])
        values.append(graded_metrics(row, judged, METRICS))
    return {name: float(np.mean([v[name][0] for v in values])) for name in METRICS}


@pytest.mark.parametrize("devices", [1, 8])
def test_the_same_as_loops(devices: int) -> None:
    encoder = Preset(devices)
    found = evaluator(encoder, documents=("title", "image=0.1,title=0.9")).run({})
    weightings = {
        "": {"image": 0.7, "title": 0.3},
        "title/": {"title": 1.0},
        "image=0.1,title=0.9/": {"image": 0.1, "title": 0.9},
    }
    wanted = {
        f"{way}{name}": value
        for way, weights in weightings.items()
        for name, value in expected(encoder.table, weights).items()
    }
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-6), name


def test_a_model_that_finds_all_alike_gets_nothing_but_chance() -> None:
    """Ties count against it: what was judged comes last, also beyond the depth."""
    of = source()
    found = evaluator(Preset(alike=True), of).run({})
    assert found["nDCG@10"] == 0  # of 29 documents far fewer than 19 are judged
    assert found["R@5"] == 0


def scorer_of(documents: np.ndarray) -> DocumentScorer:
    """A scorer by inner products, without a model."""
    devices: Any = SimpleNamespace(
        whole=np.asarray,
        row_multiple=lambda: 1,
        map_rows=lambda function, rows, *rest: jax.device_get(function(*rows, *rest)),
    )
    score: Any = lambda q, d: q[:, 0] @ d[:, 0]  # noqa: E731
    return DocumentScorer(documents, score=score, encoder=devices, chunk=8)


def test_ties_at_the_end_of_the_ranking() -> None:
    scores = np.array([[3.0, 1.0, 1.0, 1.0, 2.0, 1.0]])
    relevance = np.array([0.0, 0.0, 9.0, 4.0, 5.0, 0.0])
    queries = scores[:, None].astype(np.float32)
    scorer = scorer_of(np.eye(6, dtype=np.float32)[:, None])
    found, values = scorer.best(queries, 4, lambda q: relevance)
    np.testing.assert_array_equal(found, [[0, 4, 1, 5]])
    np.testing.assert_array_equal(values, [[3, 2, 1, 1]])
    found, _ = scorer.best(queries, 6, lambda q: relevance)
    np.testing.assert_array_equal(found, [[0, 4, 1, 5, 3, 2]])


def test_nan_comes_last() -> None:
    queries = np.array([[[np.nan, 1.0]]], np.float32)
    documents = np.array([[[1.0, 0.0]], [[0.0, 1.0]]], np.float32)
    scorer = scorer_of(documents)
    found, scores = scorer.best(queries, 2, lambda q: np.array([5.0, 0.0]))
    np.testing.assert_array_equal(found, [[1, 0]])  # all NaN: the better one last
    assert np.isneginf(scores).all()


def test_queries_for_dev_and_test() -> None:
    parts = [
        select_queries(Ranking(queries=part, dev_seed=seed), 50)  # type: ignore
        for seed in (0, 1)
        for part in ("dev", "test", "all")
    ]
    assert [len(part) for part in parts] == [10, 40, 50] * 2
    for dev, test, every in (parts[:3], parts[3:]):
        np.testing.assert_array_equal(np.sort(np.concatenate([dev, test])), every)
    assert not np.array_equal(parts[0], parts[3])


def test_only_the_select_queries_are_asked(said: list[str]) -> None:
    encoder = Preset()
    whole = evaluator(encoder).run({})
    dev = evaluator(encoder, queries="dev").run({})
    test = evaluator(encoder, queries="test").run({})
    for name in METRICS:
        assert (3 * dev[name] + 10 * test[name]) / 13 == pytest.approx(whole[name])
    assert said[0].startswith("13 queries against 30 documents, 80 qrels (3 without image")
    assert said[1].startswith(f"13 queries are few: nDCG@10 {whole['nDCG@10']:.3f} is from ")
    assert said[2].startswith("3 queries")


def test_the_queries_of_a_file_are_asked_alone(tmp_path: Path, said: list[str]) -> None:
    """GCL's authors name a query by its text and a separator."""
    names = {0: "q0_{!@#~}_", 5: "q5_{!@#~}_", 7: "q7"}
    file = tmp_path / "gt.json"
    file.write_text(json.dumps({name: {"d": 100} for name in [*names.values(), "unknown"]}))
    of = source()
    ids = pa.array([f"q{n}" for n in range(QUERIES)])
    of.queries.ids = lambda: ids
    task = evaluator(Preset(), of, query_file=str(file))
    np.testing.assert_array_equal(task.part.judgements(task.context).asked, [*names])
    assert said == ["warning: 1 of 4 queries of " + f"{file} are not in the data"]
    found = task.run({})
    single = [evaluator(Preset(), of, query_file=str(tmp_path / f"{n}.json")) for n in names]
    for n, name in names.items():
        (tmp_path / f"{n}.json").write_text(json.dumps({name: {}}))
    values = [each.run({}) for each in single]
    assert found == pytest.approx({m: np.mean([v[m] for v in values]) for m in METRICS})
    for content, words in (
        ('{"other": {}}', r"has no query of the data: it has such as 'other', they q0"),
        ("[1]", "no JSON object whose keys are queries"),
        ("{", "cannot be read as a JSON file"),
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=words):
            evaluator(Preset(), of, query_file=str(file)).check()


def test_traffic() -> None:
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
    names = [group["name"] for group in direction["groups"]]
    assert names == ["spread", "deepest"]
    lowest = [e["metrics"]["nDCG@10"] for e in direction["groups"][1]["examples"]]
    assert lowest == sorted(lowest)
    of = source()
    for example in direction["groups"][0]["examples"]:
        judged = {
            int(d): s
            for q, d, s in zip(of.qrels.query, of.qrels.document, of.qrels.score, strict=True)
            if q == example["place"]
        }
        assert example["query"]["text"] == f"query {example['place']}"
        assert example["summed"] == (count or 10)
        assert example["best_sum"] == sum(sorted(judged.values(), reverse=True)[: count or 10])
        assert len(example["answers"]) == (count or 5)
        assert example["right_answers"] == len(judged)
        for answer in example["answers"]:
            assert answer["relevance"] == judged.get(answer["record"], 0.0)
            assert ("picture" in answer) == (answer["record"] not in NO_IMAGE)
            assert ("text" in answer) == (answer["record"] not in NO_TITLE)


def test_the_source_of_a_run_is_one() -> None:
    from big_retrieval.data.build import make_source

    of: Any = make_source(configs.GradedScenes(count=60, size=16))
    assert isinstance(of, GradedPairs)
    specs = {"image": SPECS["image"], "title": SPECS["title"]}
    item = _item(of.documents, specs, 3)
    assert item["picture"].startswith("data:image/")
    assert item["text"] == of.documents[3]["title"]


def test_a_single_ranking_overwrites_the_fields_with_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other rankings of the same fields keep the arrays; blocks of 7 rows are moved."""
    monkeypatch.setattr(encoding, "ROWS", 7)
    single = evaluator(Preset()).run({})
    several = evaluator(Preset(), documents=("title",)).run({})
    assert single == {name: several[name] for name in METRICS}
    assert several["title/nDCG@10"] == pytest.approx(
        expected(Preset().table, {"title": 1.0})["nDCG@10"]
    )
    x = np.arange(20, dtype=np.float32)[:, None, None] + 1
    fields, present = {"image": x.copy()}, {"image": np.arange(20) % 3 > 0}
    how: Any = (TOPOLOGIES["inner"], fields, {"image": 0.7}, present)
    kept, rows = encoding.average(*how), np.flatnonzero(present["image"])
    np.testing.assert_array_equal(fields["image"], x)
    mixed = encoding.average(*how, overwrite=True)
    chosen = encoding.chosen_rows(mixed, rows, overwrite=True)
    assert np.shares_memory(chosen, fields["image"])
    np.testing.assert_array_equal(chosen, kept[rows])
