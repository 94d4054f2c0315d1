"""Lexical heads in a run: it learns, and is equal on a mesh; resumed: test_vdr_training."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.inference.load import load
from big_retrieval.train.loop import train
from tests.helpers import lexical_texts, losses, results, tiny
from tests.train.runs import ALL_AXES, ONE, assert_close_run

pytestmark = pytest.mark.usefixtures("one_model")

TEST = {"data": configs.Scenes(split="test", count=40), "query": "query", "document": "document"}


def lexical(head: dict[str, Any] | None = None, **changes: Any) -> Config:
    fast = {"optimizer__lr": 1e-2, "optimizer__schedule__warmup_steps": 2, "checkpoint_every": 100}
    return tiny(**lexical_texts(**(head or {})), **fast, **changes)


def agree(found: Path, expected: Path) -> None:
    """Asserts equal losses up to rounding.

    On another mesh, the maximum of two nearly equal logits may be the other logit, which then gets
    the whole gradient: only the first five steps agree to 1e-5.
    """
    assert_close_run(found, expected, rtol=1e-3)
    first = [[losses(run)[step] for step in range(1, 6)] for run in (found, expected)]
    np.testing.assert_allclose(*first, rtol=1e-5)


@pytest.mark.slow
def test_lexical_run_learns_and_is_evaluated_and_used(tmp_path: Path) -> None:
    evals = {"test": recipe.entry(configs.Retrieval(), **TEST)}
    train(lexical(total_steps=60, evals=evals), tmp_path, ONE)
    found = losses(tmp_path)
    assert found[60] < 0.8 * found[1]
    rank = results(tmp_path)["retrieval/test/query_to_document/mean_rank"]
    assert rank < 50  # of 200 captions; chance is 100
    model = load(tmp_path)
    embeddings = model.encode_texts(["a big red circle above a small blue star"], "query")
    assert embeddings.shape == (1, model.tokenizer.vocab_size)
    assert embeddings.min() >= 0
    assert embeddings.max() > 0
    np.testing.assert_allclose(
        model.score(embeddings, embeddings), (embeddings @ embeddings.T).toarray(), rtol=1e-5
    )
    assert set(model.weights["query_head"]) == {"dense", "ln", "bias"}


@pytest.mark.slow
def test_eight_devices_equal_one(trained: Callable[..., Path], tmp_path: Path) -> None:
    """Rows alone, and slices: test_graded_training."""
    train(lexical(total_steps=12, **ALL_AXES), tmp_path)
    agree(tmp_path, trained(lexical(total_steps=12)))


@pytest.mark.slow
def test_untied_mean_pooled_heads_share_one_tower(tmp_path: Path) -> None:
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
