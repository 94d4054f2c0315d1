"""Training on records that share texts and images: every way of computing it gives the same run."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.train.loop import train
from tests.helpers import losses, tiny
from tests.train.runs import assert_close_run, assert_same_run

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


def run(data: recipe.Editable, folder: Path, devices: int = 1, **changes: Any) -> dict[Any, Any]:
    """The losses of a run by step."""
    train(tiny(data=data, total_steps=4, **changes), folder, jax.devices()[:devices])
    return losses(folder)


@pytest.fixture(scope="module")
def whole(data: recipe.Editable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    run(data, folder)
    return folder


def test_shared_records_are_no_negatives(
    data: recipe.Editable, whole: Path, tmp_path: Path
) -> None:
    masked, kept = losses(whole), run(data, tmp_path, labels__duplicates=False)
    assert masked[1] < kept[1] - 0.1  # fewer negatives from the first step on


def test_devices_slices_and_the_ring(data: recipe.Editable, whole: Path, tmp_path: Path) -> None:
    run(data, tmp_path, 8, microbatch=8, losses__main__exchange="ring")
    assert_close_run(tmp_path, whole)


def test_a_resumed_run(data: recipe.Editable, whole: Path, tmp_path: Path) -> None:
    run(data, tmp_path, stop_after=2)
    run(data, tmp_path)
    assert_same_run(tmp_path, whole)
