"""A run in MLflow: metrics by step, the configuration as parameters, results as metrics and tags.

MLflow allows letters, digits, spaces and _ - . : / in names: R@1 becomes R_at_1, and anything else
that it does not allow becomes an underscore.
"""

import importlib
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from big_retrieval.config import Config
from big_retrieval.config.registry import register
from big_retrieval.config.trackers import Tracker, missing_package
from big_retrieval.train.tracked_run import TrackedRun

AT_ONCE = 100  # parameters of a request
LONGEST = 500  # letters of a value


@register("tracker")
@dataclass(frozen=True)
class Mlflow(Tracker):
    """MLflow: a server, or a file on this machine."""

    title: ClassVar[str] = "MLflow"
    closing: ClassVar[float] = 30.0
    type: Literal["mlflow"] = "mlflow"
    # such as http://host:5000 or sqlite:////home/me/mlflow.db; empty: MLFLOW_TRACKING_URI, or
    # what MLflow takes, which is mlflow.db in the folder of the command
    uri: str = ""
    experiment: str = ""  # empty: MLFLOW_EXPERIMENT_NAME, or big_retrieval
    name: str = ""  # of the run; empty: that of the run folder

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from missing_package("mlflow", path, least=3)

    def open(self, run: TrackedRun) -> "MlflowTracker":
        return MlflowTracker(self, run)


class MlflowTracker:
    """An `OpenTracker`, which speaks to the store through a client of its own."""

    def __init__(self, config: Mlflow, run: TrackedRun) -> None:
        """Begins a run in MLflow, or goes on in the one of this run folder."""
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        for name in ("mlflow", "alembic"):  # which tell of every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # of every new try
        uri = config.uri or mlflow.get_tracking_uri()
        experiment = config.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        experiment = experiment or "big_retrieval"
        place = f"{uri} {experiment}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        known = run.known_id(place)
        if known is None:
            found = self._client.get_experiment_by_name(experiment)
            number = found.experiment_id if found else self._client.create_experiment(experiment)
            began = self._client.create_run(number, run_name=config.name or run.name)
            known = str(began.info.run_id)
            run.keep_id(place, known)
        else:
            self._client.set_terminated(known, "RUNNING")
        self._id, self._tracked, self._status, self._last = known, run, "KILLED", 0
        self._log_params(run.config)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row, without what the same run got at this step before it was resumed."""
        self._last = max(self._last, step)
        self._log_metrics(step, self._tracked.new_numbers(step, values))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Adds the results: numbers as metrics of the last step, texts as tags."""
        self._log_metrics(self._last, self._tracked.never_written(results))
        tags = [
            self._entities.RunTag(allowed(name), value)
            for name, value in results.items()
            if isinstance(value, str)
        ]
        self._client.log_batch(self._id, tags=tags)
        self._status = "FINISHED"

    def close(self) -> None:
        """Marks the run as finished, or as killed until it is resumed."""
        self._client.set_terminated(self._id, self._status)

    def _log_metrics(self, step: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        found = [self._entities.Metric(allowed(k), v, now, step) for k, v in values.items()]
        self._client.log_batch(self._id, metrics=found)

    def _log_params(self, config: Mapping[str, Any]) -> None:
        """Logs the keys that the run does not have yet: MLflow never changes a parameter."""
        have = self._client.get_run(self._id).data.params
        found = [
            self._entities.Param(allowed(name), str(value)[:LONGEST])
            for name, value in flat(config)
            if allowed(name) not in have
        ]
        for start in range(0, len(found), AT_ONCE):
            self._client.log_batch(self._id, params=found[start : start + AT_ONCE])


def allowed(name: str) -> str:
    """A name as MLflow allows it."""
    return re.sub(r"[^\w\-./: ]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def flat(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries with their dotted paths."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree
