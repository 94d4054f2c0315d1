"""`big-retrieval sweep`: flags, SLURM, and an interrupted sweep."""

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from big_retrieval.io.manifest import complete_steps
from big_retrieval.sweep import slurm
from tests.helpers import command, environment, in_process, losses, results, start
from tests.sweep.stubs import QUICK, becomes_free

SEEDS = "--sweep=configs/sweeps/quickstart_seeds.py:runlocal"
SBATCH = '#!/bin/sh\nprintf "%s\\n" "$@" > "$FAKE_OUT"\n'
REAL = f"""
from big_retrieval.sweep import Entry, Sweep

def get_sweep(arg=""):
    small = {{"total_steps": 30, "log_every": 1, "checkpoint_every": 5, "data.count": 200}}
    small |= {{"evals.test.data.count": 20, "evals.colours.data.count": 10, "batch_size": 16}}
    small |= {{"towers.image.depth": 1, "towers.text.depth": 1, "report": False}}
    runs = [Entry("a", {QUICK!r}, small), Entry("b", {QUICK!r}, small | {{"optimizer.lr": 1e-3}})]
    return Sweep(runs=runs, seeds=(4,), metrics=("retrieval/*/R@1", "loss"))
"""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--sweep is missing"),
        (["--sweep=configs/sweeps/quickstart_seeds.py:x"], "config argument 'x' is unknown"),
        ([SEEDS, "--config=configs/quickstart.py"], "--config is not for sweep"),
        ([SEEDS, "--list", "--table"], "--list and --table"),
        ([SEEDS, "--submit"], "needs --slurm"),
        ([SEEDS, "--only=2"], "from 0 to 1"),
        ([SEEDS, "--onyl=1"], "did you mean --only?"),
    ],
)
def test_command_rejects_wrong_flags(flags: list[str], words: str, tmp_path: Path) -> None:
    done = in_process("sweep", *flags, f"--workdir={tmp_path / 'w'}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert not (tmp_path / "w").exists()


def test_command_shows_runs_without_running(tmp_path: Path) -> None:
    flags = [SEEDS, f"--workdir={tmp_path / 'w'}"]
    listed = in_process("sweep", *flags, "--list")
    assert [line.split()[:3] for line in listed.stdout.splitlines()] == [
        ["0", "quickstart/seed_0", "new"],
        ["1", "quickstart/seed_1", "new"],
    ]
    dry = in_process("sweep", *flags, "--dry-run", "--only=1")
    assert shlex.split(dry.stdout) == [
        "big-retrieval", "train", "--config=configs/quickstart.py:runlocal",
        f"--workdir={tmp_path / 'w'}/quickstart/seed_1", "--config.seed=1",
    ]  # fmt: skip
    assert not (tmp_path / "w").exists()
    assert "0 of 2" in in_process("sweep", *flags, "--table").stdout
    refused = in_process("sweep", *flags, env={"JAX_NUM_PROCESSES": "2"})
    assert refused.returncode == 2
    assert "JAX_NUM_PROCESSES" in refused.stderr


def test_array_task_runs_one_run(tmp_path: Path) -> None:
    words = slurm.command(
        [0, 1, 2, 5, 7, 8], sweep="s.py:a", workdir=tmp_path, options="--time=1:00 --gpus=1"
    )
    assert words[0] == "sbatch"
    assert "--array=0,1,2,5,7,8" in words
    script = words.index("launch/slurm.sbatch")
    assert words.index("--time=1:00") < words.index("--gpus=1") < script
    env = {**environment(), "DRY_RUN": "1", "COMMAND": "sweep"}
    env |= {"SLURM_ARRAY_TASK_ID": "1", "SLURM_JOB_ID": "7"}
    done = subprocess.run(
        ["bash", *words[script:]], env=env, capture_output=True, text=True, check=True
    )
    printed = shlex.split(done.stdout)
    start = printed.index("-m") + 1
    assert printed[start : start + 2] == ["big_retrieval", "sweep"]
    assert printed[-3:] == ["--sweep=s.py:a", f"--workdir={tmp_path}", "--only=1"]


def test_submit_runs_sbatch_for_unfinished_runs(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "sbatch"
    fake.write_text(SBATCH)
    fake.chmod(0o755)
    flags = [SEEDS, f"--workdir={tmp_path / 'w'}", "--slurm"]
    env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "FAKE_OUT": str(tmp_path / "out")}
    (tmp_path / "w" / "quickstart" / "seed_0").mkdir(parents=True)
    (tmp_path / "w" / "quickstart" / "seed_0" / "results.json").write_text("{}")
    printed = in_process("sweep", *flags, env=env)
    assert printed.returncode == 0, printed.stderr
    assert not (tmp_path / "out").exists()
    submitted = in_process("sweep", *flags, "--submit", "--sbatch=--time=10", env=env)
    assert submitted.returncode == 0, submitted.stderr
    words = shlex.split(submitted.stdout)
    assert (tmp_path / "out").read_text().splitlines() == words[1:]
    assert "--array=1" in words
    assert "--time=10" in words
    missing = in_process("sweep", *flags, "--submit", env={"PATH": "/nowhere"})
    assert missing.returncode == 2
    assert "no sbatch" in missing.stderr


@pytest.mark.slow
def test_interrupted_sweep_equals_uninterrupted_one(tmp_path: Path) -> None:
    """Kills the sweep in run a, before and during run b; SIGINT and SIGTERM save the run first."""
    (tmp_path / "real.py").write_text(REAL)

    def run_sweep(name: str) -> subprocess.Popen[str]:
        flags = [f"--sweep={tmp_path / 'real.py'}", f"--workdir={tmp_path / name}"]
        return start(command("sweep", *flags))

    def saved_steps(run: Path) -> list[int]:
        return complete_steps(run / "checkpoints")

    def logged_steps(run: Path) -> list[int]:
        return sorted(losses(run)) if (run / "metrics.jsonl").exists() else []

    for name, steps, number in (
        ("a", saved_steps, signal.SIGKILL), ("a", logged_steps, signal.SIGINT),
        ("b", Path.exists, signal.SIGKILL), ("b", logged_steps, signal.SIGTERM),
    ):  # fmt: skip
        process, run = run_sweep("cut"), tmp_path / "cut" / name / "seed_4"
        reached = steps(run)
        while steps(run) == reached:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        out, _ = process.communicate(timeout=300)
        assert becomes_free(run)
        assert not (run / "results.json").exists()  # otherwise the signal came too late
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert "to continue, repeat the same command" in out
            assert saved_steps(run)
        assert (tmp_path / "cut" / "b").exists() == (name == "b")
    for name in ("cut", "whole"):
        process = run_sweep(name)
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0, out
    for name in "ab":
        run, expected = (tmp_path / x / name / "seed_4" for x in ("cut", "whole"))
        assert results(run)["params_sha256"] == results(expected)["params_sha256"]
        assert losses(run) == losses(expected)
        assert results(run)["resumed_from"] is not None
