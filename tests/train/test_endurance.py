"""The resources of a run do not grow with its steps."""

from pathlib import Path

import pytest

from benchmarks import endurance


@pytest.mark.slow
def test_resources_do_not_grow_with_steps(tmp_path: Path) -> None:
    """With a data worker, twenty evaluations, forty checkpoints and TensorBoard."""
    samples = endurance.train(400, 20, tmp_path, evaluations=20, checkpoints=40)
    warm, late = samples[5:12], samples[-8:-1]
    for name, slack in (("threads", 4), ("files", 12), ("children", 0), ("arrays", 20)):
        before = max(getattr(each, name) for each in warm)
        after = max(getattr(each, name) for each in late)
        assert after <= before + slack, f"{name}: {before} became {after}"
    grown = min(each.rss for each in late) - min(each.rss for each in warm)
    assert grown < 40, f"{grown:.1f} MiB more after 200 steps"
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
