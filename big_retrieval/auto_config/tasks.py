"""Training tasks, and the sections of config files for all kinds of data."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.auto_config.columns import Roles
from big_retrieval.auto_config.machine import Machine
from big_retrieval.auto_config.records import RecordSample
from big_retrieval.config import Config
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError

WORDPIECES = 1.4  # tokens per word, on average
MANY_CUT = 0.1  # share of truncated texts above which the config has a comment


@dataclass(frozen=True)
class TrainingTask:
    """Data to train on.

    Attributes:
      sample: facts about some records for training.
      sources: split -> records; "train", "validation", and splits evaluated at the end.
      records: number of records for training.
      init: folder of published weights; None for random weights.
      limit: highest score of judged pairs.
    """

    roles: Roles
    sample: RecordSample
    sources: Mapping[str, Source]
    records: int
    init: Path | None = None
    limit: float = 100.0

    def length(self, column: str, max_length: int) -> int:
        """Returns a number of tokens that fits 95% of a column's texts, a multiple of 8."""
        words = self.sample.words.get(column)
        count = float(np.percentile(words, 95)) if words else 8.0
        return int(min(max_length, max(16, 8 * math.ceil((count * WORDPIECES + 2) / 8))))

    def cut(self, field: str, column: str, length: int) -> str:
        """Returns a comment if many texts of a column have more than `length` tokens, else ""."""
        words = np.array(self.sample.words.get(column) or [0])
        long = np.mean(words * WORDPIECES + 2 > length)
        if long <= MANY_CUT:
            return ""
        return (
            f"{long:.0%} of the texts in {column!r} are longer than the {length} tokens that are "
            f"read: --config.fields.{field}.length={2 * length} reads more."
        )


def pretrained_config(folder: str, towers: Sequence[str]) -> Config:
    """Returns the config of published weights, which need these towers and a tokenizer."""
    from big_retrieval.interop.model import config_of
    from big_retrieval.interop.read import read

    config = config_of(read(folder), None)
    missing = [name for name in towers if name not in config.towers]
    if missing:
        raise UserError(
            f"--init={folder} has no {' and no '.join(missing)} tower, which these data need. Give "
            "the folder of another model, or remove --init."
        )
    if not config.tokenizer.path:
        raise UserError(f"--init={folder} has no tokenizer. Give a complete folder.")
    return config


def config_file(docstring: str, sections: Sequence[str], folder: Path) -> str:
    """Returns a config file for a folder, with a docstring and sections that change `c`."""
    docstring = docstring.replace("\\", "\\\\").replace('"""', "'''")
    body = "\n\n".join(textwrap.indent(section.strip("\n"), "    ") for section in sections)
    inside = json.dumps(f"{folder.absolute()}/", ensure_ascii=False)[:-1]  # as in `literal`
    body = body.replace(inside, 'RUN + "/')
    return f'''"""{docstring.strip()}
"""

import os

from big_retrieval import config
from big_retrieval.config import recipe

RUN = os.path.dirname(os.path.abspath(__file__))  # folder of this file and of data/


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.base()

{body}

    return recipe.runlocal(c, keep_data=True) if args.runlocal else c
'''


def run_section(
    task: TrainingTask,
    machine: Machine,
    *,
    batch: int,
    epochs: float,
    steps: tuple[int, int],
    lr: float,
    weight_decay: float,
    warmup: int = 15,
    best_metric: str = "",
) -> str:
    """Returns the section of steps, batch size, precision and optimizer.

    The batch size is a power of two, at most `batch` and at most a quarter of the records. The run
    takes `epochs`, within the bounds `steps`; the first 1/`warmup` of the steps is warm-up.
    """
    rows = max(4, min(batch, 1 << max(0, int(math.log2(max(1, task.records // 4))))))
    rows = machine.devices * math.ceil(rows / machine.devices)
    count = int(min(steps[1], max(steps[0], epochs * task.records / rows)))
    every = max(1, count // 4)
    best = f'c.best_metric, c.final_weights = "{best_metric}", "best"\n' if best_metric else ""
    return f"""
# Run
c.total_steps, c.batch_size = {count}, {rows}
c.log_every, c.eval_every, c.checkpoint_every = {max(1, min(20, every))}, {every}, {every}
{best}c.dtype = "{"float32" if machine.is_small else "bfloat16"}"
c.optimizer.lr, c.optimizer.weight_decay = {lr}, {weight_decay}
c.optimizer.schedule.warmup_steps = {max(1, count // warmup)}
"""


def data_section(
    task: TrainingTask, evaluators: Mapping[str, str], comments: Sequence[str] = ()
) -> str:
    """Returns the section of sources and evaluators; `evaluators` maps splits to code."""
    lines = ["# Data", *map(comment, filter(None, comments))]
    broken = float(np.mean([side == 0 for side in task.sample.sides] or [0]))
    if broken > 0.005:
        lines.append(comment(f"{broken:.1%} of the sampled images cannot be decoded: skipped."))
        lines.append(f"c.loader.max_damaged = {min(0.5, round(3 * broken, 2))}")
    lines.append(f"c.data = {entry(task.sources['train'])}")
    for name, code in evaluators.items():
        lines.append(f"c.evals.{name} = {code}")
        lines.append(f"c.evals.{name}.data = {entry(task.sources[name])}")
        if name != "validation":
            lines.append(f"c.evals.{name}.every = 0  # at the end")
    return "\n".join(lines)


def comment(text: str) -> str:
    """Formats a text as a comment."""
    lines = textwrap.wrap(text, 92, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"# {line}" for line in lines)


def entry(part: Any) -> str:
    """Returns code for a config entry: `recipe.entry(config.Type(), key=value)`."""
    keys = [f"config.{type(part).__name__}()", *_keys(part)]
    line = f"recipe.entry({', '.join(keys)})"
    return line if len(line) < 70 else "recipe.entry(\n    " + ",\n    ".join(keys) + ",\n)"


def literal(value: Any) -> str:
    """Returns code for a config value."""
    if dataclasses.is_dataclass(value):
        return f"config.{type(value).__name__}({', '.join(_keys(value))})"
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _keys(part: Any) -> list[str]:
    default = type(part)()
    values = ((x.name, getattr(part, x.name)) for x in dataclasses.fields(part))
    return [f"{name}={literal(x)}" for name, x in values if x != getattr(default, name)]
