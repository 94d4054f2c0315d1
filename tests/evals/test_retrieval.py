"""Retrieval in both directions, on preset embeddings."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.errors import UserError
from big_retrieval.evals import comparison
from big_retrieval.evals import evaluators as evals
from big_retrieval.evals.rankings import FOLDER, read_values
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import TOKENIZER, Bound, PresetEncoder, bound
from tests.readers import image_reader, text_reader

RECORDS, TEXTS = 9, 5
OWNERS = np.repeat(np.arange(RECORDS), TEXTS)
SOURCE = SceneRecords("test", size=16, count=RECORDS)
SPECS = {
    "image": image_reader("image", size=16),
    "text": text_reader("captions", length=8, tokenizer=TOKENIZER),
}
DIRECTIONS = ("image_to_text", "text_to_image")


def noisy(noise: float, devices: int = 1) -> PresetEncoder:
    """Embeddings that are noise around those of their records."""
    rng, tables = np.random.default_rng(0), {}
    for field, records in (("image", np.arange(RECORDS)), ("text", OWNERS)):
        exact = np.eye(RECORDS)[records][:, None]  # [n, 1, N]
        tables[field] = (exact + noise * rng.normal(size=exact.shape)).astype(np.float32)
    return PresetEncoder(devices, **tables)


def evaluator(encoder: Encoder, source: Any = SOURCE, **changes: Any) -> Bound:
    part = configs.Retrieval(recall_at=(1, 3), **changes)
    return bound(part, source, SPECS, TOPOLOGIES["euclidean"], encoder)


def test_retrieval_of_perfect_embeddings() -> None:
    metrics = evaluator(noisy(0.0)).run({})
    assert (metrics.pop("rsum"), metrics.pop("R-mean")) == (400, 1)
    names = ("R@1", "R@3", "R-precision", "MRR@10", "nDCG@10", "mean_rank", "median_rank")
    assert metrics == {f"{way}/{name}": 1.0 for way in DIRECTIONS for name in names}


@pytest.mark.parametrize(("devices", "chunk"), [(1, 4), (8, 1024)])
def test_retrieval_equals_numpy(devices: int, chunk: int) -> None:
    encoder = noisy(0.7, devices)
    found = evaluator(encoder, chunk=chunk).run({})
    assert encoder.encoded == {"image": [RECORDS], "text": [RECORDS * TEXTS]}
    images, texts = (encoder.tables[name][:, 0] for name in ("image", "text"))
    distances = np.linalg.norm(images[:, None] - texts[None], axis=-1)  # [9, 45]
    ranks: dict[str, list[int]] = {"image_to_text": [], "text_to_image": []}
    for image, row in enumerate(distances):
        is_positive = np.isin(OWNERS, image)
        negatives = row[~is_positive]
        ranks["image_to_text"].append(1 + int((negatives <= row[is_positive].min()).sum()))
    for text, owner in enumerate(OWNERS):
        negatives = np.delete(distances[:, text], owner)
        ranks["text_to_image"].append(1 + int((negatives <= distances[owner, text]).sum()))
    for way, of_way in ranks.items():
        assert found[f"{way}/R@1"] == np.mean(np.array(of_way) <= 1)
        assert found[f"{way}/R@3"] == np.mean(np.array(of_way) <= 3)
        assert found[f"{way}/mean_rank"] == pytest.approx(np.mean(of_way))
        assert found[f"{way}/median_rank"] == np.median(of_way)
        assert 0 < found[f"{way}/R@1"] < 1
    precisions = [np.mean(OWNERS[np.argsort(row)[:TEXTS]] == n) for n, row in enumerate(distances)]
    assert found["image_to_text/R-precision"] == pytest.approx(np.mean(precisions))
    assert found["text_to_image/R-precision"] == found["text_to_image/R@1"]
    total = sum(100 * found[f"{way}/R@{k}"] for way in ranks for k in (1, 3))
    assert found["rsum"] == pytest.approx(total)
    assert found["R-mean"] == pytest.approx(total / 400)


def test_retrieval_writes_values_of_every_query(tmp_path: Path) -> None:
    metrics = ("R@1", "R@3", "R-precision", "MRR@10", "nDCG@10")
    counts = {"image_to_text": 9, "text_to_image": 45}
    for name, noise in (("a", 0.3), ("b", 0.9)):
        evaluators = {"retrieval/test": evaluator(noisy(noise), rankings=True)}
        means = evals.run(evaluators, evaluators, {}, rankings=tmp_path / name / FOLDER)
        for way, first in zip(counts, ("0", "0#0"), strict=True):
            path = tmp_path / name / FOLDER / f"retrieval-test-{way}" / "queries.csv"
            queries, values = read_values(path)
            assert (len(queries), queries[0]) == (counts[way], first)
            for metric in metrics:
                mean = means[f"retrieval/test/{way}/{metric}"]
                assert np.mean(values[metric]) == pytest.approx(mean)
    pairs = comparison.values_of_folders(tmp_path / "a", tmp_path / "b")
    table = comparison.compare_systems(tmp_path / "a", tmp_path / "b", pairs)
    assert {(name, metric): x.queries for name, metric, x in table} == {
        (f"retrieval-test-{way}", metric): counts[way] for way in counts for metric in metrics
    }


def test_check_data_rejects_missing_column() -> None:
    specs = {**SPECS, "text": text_reader("words", tokenizer=TOKENIZER, length=8)}
    task = bound(configs.Retrieval(), SOURCE, specs, TOPOLOGIES["euclidean"], noisy(0.0))
    with pytest.raises(UserError, match="no column 'words'"):
        task.check()


def test_once_keeps_one_value_per_evaluator() -> None:
    @dataclasses.dataclass(frozen=True)
    class Kept(configs.Retrieval):
        @configs.once
        def value(self, context: Any) -> list[str]:
            return [self.group]

    context: Any = types.SimpleNamespace(computed={})
    one, two = Kept(group="a"), Kept(group="b")
    assert (one.value(context), two.value(context)) == (["a"], ["b"])
    assert one.value(context) is one.value(context)
