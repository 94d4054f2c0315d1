"""N devices = 1 device: equal records, and losses that agree to 1e-5 over 20 steps."""

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from big_retrieval.train.loop import train
from tests.helpers import (
    ROOT,
    command,
    environment,
    losses,
    mesh_keys,
    results,
    rows,
    start,
    tiny,
)
from tests.train.runs import ALL_AXES, assert_close_run

pytestmark = pytest.mark.usefixtures("one_model")

STEPS = 20
QUICK = "--config=configs/quickstart.py:runlocal"
FLAGS = [
    *["--config.total_steps=20", "--config.log_every=1", "--config.checkpoint_every=20"],
    *["--config.batch_size=16", "--config.data.count=200", "--config.evals.test.data.count=64"],
    *["--config.towers.image.depth=1", "--config.towers.text.depth=1"],
    *["--config.evals.colours.data.count=64", "--config.report=False"],
    # The model is worse at the end: both runs restore the parameters of an earlier step.
    *["--config.best_metric=retrieval/test/rsum", "--config.final_weights=best"],
    "--config.eval_every=10",
]


def agree(found: Path, expected: Path) -> None:
    """Asserts equal records in every batch, and losses within 1e-5."""
    assert [r["records"] for r in rows(found)] == [r["records"] for r in rows(expected)]
    assert_close_run(found, expected)
    assert len(losses(found)) == STEPS


@pytest.mark.slow
@pytest.mark.parametrize("axes", [mesh_keys(data=8), ALL_AXES, mesh_keys(data=1, fsdp=4, tensor=2)])
def test_eight_devices_equal_one(
    trained: Callable[..., Path], tmp_path: Path, axes: dict[str, int]
) -> None:
    length = {"total_steps": STEPS, "checkpoint_every": STEPS}
    train(tiny(**length, **axes), tmp_path)
    assert results(tmp_path)["devices"] == 8
    agree(tmp_path, trained(tiny(**length)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_processes(
    python: list[str], workdir: Path, count: int, devices: int, *flags: str
) -> list[subprocess.Popen[str]]:
    """Starts a command in several processes that form one run."""
    args = command("main", QUICK, f"--workdir={workdir}", *flags, python=python)
    keys = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}", "JAX_NUM_PROCESSES": str(count)}
    envs = [environment(devices, **keys, JAX_PROCESS_ID=str(index)) for index in range(count)]
    return [start(args, **env) for env in envs]


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path, warm_python: list[str]) -> None:
    env = environment(1)
    one = command("main", QUICK, f"--workdir={tmp_path / 'one'}", *FLAGS, python=warm_python)
    subprocess.run(one, cwd=ROOT, env=env, check=True, capture_output=True, timeout=600)
    pair = start_processes(warm_python, tmp_path / "two", 2, 4, *FLAGS, "--config.microbatch=8")
    try:
        outputs = [process.communicate(timeout=600)[0] for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], outputs
    assert results(tmp_path / "two")["devices"] == 8
    assert "finished" in outputs[0]
    assert "step" not in outputs[1]  # only the first process logs
    agree(tmp_path / "two", tmp_path / "one")
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    assert one["evaluated_step"] == two["evaluated_step"] == 10
    for name in one:
        if "R@" in name or "accuracy" in name:
            assert abs(one[name] - two[name]) < 0.011, name  # near-ties may differ


def test_environment_has_eight_devices() -> None:
    assert jax.device_count() == 8
    assert int(os.environ["NPROC"]) >= 8
