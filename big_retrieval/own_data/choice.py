"""The config for some data on a machine: model, batch, steps, and what is measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config import Config, recipe
from big_retrieval.own_data import tasks
from big_retrieval.own_data.answers import answers
from big_retrieval.own_data.captions import captions
from big_retrieval.own_data.clicks import clicks
from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import Lines, TrainingTask
from big_retrieval.runtime.clock import duration

KINDS = {"captions": captions, "answers": answers, "clicks": clicks}
MANY_CUT = 0.1  # share of texts that are cut from which a user is told
START = 40.0  # seconds until the first step, most of them for compiling


@dataclass(frozen=True)
class Choice:
    """A config and why it is so.

    Attributes:
      config: of the run.
      notes: title of a section of the config file -> reasons.
      seconds: how long training may take, without evaluations; 0: nobody knows.
    """

    config: Config
    notes: Lines
    seconds: float = 0.0


def choose(task: TrainingTask, machine: Machine) -> Choice:
    """A config for a task.

    Raises:
      UserError: the published weights do not have the towers that the data need.
    """
    c, notes, share = KINDS[task.roles.kind](task, machine)
    c.data = recipe.entry(task.sources["train"])
    if task.damaged > 0.005:
        c.loader.max_damaged = min(0.5, round(3 * task.damaged, 2))
        notes.setdefault("Data", []).append(
            f"Of the sampled images {task.damaged:.1%} cannot be decoded: such records are skipped."
        )
    config = configs.load(c)
    notes.setdefault("Data", []).extend(_cut(config, task))
    return Choice(config, notes, _seconds(config, machine, share))


def _cut(config: Config, task: TrainingTask) -> Iterator[str]:
    """A sentence for each field of texts many of which are longer than what is read of them."""
    for name, field in config.encoded.items():
        column = task.columns.get(field.column) or task.columns.get(task.roles["text"])
        if field.modality != "text" or column is None or not column.words:
            continue
        long = np.mean(np.array(column.words) * tasks.WORDPIECES + 2 > field.length)
        if long > MANY_CUT:
            yield (
                f"Of column {column.name!r} the first {field.length} tokens are read, in training "
                f"and search, and {long:.0%} of its texts are longer: "
                f"--config.fields.{name}.length={2 * field.length} reads more and takes longer."
            )


def _seconds(config: Config, machine: Machine, share: float) -> float:
    """How long the training steps may take on this CPU."""
    if not machine.small or not machine.flops:
        return 0.0
    flops = 0.0
    for each in config.encoded.values():
        tower: Any = config.towers[each.tower]
        tokens = each.length or (getattr(each, "size", 0) // getattr(tower, "patch", 16)) ** 2 + 1
        weights = getattr(tower, "depth", 0) * (
            4 * getattr(tower, "width", 0) ** 2
            + 2 * getattr(tower, "width", 0) * getattr(tower, "mlp", 0)
        )
        flops += 6 * weights * tokens * config.batch_size * (config.total_steps or 0)
    return START + flops / (share * machine.flops)


def told(choice: Choice, changed: Sequence[str] = ()) -> list[str]:
    """The choice in a few lines.

    Args:
      choice: what was chosen.
      changed: keys of the config that the command line sets, such as --config.total_steps=20.
    """
    config = choice.config
    lines = [line for each in choice.notes.values() for line in each]
    time = f", about {duration(choice.seconds)} at the present speed" if choice.seconds else ""
    if changed:
        time += f", before {' '.join(changed)}"
    lines.append(
        f"{config.total_steps:,} steps of {config.batch_size:,} records{time}; the progress line "
        "below says how long is left"
    )
    return lines
