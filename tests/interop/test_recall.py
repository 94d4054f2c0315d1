"""recall.py on runs of a few steps."""

import importlib
from pathlib import Path

import jax
import pytest

from big_retrieval import config
from big_retrieval.train.loop import train
from tests.interop import export_all, recall


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quickstart", "scenes_vdr"])
def test_pytorch_alone_measures_the_same_recall(name: str, tmp_path: Path) -> None:
    if "torch" not in export_all.available(export_all.PYTHON):
        pytest.skip(f"{export_all.PYTHON} has no PyTorch")
    c = importlib.import_module(f"configs.{name}").get_config("runlocal")
    c.total_steps, c.checkpoint_every, c.eval_every = 6, 6, 0
    c.evals = {"test": c.evals.test}
    c.evals.test.data.count, c.evals.test.every = 100, 0
    if name == "scenes_vdr":
        c.evals.test.modes = ()
    train(config.load(c), tmp_path / "run", jax.devices()[:1])
    found = recall.compare(tmp_path / "run", "test", export_all.PYTHON, tmp_path)
    assert len(found) == 6
    assert recall.wrong(found) == [], found
    # Equal scores are rare in these data, so that the bounds say something.
    assert all(most - least <= 0.05 for _, _, least, most in found.values()), found
