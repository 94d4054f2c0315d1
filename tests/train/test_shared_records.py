"""Training on records that share texts and images: every form of computation is equal."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.train.loop import train
from tests.helpers import losses, tiny
from tests.train.runs import ONE, assert_close_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_model")]
WORDS = ("red", "blue", "green")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> recipe.Editable:
    """40 records: 12 pictures, and one or two of 9 captions each."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "shared.npz"
    pictures = rng.integers(0, 256, (12, 32, 32, 3), np.uint8)
    texts = [f"a {a} and a {b} shape" for a in WORDS for b in WORDS]
    drawn = [rng.permutation(9)[: 1 + i % 2] for i in range(40)]
    np.savez(
        path,
        images=pictures[rng.integers(0, 12, 40)],
        captions=np.array(["|".join(texts[n] for n in numbers) for numbers in drawn]),
    )
    return recipe.entry(configs.Pairs(), path=str(path), image="images", separator="|")


@pytest.fixture(scope="module")
def config(data: recipe.Editable) -> Callable[..., configs.Config]:
    return functools.partial(tiny, data=data, total_steps=4)


@pytest.fixture(scope="module")
def full_run(config: Callable[..., configs.Config], trained: Callable[..., Path]) -> Path:
    return trained(config())


def test_shared_records_are_not_negatives(config: Any, full_run: Path, tmp_path: Path) -> None:
    train(config(labels__duplicates=False), tmp_path, ONE)
    assert losses(full_run)[1] < losses(tmp_path)[1] - 0.1  # fewer negatives from the first step on


def test_ring_of_devices_and_slices_equals_one_device(
    config: Any, full_run: Path, tmp_path: Path
) -> None:
    train(config(microbatch=8, losses__main__exchange="ring"), tmp_path)
    assert_close_run(tmp_path, full_run)
