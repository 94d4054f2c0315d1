"""The tables of a sweep: how far its runs are, and what their results.json say.

results.csv has a row for each finished run with all of its metrics; results.md a row for each name
with mean and deviation over the seeds. Both are made anew from all runs each time, so that several
processes (a SLURM array) can write them in any order.
"""

import csv
import io
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import complete_steps
from big_retrieval.report.numbers import natural
from big_retrieval.report.table import Results, TableRow, markdown, means_of_rows
from big_retrieval.runtime.locks import Lock
from big_retrieval.sweep import spec
from big_retrieval.sweep.spec import Entry, Sweep, SweepRun

LOOK = 0.1  # seconds between two looks at the lock of another writer, who needs about as long
Finished = Sequence[tuple[SweepRun, Results]]


def read_results(run: SweepRun) -> dict[str, Any] | None:
    """The results of a run, or None if it is not finished.

    Raises:
      UserError: the file is there but damaged.
    """
    path = run.results
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} is damaged: delete it and repeat the command, which writes it again."
        )
    return found


def progress_table(runs: Sequence[SweepRun]) -> str:
    """A line for each run: number, name, how far it is, configuration."""
    width = max(len(run.name) for run in runs)
    return "\n".join(
        f"{run.number:>4}  {run.name:<{width}}  {_progress(run):<13}  {run.entry.config}"
        for run in runs
    )


def _progress(run: SweepRun) -> str:
    if read_results(run) is not None:
        return "finished"
    steps = complete_steps(run.folder / "checkpoints")
    return f"at step {steps[-1]}" if steps else "new"


def write_tables(sweep: Sweep, runs: Sequence[SweepRun], workdir: Path, title: str) -> str:
    """Writes results.csv and results.md.

    Args:
      sweep: what was asked for.
      runs: all of its runs.
      workdir: the sweep's folder.
      title: heading of results.md.

    Returns:
      The table of means, as text.

    Raises:
      UserError: a results.json is damaged.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    # Of two writers the later one must not have read before the other's run was finished.
    with Lock(workdir / "results.lock", of=workdir, flag="--workdir", wait=True, look=LOOK):
        found = [(run, results) for run in runs if (results := read_results(run)) is not None]
        means = means_table(sweep, found)
        page = f"# {title}\n\n{means}\n{_configs_table(sweep.runs)}"
        write_bytes(workdir / "results.csv", rows_table(found).encode())
        write_bytes(workdir / "results.md", page.encode())
    return means


def rows_table(found: Finished) -> str:
    """Finished runs as CSV: name, seed, and every metric that one of them has."""
    columns = sorted({key for _, results in found for key in results}, key=natural)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "seed", *columns])
    for run, results in found:
        writer.writerow([run.entry.name, run.seed, *(results.get(key) for key in columns)])
    return out.getvalue()


def means_table(sweep: Sweep, found: Finished) -> str:
    """A Markdown table with a row for each name, and what has to be said about it.

    Args:
      sweep: names, seeds and the patterns of the metrics.
      found: finished runs and their results.
    """
    rows = []
    for entry in sweep.runs:
        mine = [results for run, results in found if run.entry.name == entry.name]
        asked = len(spec.seeds_of(sweep, entry))
        count = str(asked) if len(mine) == asked else f"{len(mine)} of {asked}"
        rows.append(TableRow(entry.name, count, mine, sweep.paper.get(entry.name, {})))
        folders = [run.folder for run, _ in found if run.entry.name == entry.name]
        numbers = sweep.evaluations.get(entry.name, ())
        during = [_evaluations(folder, sweep.metrics) for folder in folders if numbers]
        for number in numbers:
            name = f"{entry.name}@{number}"
            measured = [each[number - 1] for each in during if len(each) >= number]
            rows.append(TableRow(name, count, measured, sweep.paper.get(name, {})))
    return means_of_rows(rows, sweep.metrics)


def _evaluations(folder: Path, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl after step 0 that have a metric of the table, by their steps."""
    from big_retrieval.train.logging import read_rows  # imports jax

    rows: dict[int, dict[str, Any]] = {}
    for row in read_rows(folder / "metrics.jsonl"):
        if row["step"] > 0 and any(fnmatchcase(x, each) for x in row for each in patterns):
            rows.setdefault(row["step"], {}).update(row)
    return [rows[step] for step in sorted(rows)]


def _configs_table(entries: Sequence[Entry]) -> str:
    """Which configuration stands behind each name."""
    body = []
    for entry in entries:
        flags = [f"`{entry.evaluate}`"] if entry.evaluate else []
        flags += [f"`{key}={value}`" for key, value in entry.overrides.items()]
        changes = ", ".join(flags)
        body.append([entry.name, f"`{entry.config}`", changes])
    return "\n".join(markdown(["run", "config", "overrides"], body, right=False)) + "\n"
