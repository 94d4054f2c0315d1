"""A run in Weights & Biases, under the names of metrics.jsonl."""

import importlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from big_retrieval.config import Config
from big_retrieval.config.registry import register
from big_retrieval.config.trackers import Tracker, missing_package
from big_retrieval.train.tracked_run import TrackedRun

SECONDS = 20.0  # that a server has at the start and at the end


@register("tracker")
@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases; its variables, such as WANDB_PROJECT, hold where a key is empty."""

    title: ClassVar[str] = "W&B"
    closing: ClassVar[float] = 30.0
    type: Literal["wandb"] = "wandb"
    project: str = ""  # empty: WANDB_PROJECT, or big_retrieval
    entity: str = ""  # user or team
    name: str = ""  # of the run; empty: that of the run folder
    group: str = ""
    tags: tuple[str, ...] = ()
    # offline: files in the folder wandb of the run folder, for `wandb sync`
    mode: Literal["", "online", "offline"] = ""  # empty: WANDB_MODE, or online

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from missing_package("wandb", path)
        mode = self.mode or os.environ.get("WANDB_MODE", "online")
        if mode == "online" and not _wandb_login():  # the library would ask on the terminal
            yield (
                f"{path}: nobody is logged in to W&B on this machine: run `wandb login`, or set "
                f"WANDB_API_KEY, or --{path}.mode=offline."
            )

    def open(self, run: TrackedRun) -> "WandbTracker":
        return WandbTracker(self, run)


def _wandb_login() -> bool:
    """Whether there is anything by which the library may find a login without asking."""
    names = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC")
    home = Path.home()
    files = (home / ".netrc", home / "_netrc", home / ".config/wandb/settings")
    return any(map(os.environ.get, names)) or any(file.exists() for file in files)


class WandbTracker:
    """An `OpenTracker`: rows of the history, the configuration, and the summary at the end."""

    def __init__(self, config: Wandb, run: TrackedRun) -> None:
        """Begins a run in W&B, or goes on in the one of this run folder."""
        wandb: Any = importlib.import_module("wandb")
        project = config.project or os.environ.get("WANDB_PROJECT") or "big_retrieval"
        place = f"{config.entity}/{project}"
        mode = config.mode or os.environ.get("WANDB_MODE") or "online"
        known = run.known_id(place)
        number = known or uuid.uuid4().hex[:8]
        settings = wandb.Settings(
            console="off",  # the screen is ours
            silent=True,
            login_timeout=1.0,
            reinit="create_new",
            # Its process would hold up the end of ours for as long as a server does not answer.
            init_timeout=SECONDS,
            finish_timeout=SECONDS,
            x_graphql_retry_max=2,
            x_graphql_timeout_seconds=5,
        )
        self._run = wandb.init(
            project=project,
            entity=config.entity or None,
            id=number,
            name=config.name or run.name,
            group=config.group or None,
            tags=config.tags,
            mode=mode,
            dir=str(run.folder),
            config=dict(run.config),
            # Offline there is nothing to ask; files of one id become one run when they are synced.
            resume="allow" if known and mode == "online" else None,
            allow_val_change=True,
            settings=settings,
        )
        run.keep_id(place, number)
        self._tracked, self._finished = run, False

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds a row, without what the same run got at this step before it was resumed."""
        found = self._tracked.new_numbers(step, values)
        if found:
            self._run.log(found, step=step)

    def finish(self, results: Mapping[str, Any]) -> None:
        """Makes the results the run's summary."""
        self._run.summary.update(dict(results))
        self._finished = True

    def close(self) -> None:
        """Uploads the rest; a run without results is marked as failed until it is resumed."""
        self._run.finish(exit_code=0 if self._finished else 1)
