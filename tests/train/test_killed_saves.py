"""A kill at every file operation of a save, its prune and a late evaluation."""

import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from big_retrieval.io import manifest
from big_retrieval.train.checkpoint import Checkpoints
from tests.helpers import ROOT, environment
from tests.train.killed_saves import FILES, save


def attempt(root: Path, fatal: int, python: list[str]) -> list[str]:
    """Returns what the program printed."""
    words = [*python, "-m", "tests.train.killed_saves", str(root), str(fatal)]
    done = subprocess.run(
        words, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode in (0, 9), done.stderr
    return done.stdout.split()


def check_resume(root: Path, printed: list[str]) -> int:
    """Restores the newest checkpoint and saves the next one; returns the restored step."""
    again = Checkpoints(root, files=FILES)
    newest = again.newest()
    assert newest in ((3,) if "saved" in printed else (2, 3))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {"x": jax.ShapeDtypeStruct((8,), jnp.int32, sharding=place)}
    state = again._orbax.restore((root / str(newest) / "state").resolve(), like)
    np.testing.assert_array_equal(state["x"], newest)
    values = again.values(newest)
    assert values in ([{"recall": 0.5}] if "recorded" in printed else [{}, {"recall": 0.5}])
    assert again.evaluated(newest) == bool(values)
    save(again, newest + 1)
    again.close()
    assert manifest.complete_steps(root)[-2:] == [newest, newest + 1]
    return newest


@pytest.mark.slow
def test_kill_at_every_file_operation_keeps_newest_finished_checkpoint(
    tmp_path: Path, warm_python: list[str]
) -> None:
    *printed, total = attempt(tmp_path / "whole", -1, warm_python)
    assert printed == ["saved", "recorded"]
    newest = []
    for fatal in range(int(total)):
        root = tmp_path / str(fatal)
        newest.append(check_resume(root, attempt(root, fatal, warm_python)))
    assert newest == sorted(newest)
    assert set(newest) == {2, 3}
    assert len(newest) > 20


def test_save_moves_finished_checkpoint_of_same_step_aside(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, files=FILES)
    save(checkpoints, 1)
    save(checkpoints, 1)
    checkpoints.close()
    assert all(manifest.damage(tmp_path / name) is None for name in ("1", "1.replaced"))


def test_damaged_late_evaluation_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, files=FILES)
    save(checkpoints, 1)
    checkpoints.record_evaluation(1, {"recall": 0.5})
    assert checkpoints.evaluated(1)
    path = tmp_path / "1" / manifest.EVALUATION
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    assert not checkpoints.evaluated(1)
    checkpoints.close()
