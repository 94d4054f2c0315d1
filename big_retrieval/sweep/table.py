"""The table of a sweep: what its finished runs' results.json say.

results.csv has a row for each finished run with all of its metrics; results.md a row for each name
with mean and deviation over the seeds. Both are made anew from all runs each time, so that several
processes (a SLURM array) can write them in any order.
"""

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.runtime.locks import holding
from big_retrieval.sweep.spec import Entry, Sweep, SweepRun

PERCENT = re.compile(r"(^|/)(R@\d+|[^/]*accuracy)$")
TYPE = re.compile(r"^(retrieval|zeroshot)/(?=.*/)")  # left out of column heads
LOOK = 0.1  # seconds between two looks at the lock of another writer, who needs about as long
Results = Mapping[str, Any]
Finished = Sequence[tuple[SweepRun, Results]]


@dataclass(frozen=True)
class TableRow:
    """A row of means.

    Attributes:
      name: in the first column.
      count: how many runs it is of, for the reader.
      results: of these runs.
    """

    name: str
    count: str
    results: Sequence[Results]


def read_results(run: SweepRun) -> dict[str, Any] | None:
    """results.json of a run, or None if it is not finished.

    Raises:
      UserError: the file is there but damaged.
    """
    path = run.folder / "results.json"
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UserError(
            f"{path} is damaged: delete it, and the run ends again from its checkpoint."
        )
    return found


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
    with holding(workdir / "results.lock", of=workdir, flag="--workdir", wait=True, look=LOOK):
        found = [(run, results) for run in runs if (results := read_results(run)) is not None]
        means = means_table(sweep, found)
        page = f"# {title}\n\n{means}\n{_configs_table(sweep.runs)}"
        write_bytes(workdir / "results.csv", rows_table(found).encode())
        write_bytes(workdir / "results.md", page.encode())
    return means


def rows_table(found: Finished) -> str:
    """Finished runs as CSV: name, seed, and every metric that one of them has."""
    columns = sorted({key for _, results in found for key in results}, key=_natural)
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
        asked = len(sweep.seeds)
        count = str(asked) if len(mine) == asked else f"{len(mine)} of {asked}"
        rows.append(TableRow(entry.name, count, mine))
    return means_of_rows(rows, sweep.metrics)


def means_of_rows(rows: Sequence[TableRow], patterns: Sequence[str]) -> str:
    """A Markdown table of means and deviations, and what has to be said about it.

    Args:
      rows: a row of the table each.
      patterns: of the metrics, which are its columns.
    """
    columns, unknown = chosen_metrics(patterns, [each for row in rows for each in row.results])
    head = ["run", "seeds", *(TYPE.sub("", name) for name in columns)]
    body, partial = [], False
    for row in rows:
        cells = [cell(name, [each.get(name) for each in row.results]) for name in columns]
        partial |= any(text.endswith(")") for text in cells)
        body.append([row.name, row.count, *cells])
    notes = [
        "Mean ± sample standard deviation over the seeds, none for a single run; recalls and "
        "accuracies in percent."
    ]
    if partial:
        notes.append("(k of n): only k of the n finished runs have this metric.")
    if unknown and any(row.results for row in rows):
        names = ", ".join(f"`{pattern}`" for pattern in unknown)
        notes.append(f"No finished run has a metric like {names}.")
    return "\n".join([*_markdown(head, body), "", *notes]) + "\n"


def chosen_metrics(
    patterns: Sequence[str], results: Iterable[Results]
) -> tuple[list[str], list[str]]:
    """The metrics that patterns choose, in their order, and the patterns that choose none."""
    numbers = {name for one in results for name, value in one.items() if _is_number(value)}
    chosen: list[str] = []
    unknown = []
    for pattern in patterns:
        matching = sorted((name for name in numbers if fnmatchcase(name, pattern)), key=_natural)
        chosen += [name for name in matching if name not in chosen]
        unknown += [] if matching else [pattern]
    return chosen, unknown


def cell(name: str, values: Sequence[Any]) -> str:
    """Mean ± sample standard deviation of the values that are numbers.

    Args:
      name: the metric's; recalls and accuracies are given in percent.
      values: one for each finished run; None where a run lacks the metric.
    """
    percent = bool(PERCENT.search(name))
    numbers = [float(value) * (100 if percent else 1) for value in values if _is_number(value)]
    if not numbers:
        return "–"
    text = _number(statistics.fmean(numbers), percent)
    if len(numbers) > 1:
        finite = all(map(math.isfinite, numbers))
        deviation = statistics.stdev(numbers) if finite else math.nan
        text += f" ± {_number(deviation, percent)}"
    return text if len(numbers) == len(values) else f"{text} ({len(numbers)} of {len(values)})"


def _number(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorts R@5 before R@10."""
    return [(int(p), "") if p.isdecimal() else (0, p) for p in re.split(r"(\d+)", name)]


def _configs_table(entries: Sequence[Entry]) -> str:
    """Which configuration stands behind each name."""
    body = []
    for entry in entries:
        changes = ", ".join(f"`{key}={value}`" for key, value in entry.overrides.items())
        body.append([entry.name, f"`{entry.config}`", changes])
    return "\n".join(_markdown(["run", "config", "overrides"], body, right=False)) + "\n"


def _markdown(head: Sequence[str], body: Sequence[Sequence[str]], right: bool = True) -> list[str]:
    """A Markdown table whose columns line up as text too; all but the first to the right."""
    rows = [[text.replace("|", "\\|") for text in row] for row in (head, *body)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(">" if right else "<" for _ in widths[1:])]
    rule = [
        "-" * (width - 1) + ":" if side == ">" else "-" * width
        for width, side in zip(widths, sides, strict=True)
    ]
    lines = [
        " | ".join(
            f"{text:{side}{width}}" for text, side, width in zip(row, sides, widths, strict=True)
        )
        for row in (rows[0], rule, *rows[1:])
    ]
    return [f"| {line} |" for line in lines]
