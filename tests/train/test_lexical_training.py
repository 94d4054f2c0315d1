"""Lexical heads in a run: it learns, and is equal on a mesh; resumed: test_vdr_training."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval.config import Config
from big_retrieval.inference.load import load
from big_retrieval.train.loop import train
from tests.helpers import lexical_texts, losses, tiny
from tests.train.runs import ALL_AXES, ONE, assert_close_run

pytestmark = pytest.mark.usefixtures("one_model")


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
