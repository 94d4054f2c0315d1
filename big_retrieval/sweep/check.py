"""Checks the configurations of a sweep before its first run, exactly as `big_retrieval.main` would.

A config file may change its process, or end it. So `check_all` starts one process
(`python -m big_retrieval.sweep.check`, a JSON list of command lines on its standard input, a JSON
list of answers on its output), and this process forks once for every run.
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
from big_retrieval.sweep.spec import Sweep, SweepRun, inputs_sha256
from big_retrieval.sweep.table import read_results

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


def check_all(sweep: Sweep, runs: Sequence[SweepRun]) -> None:
    """Checks the configurations of all runs, and that finished ones are still what they were.

    Args:
      sweep: whose metrics are asked for.
      runs: those that are to be run or in the table.

    Raises:
      UserError: names the run, and the key or file.
    """
    found = configurations(runs)
    for run, checked in zip(runs, found, strict=True):
        _compare(run, checked)
    check_metrics(sweep, found)


def check_metrics(sweep: Sweep, found: Sequence[Checked]) -> None:
    """Checks that the metrics of a sweep and of its paper are some of its configs' evaluators.

    Args:
      sweep: the sweep.
      found: its configurations.

    Raises:
      UserError: names a pattern or metric that is of no evaluator.
    """
    known = sorted({name for checked in found for name in checked.metrics})
    for pattern in (*sweep.metrics, *(name for row in sweep.paper.values() for name in row)):
        evaluator = pattern.startswith(EVALUATORS)  # only these are known before a run
        if evaluator and not any(fnmatchcase(name, pattern) for name in known):
            raise UserError(
                f"the sweep's metric {pattern!r} is of no evaluator of its configs; they have: "
                f"{', '.join(known) or 'none'}."
            )


def configurations(runs: Sequence[SweepRun]) -> list[Checked]:
    """The configurations of some runs, in their order.

    Raises:
      UserError: names the first run that has a wrong one, and the key or file.
    """
    lines = [run.config_flags() for run in runs]
    done = subprocess.run(
        [sys.executable, "-m", "big_retrieval.sweep.check"],
        input=json.dumps(lines), capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise UserError(f"the configurations cannot be checked: {done.stderr.strip()[-1000:]}")
    answers = json.loads(done.stdout)
    for run, answer in zip(runs, answers, strict=True):
        if "error" in answer:
            raise UserError(f"{run.name}: {answer['error']}")
    return [Checked(answer["config"], tuple(answer["metrics"])) for answer in answers]


def _compare(run: SweepRun, checked: Checked) -> None:
    """Raises if a run that is skipped as finished was another configuration's.

    One that is not finished is compared by `big_retrieval.main` itself, before it trains.
    """
    if run.entry.evaluate:
        known = (read_results(run) or {}).get("inputs_sha256")
        if known not in (None, inputs_sha256(checked.plain, run.entry.evaluate)):
            raise UserError(
                f"{run.name}: {run.results} is of another config or flag than the sweep now has: "
                "rename the entry, use another --workdir, or delete the file."
            )
        return
    saved = run.folder / "config.json"
    if not (run.folder / "results.json").exists() or not saved.exists():
        return
    try:
        old = configs.load_saved(json.loads(saved.read_text()))
    except (ValueError, UserError) as problem:
        raise UserError(
            f"{run.name}: {saved} cannot be read ({problem}); use another --workdir."
        ) from None
    theirs = schema.as_saved(old)
    for key, before, now in schema.differences(theirs, checked.plain):
        if not configs.free_on_resume(key):
            raise UserError(
                f"{run.name}: {run.folder} holds a finished run with {key} = {before!r}, the sweep "
                f"now has {now!r}: rename the entry, use another --workdir, or delete the folder."
            )


def answers(lines: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """For every command line `config` and `metrics`, or `error`; each is read in a fork."""
    registry.import_shipped()  # once, not in every fork
    fork, found, most = multiprocessing.get_context("fork"), [], os.cpu_count() or 1
    for first in range(0, len(lines), most):
        started = []
        for flags in lines[first : first + most]:
            receiver, sender = fork.Pipe(duplex=False)
            process = fork.Process(target=_answer, args=(flags, sender))
            process.start()
            sender.close()  # so that the pipe ends with the process
            started.append((process, receiver))
        for process, receiver in started:
            try:
                found.append(receiver.recv())
            except EOFError:  # the config file has ended the process
                process.join()
                found.append({"error": f"reading it ended with status {process.exitcode}"})
    return found


def _answer(flags: Sequence[str], sender: Connection) -> None:
    """What is wrong with a configuration, or the configuration with the names of its metrics."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a config file, or what it starts, may print
    try:
        config = parse(ConfigOptions, flags).load_config()
        check(config)
        metrics = metrics_of_all(config)
        plain = schema.as_saved(config)
        sender.send({"config": plain, "metrics": metrics})
    except UserError as problem:
        sender.send({"error": str(problem)})
    except Exception as problem:
        sender.send({"error": f"{type(problem).__name__}: {problem}"})


if __name__ == "__main__":
    print(json.dumps(answers(json.load(sys.stdin))))
