"""Checks one configuration and prints it as JSON: what a sweep does before its first run.

    python -m big_retrieval.sweep.check --config=FILE[:arg] [--config.a.b=v]

A process of its own, as config files are read through flags that a process has only once; without
jax, it takes a fraction of a second. It says exactly what `big_retrieval.main` would.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from big_retrieval import cli, schema
from big_retrieval import config as configs
from big_retrieval.checks import check
from big_retrieval.checks.evals import metrics_of_all
from big_retrieval.errors import UserError
from big_retrieval.manifest import to_json
from big_retrieval.sweep.spec import Run, Sweep

EVALUATORS = ("retrieval/", "zeroshot/")  # how the names of evaluators' metrics begin


@dataclass(frozen=True)
class Checked:
    """A configuration that can be run.

    Attributes:
      plain: as in config.json.
      metrics: the names of its evaluators' metrics.
    """

    plain: dict[str, Any]
    metrics: tuple[str, ...]


def check_all(sweep: Sweep, runs: Sequence[Run]) -> None:
    """Checks the configurations of all runs, and that finished ones are still what they were.

    Args:
      sweep: whose metrics are asked for.
      runs: those that are to be run or in the table.

    Raises:
      UserError: names the run, and the key or file.
    """
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        found = list(pool.map(_checked, runs))
    for run, checked in zip(runs, found, strict=True):
        _compare(run, checked)
    known = sorted({name for checked in found for name in checked.metrics})
    for pattern in sweep.metrics:
        evaluator = pattern.startswith(EVALUATORS)  # only these are known before a run
        if evaluator and not any(fnmatchcase(name, pattern) for name in known):
            raise UserError(
                f"the sweep's metric {pattern!r} is of no evaluator of its configs; they have: "
                f"{', '.join(known) or 'none'}."
            )


def _checked(run: Run) -> Checked:
    flags = [flag for flag in run.flags() if not flag.startswith("--workdir=")]
    done = subprocess.run(
        [sys.executable, "-m", "big_retrieval.sweep.check", *flags],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise UserError(f"{run.name}: {last.removeprefix('error: ')}")
    answer = json.loads(done.stdout.strip().splitlines()[-1])  # a config file may print too
    return Checked(answer["config"], tuple(answer["metrics"]))


def _compare(run: Run, checked: Checked) -> None:
    """Raises if a run that is skipped as finished was another configuration's.

    One that is not finished is compared by `big_retrieval.main` itself, before it trains.
    """
    saved = run.folder / "config.json"
    if not (run.folder / "results.json").exists() or not saved.exists():
        return
    try:
        old = configs.load_saved(json.loads(saved.read_text()))
    except (ValueError, UserError) as problem:
        raise UserError(
            f"{run.name}: {saved} cannot be read ({problem}); use another --workdir."
        ) from None
    theirs = json.loads(to_json(schema.to_plain(old)))
    for key, before, now in schema.differences(theirs, checked.plain):
        if not configs.free_on_resume(key):
            raise UserError(
                f"{run.name}: {run.folder} holds a finished run with {key} = {before!r}, the sweep "
                f"now has {now!r}: rename the entry, use another --workdir, or delete the folder."
            )


def main() -> None:
    """Prints the configuration of this command line, and the names of its metrics."""
    config = cli.load_config()
    check(config)
    metrics = metrics_of_all(config)
    plain = json.loads(to_json(schema.to_plain(config)))
    print(json.dumps({"config": plain, "metrics": metrics}))


if __name__ == "__main__":
    cli.run(main)
