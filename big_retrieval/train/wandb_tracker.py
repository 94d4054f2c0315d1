"""A run in Weights & Biases, under the names of metrics.jsonl."""

import importlib
import os
import uuid
from collections.abc import Mapping
from typing import Any

from big_retrieval.config.trackers import Wandb
from big_retrieval.train.tracked_run import TrackedRun

SECONDS = 20.0  # that a server has at the start and at the end


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
