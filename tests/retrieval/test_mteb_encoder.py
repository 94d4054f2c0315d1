"""Evaluation of runs by mteb, on a task of local files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.evals.graded import graded_metrics, order
from big_retrieval.evals.trec import read_qrels
from big_retrieval.retrieval.encode import rows_of
from big_retrieval.retrieval.mteb_encoder import MtebEncoder
from big_retrieval.train.build import untrained
from big_retrieval.train.checkpoint import write_model
from tests.helpers import lexical_texts, tiny, user_error

NAMES = {"nDCG@10": "ndcg_at_10", "R@10": "recall_at_10", "MRR@10": "mrr_at_10"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, and BEIR's files: 40 documents, 10 queries."""
    place, scenes = tmp_path_factory.mktemp("mteb"), SceneRecords("test", count=50)
    dense = tiny(topology="geodesic", fields__text__title="heading")
    write_model(untrained(dense, batch_size=64), place / "dense")
    texts = [scenes[i]["captions"][0] for i in range(50)]
    for name, some in (("corpus", texts[:40]), ("queries", texts[40:])):
        lines = [json.dumps({"_id": f"{name}{i}", "text": text}) for i, text in enumerate(some)]
        (place / f"{name}.jsonl").write_text("\n".join(lines))
    rng, lines = np.random.default_rng(0), ["query-id\tcorpus-id\tscore"]
    for query in range(10):
        chosen = rng.choice(40, 5, replace=False)
        lines += [f"queries{query}\tcorpus{d}\t{rng.integers(1, 4)}" for d in chosen]
    (place / "qrels.tsv").write_text("\n".join(lines))
    return place


def read(path: Path) -> list[dict[str, str]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{"id": row["_id"], "text": row["text"]} for row in rows]


def task_of(place: Path) -> Any:
    """A task of mteb that reads BEIR's files."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    class LocalFiles(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name="LocalFiles", description="x", type="Retrieval", category="t2t",
            modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
            main_score="ndcg_at_10", dataset={"path": str(place), "revision": "1"},
        )  # fmt: skip

        def load_data(self, *args: Any, **kwargs: Any) -> None:
            qrels = read_qrels(place / "qrels.tsv")
            split = {
                "corpus": Dataset.from_list(read(place / "corpus.jsonl")),
                "queries": Dataset.from_list(read(place / "queries.jsonl")),
                "relevant_docs": {q: {d: int(s) for d, s in x.items()} for q, x in qrels.items()},
                "top_ranked": None,
            }
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return LocalFiles()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"), [("lexical", ("query", "document")), ("dense", ("text", "text"))]
)
def test_mteb_equals_our_metrics(place: Path, name: str, fields: tuple[str, str]) -> None:
    mteb = pytest.importorskip("mteb")
    if name == "lexical":
        write_model(untrained(tiny(**lexical_texts()), batch_size=64), place / name)
    encoder = MtebEncoder(str(place / name), document_field=fields[1])
    assert isinstance(encoder, mteb.EncoderProtocol)
    result = mteb.evaluate(encoder, task_of(place), cache=None, show_progress_bar=False)
    scores = result.task_results[0].scores["test"][0]
    assert result.model_name == f"big_retrieval/{name}"

    queries, documents = (read(place / f"{x}.jsonl") for x in ("queries", "corpus"))
    sides = [
        rows_of(encoder.model, [row["text"] for row in rows], field)
        for rows, field in ((queries, fields[0]), (documents, fields[1]))
    ]
    table = encoder.model.score(*sides)
    qrels = read_qrels(place / "qrels.tsv")
    judged = np.array([[qrels[q["id"]].get(d["id"], 0) for d in documents] for q in queries])
    ranked = np.take_along_axis(judged, order(table, judged), 1)
    for name, values in graded_metrics(ranked, judged, list(NAMES)).items():
        assert scores[NAMES[name]] == pytest.approx(values.mean(), abs=1e-5), name

    pairs = encoder.similarity_pairwise(*(_flat(side[:10]) for side in sides))
    np.testing.assert_allclose(pairs, np.diagonal(table), rtol=1e-5, atol=1e-5)


def _flat(rows: Any) -> np.ndarray:
    return rows.toarray() if hasattr(rows, "toarray") else rows.reshape(len(rows), -1)


def test_encoder_reads_titles_and_images(place: Path) -> None:
    encoder = MtebEncoder(str(place / "dense"))
    images = [SceneRecords("test", count=4)[i]["image"] for i in range(4)]
    batches = [{"image": images[:3]}, {"image": images[3:]}]
    embeddings = encoder.encode(batches, prompt_type="document")
    expected = encoder.model.encode_images(images)
    np.testing.assert_allclose(embeddings, expected.reshape(4, -1), atol=1e-6)
    # In a search for captions, images are the queries.
    np.testing.assert_array_equal(encoder.encode(batches, prompt_type="query"), embeddings)
    batch = {"text": ["red a", "blue b"], "title": ["red", "blue"], "body": ["a", "b"]}
    texts = encoder.encode([batch], prompt_type="document")
    expected = encoder.model.encode_texts(["a", "b"], titles=["red", "blue"])
    np.testing.assert_allclose(texts, expected.reshape(2, -1))
    untitled = encoder.encode([{"text": ["red a", "blue b"]}])
    assert np.abs(texts - untitled).max() > 1e-3
    with user_error("no field for a task whose document has audio"):
        encoder.encode([{"audio": [1]}], prompt_type="document")
    with user_error("revision is 'main'"):
        MtebEncoder(str(place / "dense"), "main")
