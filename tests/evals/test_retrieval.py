"""Retrieval in both directions, on embeddings that are known."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import parallel
from big_retrieval.data.synthetic.scenes import SceneRecords
from big_retrieval.data.text.tokenizers import wordpiece_tokenizer
from big_retrieval.errors import UserError
from big_retrieval.evals import comparison
from big_retrieval.evals import evaluators as evals
from big_retrieval.evals.encoding import SourceEncoder
from big_retrieval.evals.rankings import FOLDER, read_values
from big_retrieval.inference.encoder import Encoder
from big_retrieval.similarity import TOPOLOGIES
from tests.evals.bound import bound
from tests.evals.preset import PresetEncoder
from tests.helpers import tiny
from tests.readers import image_reader, text_reader

RECORDS, TEXTS = 9, 5
SOURCE = SceneRecords("test", size=16, count=RECORDS)
TOKENIZER = wordpiece_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
SPECS = {
    "image": image_reader("image", size=16),
    "text": text_reader("captions", length=8, tokenizer=TOKENIZER),
}


class Preset(PresetEncoder):
    """An encoder that makes embeddings of a batch's record numbers and of noise."""

    def __init__(self, noise: float, devices: int = 1) -> None:
        mesh = parallel.make_mesh(tiny(batch_size=8), jax.devices()[:devices])
        super().__init__(None, mesh, 8)  # type: ignore
        self._rng, self._noise = np.random.default_rng(0), noise
        self.made: dict[str, np.ndarray] = {}

    def embeddings(self, weights: Any, field: str, batches: Any) -> tuple[np.ndarray, np.ndarray]:
        kept = [batch["record"][batch["valid"]] for batch in batches]
        records = np.concatenate(kept)
        embeddings = np.eye(RECORDS, dtype=np.float32)[records][:, None]  # [n, 1, N]
        noise = self._noise * self._rng.normal(size=embeddings.shape)
        self.made[field] = (embeddings + noise).astype(np.float32)
        return self.made[field], records


def run(encoder: Encoder, **changes: Any) -> dict[str, float]:
    task = configs.Retrieval(recall_at=(1, 3), **changes)
    return bound(task, SOURCE, SPECS, TOPOLOGIES["euclidean"], encoder).run({})


def test_perfect_embeddings_give_perfect_numbers() -> None:
    found = run(Preset(0.0))
    assert (found.pop("rsum"), found.pop("R-mean")) == (400, 1)
    assert found == {
        f"{way}/{name}": 1.0
        for way in ("image_to_text", "text_to_image")
        for name in ("R@1", "R@3", "R-precision", "MRR@10", "nDCG@10", "mean_rank", "median_rank")
    }


@pytest.mark.parametrize(("devices", "chunk"), [(1, 4), (8, 1024)])
def test_numbers_are_those_of_numpy(devices: int, chunk: int) -> None:
    encoder = Preset(0.7, devices)
    found = run(encoder, chunk=chunk)
    images, texts = (encoder.made[name][:, 0] for name in ("image", "text"))
    distances = np.linalg.norm(images[:, None] - texts[None], axis=-1)  # [9, 45]
    owners = np.repeat(np.arange(RECORDS), TEXTS)
    ranks: dict[str, list[int]] = {"image_to_text": [], "text_to_image": []}
    for image in range(RECORDS):
        best = distances[image, owners == image].min()
        ranks["image_to_text"].append(1 + int((distances[image, owners != image] <= best).sum()))
    for text, owner in enumerate(owners):
        wrong = np.delete(distances[:, text], owner)
        ranks["text_to_image"].append(1 + int((wrong <= distances[owner, text]).sum()))
    for way, numbers in ranks.items():
        assert found[f"{way}/R@1"] == np.mean(np.array(numbers) <= 1)
        assert found[f"{way}/R@3"] == np.mean(np.array(numbers) <= 3)
        assert found[f"{way}/mean_rank"] == pytest.approx(np.mean(numbers))
        assert found[f"{way}/median_rank"] == np.median(numbers)
        assert 0 < found[f"{way}/R@1"] < 1
    precisions = [np.mean(owners[np.argsort(row)[:TEXTS]] == n) for n, row in enumerate(distances)]
    assert found["image_to_text/R-precision"] == pytest.approx(np.mean(precisions))
    assert found["text_to_image/R-precision"] == found["text_to_image/R@1"]
    total = sum(100 * found[f"{way}/R@{k}"] for way in ranks for k in (1, 3))
    assert found["rsum"] == pytest.approx(total)
    assert found["R-mean"] == pytest.approx(total / 400)


def test_values_of_every_query_for_compare(tmp_path: Path) -> None:
    for name, noise in (("a", 0.3), ("b", 0.9)):
        task = configs.Retrieval(recall_at=(1, 3), rankings=True)
        evaluator = bound(task, SOURCE, SPECS, TOPOLOGIES["sphere"], Preset(noise))
        whole = evals.run(
            {"retrieval/test": evaluator}, {"retrieval/test"}, {}, rankings=tmp_path / name / FOLDER
        )
        for way, count, first in (("image_to_text", 9, "0"), ("text_to_image", 45, "0#0")):
            path = tmp_path / name / FOLDER / f"retrieval-test-{way}" / "queries.csv"
            queries, values = read_values(path)
            assert (len(queries), queries[0]) == (count, first)
            for metric in ("R@1", "R@3", "R-precision", "MRR@10", "nDCG@10"):
                mean = whole[f"retrieval/test/{way}/{metric}"]
                assert np.mean(values[metric]) == pytest.approx(mean)
    pairs = comparison.values_of_folders(tmp_path / "a", tmp_path / "b")
    table = comparison.compare_systems(tmp_path / "a", tmp_path / "b", pairs)
    assert {(name, metric): x.queries for name, metric, x in table} == {
        (f"retrieval-test-{way}", metric): count
        for way, count in (("image_to_text", 9), ("text_to_image", 45))
        for metric in ("R@1", "R@3", "R-precision", "MRR@10", "nDCG@10")
    }


def test_every_image_and_every_text_is_encoded_once() -> None:
    for name, expected in (
        ("image", np.arange(RECORDS)),
        ("text", np.repeat(np.arange(RECORDS), TEXTS)),
    ):
        embeddings, records = SourceEncoder(Preset(0.0), {}).encode(SOURCE, name, SPECS[name])
        np.testing.assert_array_equal(records, expected)
        assert len(embeddings) == len(expected)


def test_data_that_do_not_fit_are_named_before_anything_is_encoded() -> None:
    specs = {**SPECS, "text": text_reader("words", tokenizer=TOKENIZER, length=8)}
    task = bound(configs.Retrieval(), SOURCE, specs, TOPOLOGIES["euclidean"], Preset(0.0))
    with pytest.raises(UserError, match="no column 'words'"):
        task.check()


def test_a_value_that_is_kept_belongs_to_its_evaluator() -> None:
    @dataclasses.dataclass(frozen=True)
    class Kept(configs.Retrieval):
        @configs.once
        def value(self, context: Any) -> list[str]:
            return [self.group]

    context: Any = types.SimpleNamespace(computed={})
    one, two = Kept(group="a"), Kept(group="b")
    assert (one.value(context), two.value(context)) == (["a"], ["b"])
    assert one.value(context) is one.value(context)
