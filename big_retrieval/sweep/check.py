"""Checks the configurations of a sweep before its first run, exactly as `big_retrieval.main` would.

A config file may change its process, or end it. Therefore `check_all` starts one process
(`python -m big_retrieval.sweep.check`), which forks for every run. Its standard input is a JSON
list of command lines, its output a JSON list of answers.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from typing import Any

from big_retrieval import config as configs
from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.cli.options import parse
from big_retrieval.config import registry, schema
from big_retrieval.config.checks import check
from big_retrieval.config.checks.evals import metrics_of_all
from big_retrieval.errors import UserError
from big_retrieval.inference.saved import read_config
from big_retrieval.sweep.spec import Sweep, SweepRun, inputs_sha256
from big_retrieval.sweep.table import read_results

EVALUATORS = ("retrieval/", "zeroshot/")  # prefixes of metrics that are known before a run
REMEDY = "To continue, rename the entry, use another --workdir, or delete"


@dataclass(frozen=True)
class Checked:
    """A valid configuration."""

    plain: dict[str, Any]  # as in config.json
    metrics: tuple[str, ...]  # names of its evaluators' metrics


def check_all(sweep: Sweep, runs: Sequence[SweepRun]) -> None:
    """Checks the configurations of runs, and compares finished runs with their saved ones.

    Raises:
      UserError: a run is wrong; the message names the run, and the key or file.
    """
    checked = configurations(runs)
    for run, configuration in zip(runs, checked, strict=True):
        _compare(run, configuration)
    check_metrics(sweep, checked)


def check_metrics(sweep: Sweep, checked: Sequence[Checked]) -> None:
    """Raises a UserError if no evaluator has a metric of the sweep or of its paper."""
    available = sorted({name for configuration in checked for name in configuration.metrics})
    for pattern in (*sweep.metrics, *(name for row in sweep.paper.values() for name in row)):
        is_available = any(fnmatchcase(name, pattern) for name in available)
        if pattern.startswith(EVALUATORS) and not is_available:
            raise UserError(
                f"No evaluator of the configs has the metric {pattern!r}. They have: "
                f"{', '.join(available) or 'none'}."
            )


def configurations(runs: Sequence[SweepRun]) -> list[Checked]:
    """Returns the configurations of runs; raises a UserError that names the first wrong run."""
    process = subprocess.run(
        [sys.executable, "-m", "big_retrieval.sweep.check"],
        input=json.dumps([run.config_flags() for run in runs]), capture_output=True, text=True,
    )  # fmt: skip
    if process.returncode:
        raise UserError(f"Cannot check the configurations: {process.stderr.strip()[-1000:]}")
    answers = json.loads(process.stdout)
    for run, answer in zip(runs, answers, strict=True):
        if "error" in answer:
            raise UserError(f"{run.name}: {answer['error']}")
    return [Checked(answer["config"], tuple(answer["metrics"])) for answer in answers]


def _compare(run: SweepRun, checked: Checked) -> None:
    """Raises a UserError if a finished run had another configuration.

    `big_retrieval.main` itself compares an unfinished run before it trains.
    """
    results = read_results(run)
    if results is None:
        return
    if run.entry.evaluate:
        digest = results.get("inputs_sha256")
        if digest not in (None, inputs_sha256(checked.plain, run.entry.evaluate)):
            raise UserError(
                f"{run.name}: {run.results} has another config or flag than the sweep. {REMEDY} "
                "this file."
            )
        return
    saved = run.folder / "config.json"
    if not saved.exists():
        return
    try:
        old = schema.as_saved(read_config(run.folder))
    except UserError as error:
        raise UserError(f"{run.name}: cannot read {saved} ({error}). Delete its folder.") from None
    for key, before, now in schema.differences(old, checked.plain):
        if not configs.free_on_resume(key):
            raise UserError(
                f"{run.name}: finished with {key} = {before!r}, now {now!r}. {REMEDY} {run.folder}."
            )


def check_commands(lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Returns `config` and `metrics`, or `error`, for every command line, each read in a fork."""
    registry.import_shipped()  # once, not in every fork
    fork, out, count = multiprocessing.get_context("fork"), [], os.cpu_count() or 1
    for first in range(0, len(lines), count):
        started = []
        for flags in lines[first : first + count]:
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=_answer, args=(flags, sender))
            process.start()
            sender.close()  # so that the pipe ends with the process
            started.append((process, receiver))
        for process, receiver in started:
            try:
                out.append(receiver.recv())
            except EOFError:  # the config file has ended the process
                process.join()
                out.append({"error": f"reading it ended with status {process.exitcode}"})
    return out


def _answer(flags: Sequence[str], sender: Connection) -> None:
    """Sends the configuration with the names of its metrics, or its error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a config file and its children may print
    try:
        config = parse(ConfigOptions, flags).load_config()
        check(config)
        sender.send({"config": schema.as_saved(config), "metrics": metrics_of_all(config)})
    except UserError as error:
        sender.send({"error": str(error)})
    except Exception as error:
        sender.send({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    print(json.dumps(check_commands(json.load(sys.stdin))))
