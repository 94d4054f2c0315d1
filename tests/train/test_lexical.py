"""Lexical heads in a run: it learns, goes on bit for bit, and is the same on every mesh."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval import recipe
from big_retrieval.config import Config
from big_retrieval.loading import load
from big_retrieval.train.loop import train
from tests.helpers import lexical_texts, losses, results, tiny

ONE = jax.devices()[:1]
TEST = {"data": configs.Scenes(split="test", count=40), "query": "query", "document": "document"}


def lexical(head: dict[str, Any] | None = None, **changes: Any) -> Config:
    return tiny(**lexical_texts(**(head or {})), **changes)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run on one device, with an evaluation at its end."""
    workdir = tmp_path_factory.mktemp("whole")
    evals = {"test": recipe.entry(configs.Retrieval(), **TEST)}
    train(lexical(total_steps=12, evals=evals), workdir, ONE)
    return workdir


def test_it_learns_and_is_evaluated_and_used(whole: Path) -> None:
    found = losses(whole)
    assert found[12] < 0.9 * found[1]
    recall = results(whole)["retrieval/test/query_to_document/R@10"]
    assert 0 <= recall <= 1
    model = load(whole)
    points = model.encode_texts(["a big red circle above a small blue star"], "query")
    assert points.shape == (1, 1, model.tokenizer.vocab_size)
    assert points.min() >= 0
    assert points.max() > 0
    np.testing.assert_allclose(
        model.score(points, points), np.sum(points * points)[None, None], rtol=1e-5
    )
    assert set(model.weights["query_head"]) == {"dense", "ln", "bias"}


def test_stop_and_go_on_is_bit_identical(whole: Path, tmp_path: Path) -> None:
    train(lexical(total_steps=12, stop_after=5), tmp_path, ONE)
    train(lexical(total_steps=12), tmp_path, ONE)
    assert results(tmp_path)["resumed_from"] == 5
    assert losses(tmp_path) == losses(whole)
    assert results(tmp_path)["params_sha256"] == results(whole)["params_sha256"]


@pytest.mark.parametrize(
    "mesh", [{"data": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=["data", "all axes"]
)
def test_eight_devices(whole: Path, tmp_path: Path, mesh: dict[str, int]) -> None:
    shape = {f"mesh__{axis}": size for axis, size in mesh.items()}
    train(lexical(total_steps=12, **shape), tmp_path)
    one, many = losses(whole), losses(tmp_path)
    assert one.keys() == many.keys()
    np.testing.assert_allclose(list(many.values()), list(one.values()), rtol=1e-5)


def test_slices_change_nothing(whole: Path, tmp_path: Path) -> None:
    train(lexical(total_steps=12, microbatch=4), tmp_path, ONE)
    one, sliced = losses(whole), losses(tmp_path)
    np.testing.assert_allclose(list(sliced.values()), list(one.values()), rtol=1e-5)


def test_own_kernel_mean_and_one_tower(tmp_path: Path) -> None:
    """The other keys, and one tower for both fields."""
    head = {"tied": False, "pooling": "mean", "activation": "elu1p", "transform": "none"}
    config = lexical(head)
    shared = dataclasses.replace(config.fields["document"], tower="text")
    config = dataclasses.replace(
        config,
        fields=dict(config.fields) | {"document": shared},
        towers={"text": config.towers["text"]},
    )
    train(config, tmp_path, ONE)
    found = losses(tmp_path)
    assert found[8] < found[1]
    weights = load(tmp_path).weights
    assert set(weights["query_head"]) == {"kernel", "ln", "bias"}
    assert set(weights) == {"text", "query_head", "document_head", "scalars"}
