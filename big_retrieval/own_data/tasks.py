"""What is to be trained, and what configs of all kinds of it share."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.roles import Roles

MANY_CORES = 8  # from which a CPU gets a larger model
WORDPIECES = 1.4  # of a word, in the mean
# Share of the speed of a matrix product that a training step reaches: small and wide towers.
EFFICIENCY = {"small": 0.25, "published": 0.6}
METRICS = ("nDCG@10", "MRR@10", "R@100")  # of judged queries, as BEIR's papers have them
Lines = dict[str, list[str]]


@dataclass(frozen=True)
class TrainingTask:
    """What is to be trained.

    Attributes:
      roles: what the columns are.
      columns: what they hold.
      sources: split -> its records; "train" and others, which are evaluated.
      records: for training.
      damaged: share of the sampled images that cannot be decoded.
      init: a folder of published weights; None: there is none.
      limit: score of the best pair, of judged pairs.
    """

    roles: Roles
    columns: Mapping[str, Column]
    sources: Mapping[str, Source]
    records: int
    damaged: float = 0.0
    init: Path | None = None
    limit: float = 100.0


def length_of(column: Column, most: int) -> int:
    """Tokens that nearly all texts of a column fit into: a multiple of 8 up to `most`."""
    words = float(np.percentile(column.words, 95)) if column.words else 8.0
    return int(min(most, max(16, 8 * math.ceil((words * WORDPIECES + 2) / 8))))


def batch_of(records: int, most: int) -> int:
    """A power of two: at most `most`, and a quarter of the records."""
    return max(4, min(most, 1 << max(0, int(math.log2(max(1, records // 4))))))


def run_length(
    c: Any, task: TrainingTask, machine: Machine, batch: int, epochs: float, steps: tuple[int, int],
    warmup: int = 15, **optimizer: Any,
) -> None:  # fmt: skip
    """Batch, length, intervals and precision of the run, and its optimiser."""
    rows, devices = batch_of(task.records, batch), machine.devices
    c.batch_size = devices * math.ceil(rows / devices)
    c.dtype = "float32" if machine.small else "bfloat16"
    c.total_steps = int(min(steps[1], max(steps[0], epochs * task.records / c.batch_size)))
    every = max(1, c.total_steps // 4)
    c.log_every, c.eval_every, c.checkpoint_every = max(1, min(20, every)), every, every
    c.optimizer.update(**optimizer)
    c.optimizer.schedule.warmup_steps = max(1, c.total_steps // warmup)


def evaluators(c: Any, task: TrainingTask, make: Callable[[Source], Any]) -> None:
    """An evaluator of each split but that of training; of others than validation at the end."""
    for name, source in task.sources.items():
        if name != "train":
            c.evals[name] = make(source)
            if name != "validation":
                c.evals[name].every = 0


def pair_evaluators(c: Any, task: TrainingTask, query: str, document: str) -> None:
    """Evaluators of pairs, or of judged queries; the best checkpoint by validation counts."""

    def make(source: Source) -> Any:
        if source.graded:
            return recipe.entry(configs.Ranking(), data=source, metrics=METRICS)
        return recipe.entry(configs.Retrieval(), query=query, document=document, data=source)

    evaluators(c, task, make)
    judged = task.sources["validation"].graded
    name = f"ranking/validation/{METRICS[0]}" if judged else "retrieval/validation/R-mean"
    c.best_metric, c.final_weights = name, "best"


def gpu_batch(machine: Machine) -> int:
    """Rows that surely fit: 256 for every 16 GiB of an accelerator."""
    return 256 * machine.accelerators * max(1, round((machine.memory or 2**34) / 2**34))


def published(task: TrainingTask, wanted: Sequence[str]) -> Config:
    """The configuration of published weights.

    Raises:
      UserError: they lack a tower.
    """
    from big_retrieval.interop.model import config_of
    from big_retrieval.interop.read import read

    found = config_of(read(str(task.init)), None)
    lacking = [name for name in wanted if name not in found.towers]
    if lacking:
        raise UserError(
            f"--init={task.init} has no {' and no '.join(lacking)} tower, which these data need: "
            "give the folder of another model, or leave --init out."
        )
    if "text" in wanted and not found.tokenizer.path:
        raise UserError(f"--init={task.init} comes without a tokenizer; give a whole folder.")
    return found
