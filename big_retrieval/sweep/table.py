"""Tables of a sweep: progress and results of its runs.

results.csv has a row for each finished run with all of its metrics; results.md a row for each name
with mean and deviation over the seeds. Both are written from all runs each time, so that several
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
from big_retrieval.sweep.spec import Entry, Sweep, SweepRun, seeds_of

LOOK = 0.1  # seconds between two attempts to take the lock of another writer


def read_results(run: SweepRun) -> Results | None:
    """Returns the results of a run, or None before its end; raises a UserError if damaged."""
    try:
        results = json.loads(run.results.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        results = None
    if not isinstance(results, dict):
        raise UserError(f"{run.results} is damaged. Delete it and repeat the command.")
    return results


def progress_table(runs: Sequence[SweepRun]) -> str:
    """Returns a line for each run: index, name, progress, configuration."""
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
    """Writes results.csv and results.md of all runs of a sweep; returns the table of means."""
    workdir.mkdir(parents=True, exist_ok=True)
    # Reads under the lock: a writer must not overwrite newer results of another writer.
    with Lock(workdir / "results.lock", output=workdir, flag="--workdir", wait=True, look=LOOK):
        finished = [(run, results) for run in runs if (results := read_results(run)) is not None]
        means = _means_table(sweep, finished)
        page = f"# {title}\n\n{means}\n{_configs_table(sweep.runs)}"
        write_bytes(workdir / "results.csv", _rows_table(finished).encode())
        write_bytes(workdir / "results.md", page.encode())
    return means


def _rows_table(finished: Sequence[tuple[SweepRun, Results]]) -> str:
    """Returns finished runs as CSV: name, seed, and all metrics of all runs."""
    columns = sorted({key for _, results in finished for key in results}, key=natural)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "seed", *columns])
    for run, results in finished:
        writer.writerow([run.entry.name, run.seed, *(results.get(key) for key in columns)])
    return out.getvalue()


def _means_table(sweep: Sweep, finished: Sequence[tuple[SweepRun, Results]]) -> str:
    """Returns a Markdown table with a row for each name, and its footnotes."""
    rows = []
    for entry in sweep.runs:
        runs = [(run, results) for run, results in finished if run.entry.name == entry.name]
        expected = len(seeds_of(sweep, entry))
        count = str(expected) if len(runs) == expected else f"{len(runs)} of {expected}"
        results = [results for _, results in runs]
        rows.append(TableRow(entry.name, count, results, sweep.paper.get(entry.name, {})))
        indices = sweep.evaluations.get(entry.name, ())
        evaluations = [_evaluations(run.folder, sweep.metrics) for run, _ in runs if indices]
        for index in indices:
            name = f"{entry.name}@{index}"
            metrics = [values[index - 1] for values in evaluations if len(values) >= index]
            rows.append(TableRow(name, count, metrics, sweep.paper.get(name, {})))
    return means_of_rows(rows, sweep.metrics)


def _evaluations(folder: Path, patterns: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl after step 0 that have a metric of the table, by step."""
    from big_retrieval.train.logging import read_rows  # imports jax

    rows: dict[int, dict[str, Any]] = {}
    for row in read_rows(folder / "metrics.jsonl"):
        if row["step"] > 0 and any(fnmatchcase(x, pattern) for x in row for pattern in patterns):
            rows.setdefault(row["step"], {}).update(row)
    return [rows[step] for step in sorted(rows)]


def _configs_table(entries: Sequence[Entry]) -> str:
    body = []
    for entry in entries:
        flags = [f"`{entry.evaluate}`"] if entry.evaluate else []
        flags += [f"`{key}={value}`" for key, value in entry.overrides.items()]
        body.append([entry.name, f"`{entry.config}`", ", ".join(flags)])
    return "\n".join(markdown(["run", "config", "overrides"], body, align_right=False)) + "\n"
