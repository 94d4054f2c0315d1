"""The trackers of the package: TensorBoard, W&B and MLflow."""

import importlib
import importlib.util
import itertools
import logging
import os
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from big_retrieval.config import Config
from big_retrieval.config.registry import register
from big_retrieval.config.trackers import Tracker
from big_retrieval.report.numbers import is_number
from big_retrieval.report.settings import flat
from big_retrieval.train.tracking import OpenTracker, TrackedRun

WANDB_SECONDS = 20.0  # timeout of W&B's server, at the start and at the end
MLFLOW_PARAMS = 100  # parameters per request to MLflow
MLFLOW_CHARACTERS = 500  # maximum length of a parameter's value in MLflow


class _EventFiles:
    """Scalars in a file for TensorBoard, which voids rows of older files from step `first` on.

    `tensorboardX.SummaryWriter` writes in another thread, after a queue of ten events. An error
    ends that thread with a traceback, and the eleventh event then waits forever.
    """

    _indices = itertools.count()  # so that writers of one process use different files

    def __init__(self, folder: Path, first: int) -> None:
        # Imported here, where a failure is a warning: tensorboardX imports anything named torch,
        # such as a folder next to the config file, and fails if PyTorch's names are missing.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2
        from tensorboardX.summary import scalar

        self._protocol: Any = event_pb2  # creates its classes on import
        self._scalar = scalar
        folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{next(self._indices)}"
        self._writer = EventsWriter(str(folder / "events"), suffix)
        start = self._protocol.SessionLog(status=self._protocol.SessionLog.START)
        self._event(first, session_log=start)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if is_number(value):
                self._event(step, summary=self._scalar(name, value))
        self._writer.flush()

    def finish(self, results: Mapping[str, Any]) -> None:
        """Does nothing: TensorBoard has no numbers without a step."""

    def close(self) -> None:
        self._writer.close()

    def _event(self, step: int, **content: Any) -> None:
        event = self._protocol.Event(step=step, wall_time=time.time(), **content)
        self._writer.write_event(event)


@register("tracker")
@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Files for TensorBoard, in the folder tensorboard of the run folder."""

    title: ClassVar[str] = "TensorBoard"
    type: Literal["tensorboard"] = "tensorboard"

    def open(self, run: TrackedRun) -> OpenTracker:
        return _EventFiles(run.folder / "tensorboard", run.first)


@register("tracker")
@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases; its variables, such as WANDB_PROJECT, replace empty keys."""

    title: ClassVar[str] = "W&B"
    closing: ClassVar[float] = 30.0
    type: Literal["wandb"] = "wandb"
    project: str = ""  # empty for WANDB_PROJECT, or big_retrieval
    entity: str = ""  # user or team
    name: str = ""  # name of the run; empty for the name of the run folder
    group: str = ""
    tags: tuple[str, ...] = ()
    # offline writes files into the folder wandb of the run folder, for `wandb sync`; empty for
    # WANDB_MODE, or online
    mode: Literal["", "online", "offline"] = ""

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from _missing_package("wandb", path)
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not _wandb_login():
            yield (
                f"{path}: no W&B login on this machine. Run `wandb login`, or set WANDB_API_KEY or "
                f"--{path}.mode=offline."
            )

    def open(self, run: TrackedRun) -> OpenTracker:
        return _WandbRun(self, run)


def _wandb_login() -> bool:
    """Returns True if the library may find a login without asking on the terminal."""
    names = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC")
    home = Path.home()
    files = (home / ".netrc", home / "_netrc", home / ".config/wandb/settings")
    return any(map(os.environ.get, names)) or any(file.exists() for file in files)


