"""Outputs that a run does not need may fail: the run continues."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from big_retrieval import config as configs
from big_retrieval.config import recipe
from big_retrieval.report import page
from big_retrieval.train import summary
from big_retrieval.train.loop import train
from tests.examples.helpers import SMALL
from tests.helpers import ROOT, command, environment, losses, tiny
from tests.train.runs import ONE, assert_same_run

pytestmark = pytest.mark.usefixtures("one_model")


@pytest.mark.slow
def test_run_finishes_if_only_metrics_and_checkpoints_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    test = recipe.entry(configs.Retrieval(), data=configs.Scenes(split="test", count=20))
    config = tiny(total_steps=4, evals={"test": test}, eval_every=2, report=True)
    train(config, tmp_path / "whole", ONE)
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("tensorboard", "examples"):
        (folder / name).write_text("a file where a folder should be")
    (folder / "curves.csv").mkdir()

    def fail(*args: Any) -> Any:
        raise ValueError("a bug")

    monkeypatch.setattr(page, "write_report", fail)
    monkeypatch.setattr(summary, "record_start", fail)
    train(config, folder, ONE)
    said = capsys.readouterr().err.splitlines()
    for start in (
        *(f"{name} is not written (" for name in ("environment.json", "curves.csv", "the report")),
        "TensorBoard failed at step 1 (",
        "retrieval/test: examples/retrieval-test.json is ",
    ):
        assert sum(line.startswith(f"warning: {start}") for line in said) == 1, start
    assert_same_run(folder, tmp_path / "whole")


@pytest.mark.slow
def test_run_continues_if_its_output_is_closed(tmp_path: Path, warm_python: list[str]) -> None:
    """For example after `| head -3`."""
    process = subprocess.Popen(
        command(
            "main", "--config=configs/quickstart.py:runlocal", f"--workdir={tmp_path / 'run'}",
            "--config.total_steps=2", "--config.report=False", "--config.log_every=1", *SMALL,
            python=warm_python,
        ),
        cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert err.count("warning: the output cannot be written (Broken pipe)") == 1
    assert "Traceback" not in err
    assert len(losses(tmp_path / "run")) == 2
    assert (tmp_path / "run" / "results.json").exists()
