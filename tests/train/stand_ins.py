"""Stand-ins for wandb and mlflow: the part of their interface that trackers use, and its rules."""

import re
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def install(monkeypatch: pytest.MonkeyPatch) -> tuple["Wandb", "Mlflow"]:
    """Puts both in the place of the libraries; they remember what they are told."""
    wandb, mlflow = Wandb(), Mlflow()
    entities = SimpleNamespace(Metric=Metric, Param=Pair, RunTag=Pair)
    found = {"wandb": wandb.__dict__ | {"init": wandb.init, "Settings": dict}}
    found["mlflow"] = {"MlflowClient": mlflow.client, "get_tracking_uri": lambda: "file"}
    found["mlflow.entities"] = vars(entities)
    for name, content in found.items():
        module = ModuleType(name)
        vars(module).update(content)
        module.__spec__ = ModuleSpec(name, None, origin="a test")
        monkeypatch.setitem(sys.modules, name, module)
    return wandb, mlflow


class Wandb:
    """wandb: `init` begins a run; rows of a run come with steps that never fall."""

    def __init__(self) -> None:
        self.inits: list[dict[str, Any]] = []
        self.rows: list[tuple[str, int, dict[str, Any]]] = []
        self.summary: dict[str, Any] = {}
        self.exits: list[int] = []

    def init(self, **keys: Any) -> Any:
        self.inits.append(keys)

        def log(values: Mapping[str, Any], step: int) -> None:
            assert all(step >= other for _, other, _ in self.rows)
            self.rows.append((keys["id"], step, dict(values)))

        return SimpleNamespace(
            log=log, summary=self.summary, finish=lambda exit_code: self.exits.append(exit_code)
        )


class Metric:
    """A number of a step."""

    def __init__(self, key: str, value: float, timestamp: int, step: int) -> None:
        assert re.fullmatch(r"[\w\-./: ]+", key, re.ASCII), key
        assert isinstance(value, float | int)
        assert timestamp > 1e12  # milliseconds
        self.key, self.value, self.step = key, value, step


class Pair:
    """A parameter or a tag."""

    def __init__(self, key: str, value: str) -> None:
        assert re.fullmatch(r"[\w\-./: ]+", key, re.ASCII), key
        assert isinstance(value, str)
        assert len(value) <= 6000
        self.key, self.value = key, value


class Mlflow:
    """mlflow: stores of experiments with runs, whose parameters never change."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, Any] = {}

    def client(self, tracking_uri: str) -> Any:
        del tracking_uri
        return SimpleNamespace(
            get_experiment_by_name=self._experiment, create_experiment=self._new_experiment,
            create_run=self._new_run, get_run=self.runs.__getitem__,
            set_terminated=self._set, log_batch=self._log,
        )  # fmt: skip

    def _experiment(self, name: str) -> Any:
        found = self.experiments.get(name)
        return found and SimpleNamespace(experiment_id=found)

    def _new_experiment(self, name: str) -> str:
        assert name not in self.experiments
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def _new_run(self, experiment: str, run_name: str) -> Any:
        assert experiment in self.experiments.values()
        number = f"run{len(self.runs)}"
        self.runs[number] = SimpleNamespace(
            info=SimpleNamespace(run_id=number), name=run_name, status="RUNNING", metrics=[],
            tags={}, data=SimpleNamespace(params={}),
        )  # fmt: skip
        return self.runs[number]

    def _set(self, number: str, status: str) -> None:
        self.runs[number].status = status

    def _log(self, number: str, metrics: Any = (), params: Any = (), tags: Any = ()) -> None:
        assert len(params) <= 100
        assert len(metrics) <= 1000
        run = self.runs[number]
        run.metrics += [(each.key, each.step, each.value) for each in metrics]
        for each in params:
            assert run.data.params.setdefault(each.key, each.value) == each.value
        run.tags |= {each.key: each.value for each in tags}
