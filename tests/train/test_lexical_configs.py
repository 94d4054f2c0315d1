"""`:runlocal` of the configs of VDR and its baselines: a few steps, and all evaluations."""

import importlib
from pathlib import Path

import jax
import numpy as np
import pytest

from big_retrieval import config as configs
from big_retrieval.config.checks.evals import metrics_of_all
from big_retrieval.train.loop import train
from tests.helpers import losses, results

# The plain forms of VDR's two configs train in tests/test_papers.py.
CONFIGS = (
    ("vdr_t2t_msmarco", "symmetric,negatives=2,microbatch=4"), ("dpr_msmarco", ""),
    ("splade_msmarco", ""), ("vdr_cm_yfcc15m", "mask=code,mean"), ("clip_bert_yfcc15m", ""),
    ("medical", ""),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arg"), CONFIGS)
def test_lexical_configs_measure_all_metrics(name: str, arg: str, tmp_path: Path) -> None:
    """Every metric that the checks know of is measured, and nothing else.

    The other methods of `medical` have the heads and losses of dpr_msmarco and splade_msmarco.
    """
    module = importlib.import_module(f"configs.{name}")
    c = module.get_config(",".join(filter(None, ("runlocal", arg))))
    c.unlock()
    c.total_steps, c.log_every, c.checkpoint_every, c.report = 3, 1, 3, False
    c.optimizer.schedule.warmup_steps = 1
    for tower in c.towers.values():
        tower.depth = 1
    c.data.count = 200 if c.data.type == "scenes" else 40
    for each in c.evals.values():
        each.data.count = 20
    config = configs.load(c)
    train(config, tmp_path, jax.devices()[:1])
    found = losses(tmp_path)
    assert sorted(found) == [1, 2, 3]
    assert np.isfinite([*found.values()]).all()
    measured = {
        key for key in results(tmp_path) if key.startswith(("retrieval", "ranking", "zero"))
    }
    assert measured == {*metrics_of_all(config)}
    assert any("/bag/" in key for key in measured) == (config.losses["main"].type == "vdr")
