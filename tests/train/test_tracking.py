"""W&B and MLflow get what metrics.jsonl gets, once, in one run; also from the real libraries."""

import importlib.util
import json
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from big_retrieval.commands.train import with_trackers
from big_retrieval.config import Config, Mlflow, TensorBoard, Wandb, annotations, recipe
from big_retrieval.config.checks import check
from big_retrieval.errors import UserError
from big_retrieval.train.logging import Metrics
from big_retrieval.train.loop import train
from big_retrieval.train.trackers import _allowed_name
from tests.helpers import tiny
from tests.train import stand_ins
from tests.train.runs import ONE

BOTH = {"wandb": recipe.entry(Wandb(mode="offline")), "mlflow": recipe.entry(Mlflow())}


def tracked(**changes: Any) -> Config:
    """A small config with both trackers beside TensorBoard."""
    board = {"tensorboard": recipe.entry(TensorBoard())}
    return tiny(trackers=board | BOTH, **changes)


def log(folder: Path, restored: int | None, steps: range, results: Mapping[str, Any]) -> None:
    """A start of a run that logs every step and evaluates every second one."""
    metrics = Metrics(folder, restored_step=restored, config=tracked())
    for step in steps:
        metrics.write(step, {"loss": 1 / step, "records": "ab"})
        if step % 2 == 0:
            metrics.write(step, {"retrieval/test/R@1": step / 10})
    if results:
        metrics.finish(results)
    metrics.close()


@pytest.mark.parametrize("restored", [4, 3, None])
def test_resumed_run_continues_its_tracked_run_without_repeated_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str], restored: int | None
) -> None:
    wandb, mlflow = stand_ins.install(monkeypatch)
    log(tmp_path, None, range(1, 6), {})
    assert [run.status for run in mlflow.runs.values()] == ["KILLED"]
    assert wandb.exits == [1]
    results = {"loss": 0.1, "seconds": 3.5, "params_sha256": "00ff", "resumed_from": restored}
    log(tmp_path, restored, range((restored or 0) + 1, 9), results)
    assert said == []

    [run] = mlflow.runs.values()
    assert sorted((step, value) for key, step, value in run.metrics if key == "loss") == [
        (step, 1 / step) for step in range(1, 9)
    ]
    evaluated = [step for key, step, _ in run.metrics if key == "retrieval/test/R_at_1"]
    assert evaluated == [2, 4, 6, 8]
    ends = {(key, value) for key, step, value in run.metrics if step == 8}
    assert ("seconds", 3.5) in ends
    assert (run.name, run.status) == (tmp_path.name, "FINISHED")
    assert run.tags == {"params_sha256": "00ff"}
    assert run.data.params["optimizer.rule.type"] == "adamw"

    assert len({keys["id"] for keys in wandb.inits}) == 1
    assert wandb.inits[0]["config"]["optimizer"]["rule"]["type"] == "adamw"
    assert wandb.inits[0]["dir"] == str(tmp_path)
    assert [(n, row["loss"]) for _, n, row in wandb.rows if "loss" in row] == [
        (step, 1 / step) for step in range(1, 9)
    ]
    assert [n for _, n, row in wandb.rows if "retrieval/test/R@1" in row] == [2, 4, 6, 8]
    assert wandb.exits == [1, 0]
    assert wandb.summary == results


def test_another_experiment_gets_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mlflow = stand_ins.install(monkeypatch)
    (tmp_path / "a").mkdir()
    log(tmp_path / "a", None, range(1, 3), {})
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "other")
    log(tmp_path / "a", 2, range(3, 5), {})
    assert list(mlflow.experiments) == ["big_retrieval", "other"]
    assert [len([m for m in run.metrics if m[0] == "loss"]) for run in mlflow.runs.values()] == [
        2,
        2,
    ]


@pytest.mark.slow
def test_trackers_get_the_rows_of_metrics_jsonl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb, mlflow = stand_ins.install(monkeypatch)
    results = train(tracked(total_steps=3, log_every=1), tmp_path, ONE)
    rows = [
        (row["step"], name, value)
        for row in map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
        for name, value in row.items()
        if name != "step" and not isinstance(value, str)
    ]
    assert len(rows) > 20
    logged = [(step, name, x) for _, step, row in wandb.rows for name, x in row.items()]
    assert sorted(logged) == sorted(rows)
    assert wandb.summary == results
    [run] = mlflow.runs.values()
    have = {(step, key, value) for key, step, value in run.metrics}
    assert {(step, _allowed_name(name), value) for step, name, value in rows} <= have
    assert run.tags["params_sha256"] == results["params_sha256"]


def test_check_rejects_a_missing_library_or_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"config\.trackers\.mlflow needs the package mlflow.* pip install mlflow"
    ):
        check(tiny(trackers={"mlflow": recipe.entry(Mlflow())}))
    check(tiny(trackers={"mlflow": recipe.entry(Mlflow())}), trains=False)
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    if importlib.util.find_spec("wandb") is None:  # W&B's folder is not the library
        (tmp_path / "wandb").mkdir()
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(UserError, match="needs the package wandb"):
            check(tiny(trackers={"wandb": recipe.entry(Wandb(mode="offline"))}))
    stand_ins.install(monkeypatch)
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"trackers\.w: no W&B login .*mode=offline"):
        check(tiny(trackers={"w": recipe.entry(Wandb())}))
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check(tiny(trackers={"w": recipe.entry(Wandb())}))


def test_trackers_are_added_by_their_types() -> None:
    own = Mlflow(uri="sqlite:///x.db")
    config = tiny(trackers={"mine": recipe.entry(own)})
    assert with_trackers(config, ["mlflow", "wandb"]).trackers == {"mine": own, "wandb": Wandb()}
    with pytest.raises(UserError, match="'wb' is unknown; known: mlflow, tensorboard, wandb"):
        with_trackers(config, ["wb"])


def test_command_line_adds_tracker() -> None:
    """--config.trackers.wandb.project=x; a wrong name of an evaluator stays an error."""
    assert annotations.entry_kind(Config, "trackers", "wandb") is Wandb
    assert annotations.entry_kind(Config, "trackers", "mine") is None
    assert annotations.entry_kind(Config, "evals", "retrieval") is None


# ---- The real libraries, where they are installed


@pytest.mark.slow
def test_mlflow_database_has_run_and_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setattr(Mlflow, "closing", 300.0)
    store = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
    monkeypatch.setitem(BOTH, "wandb", recipe.entry(TensorBoard()))
    log(tmp_path, None, range(1, 6), {})
    log(tmp_path, 3, range(4, 9), {"seconds": 3.5, "params_sha256": "00ff"})
    with sqlite3.connect(store) as base:
        assert base.execute("select status from runs").fetchall() == [("FINISHED",)]
        found = base.execute("select step from metrics where key = 'loss' order by step").fetchall()
        assert found == [(step,) for step in range(1, 9)]
        assert ("00ff",) in base.execute("select value from tags").fetchall()
