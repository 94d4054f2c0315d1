"""Templates of config files: sections for all kinds of data."""

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from big_retrieval.own_data.machine import Machine
from big_retrieval.own_data.tasks import TrainingTask


def config_file(about: str, sections: Sequence[str]) -> str:
    """Returns the text of a config file with a docstring and sections that change `c`."""
    about = about.replace("\\", "\\\\").replace('"""', "'''")
    body = "\n\n".join(textwrap.indent(section.strip("\n"), "    ") for section in sections)
    return f'''"""{about.strip()}
"""

from big_retrieval import config
from big_retrieval.config import recipe


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
    """Returns the code of a part of a config, `recipe.entry(config.Type(), key=value)`."""
    keys = [f"config.{type(part).__name__}()", *_keys(part)]
    line = f"recipe.entry({', '.join(keys)})"
    return line if len(line) < 70 else "recipe.entry(\n    " + ",\n    ".join(keys) + ",\n)"


def literal(value: Any) -> str:
    """Returns the code of a value of a config."""
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