class _WandbRun:
    """A run in W&B, which resumed runs continue: history, config, and the summary at the end."""

    def __init__(self, config: Wandb, run: TrackedRun) -> None:
        wandb: Any = importlib.import_module("wandb")
        project = config.project or os.environ.get("WANDB_PROJECT") or "big_retrieval"
        path = f"{config.entity}/{project}"
        mode = config.mode or os.environ.get("WANDB_MODE") or "online"
        known = run.known_id(path)
        run_id = known or uuid.uuid4().hex[:8]
        settings = wandb.Settings(
            console="off",
            silent=True,
            login_timeout=1.0,
            reinit="create_new",
            # W&B's process delays the end of this process while a server does not answer.
            init_timeout=WANDB_SECONDS,
            finish_timeout=WANDB_SECONDS,
            x_graphql_retry_max=2,
            x_graphql_timeout_seconds=5,
        )
        self._run = wandb.init(
            project=project,
            entity=config.entity or None,
            id=run_id,
            name=config.name or run.name,
            group=config.group or None,
            tags=config.tags,
            mode=mode,
            dir=str(run.folder),
            config=dict(run.config),
            # Offline, `wandb sync` merges the files of one id into one run.
            resume="allow" if known and mode == "online" else None,
            allow_val_change=True,
            settings=settings,
        )
        run.keep_id(path, run_id)
        self._tracked, self._finished = run, False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        if new_values := self._tracked.new_numbers(step, values):
            self._run.log(new_values, step=step)

    def finish(self, results: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(results))
        self._finished = True

    def close(self) -> None:
        """Uploads the last rows; marks a run without results as failed until it is resumed."""
        self._run.finish(exit_code=0 if self._finished else 1)


@register("tracker")
@dataclass(frozen=True)
class Mlflow(Tracker):
    """MLflow: a server, or a file on this machine."""

    title: ClassVar[str] = "MLflow"
    closing: ClassVar[float] = 30.0
    type: Literal["mlflow"] = "mlflow"
    # server or file, such as http://host:5000 or sqlite:////home/me/mlflow.db; empty for
    # MLFLOW_TRACKING_URI, or MLflow's default, which is mlflow.db in the folder of the command
    uri: str = ""
    experiment: str = ""  # empty for MLFLOW_EXPERIMENT_NAME, or big_retrieval
    name: str = ""  # name of the run; empty for the name of the run folder

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from _missing_package("mlflow", path)

    def open(self, run: TrackedRun) -> OpenTracker:
        return _MlflowRun(self, run)


class _MlflowRun:
    """A run in MLflow, which resumed runs continue."""

    def __init__(self, config: Mlflow, run: TrackedRun) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        for name in ("mlflow", "alembic"):  # they log every table of a new database
            logging.getLogger(name).setLevel(logging.WARNING)
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # logs every retry
        uri = config.uri or mlflow.get_tracking_uri()
        experiment = config.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        experiment = experiment or "big_retrieval"
        project = f"{uri} {experiment}"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        run_id = run.known_id(project)
        if run_id is None:
            entity = self._client.get_experiment_by_name(experiment)
            key = entity.experiment_id if entity else self._client.create_experiment(experiment)
            created = self._client.create_run(key, run_name=config.name or run.name)
            run_id = str(created.info.run_id)
            run.keep_id(project, run_id)
        else:
            self._client.set_terminated(run_id, "RUNNING")
        self._id, self._tracked, self._status, self._last = run_id, run, "KILLED", 0
        self._log_params(run.config)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        self._last = max(self._last, step)
        self._log_metrics(step, self._tracked.new_numbers(step, values))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Writes the results: numbers as metrics of the last step, texts as tags."""
        self._log_metrics(self._last, self._tracked.never_written(results))
        tags = [
            self._entities.RunTag(_allowed_name(name), value)
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
        metrics = [self._entities.Metric(_allowed_name(k), v, now, step) for k, v in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def _log_params(self, config: Mapping[str, Any]) -> None:
        """Logs the keys that the run does not have: MLflow never changes a parameter."""
        have = self._client.get_run(self._id).data.params
        params = [
            self._entities.Param(_allowed_name(name), str(value)[:MLFLOW_CHARACTERS])
            for name, value in flat(config).items()
            if _allowed_name(name) not in have
        ]
        for start in range(0, len(params), MLFLOW_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + MLFLOW_PARAMS])


def _allowed_name(name: str) -> str:
    """Returns a name that MLflow allows: R_at_1 for R@1, "_" for other forbidden characters."""
    return re.sub(r"[^\w\-./: ]", "_", name.replace("@", "_at_"), flags=re.ASCII)


def _missing_package(package: str, path: str) -> Iterator[str]:
    """Yields an error message if a package is missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:  # or a folder of this name, such as W&B's
        yield f"{path} needs the package {package}, which is missing: pip install {package}."
