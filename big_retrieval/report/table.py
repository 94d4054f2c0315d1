"""Markdown tables of several folders: trained, imported and untrained models, and BM25."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from big_retrieval.errors import UserError
from big_retrieval.report.numbers import NONE, is_fraction, is_number, natural
from big_retrieval.report.read import read_object

FILES = ("results.json", "evaluation.json")  # the first existing file counts
EVALUATORS = ("retrieval/*", "zeroshot/*", "ranking/*")  # default patterns
TYPE = re.compile(r"^(retrieval|zeroshot)/(?=.*/)")  # left out of column heads
SEED = re.compile(r"seed_(\d+)")
Results = Mapping[str, Any]


@dataclass(frozen=True)
class TableRow:
    """A row of means."""

    name: str  # text of the first column
    count: str  # number of runs, as text
    results: Sequence[Results]  # results of these runs
    # a paper's values of the same metrics, in the units of the table
    published: Mapping[str, float] = field(default_factory=dict)


def markdown_table(folders: Sequence[Path], patterns: Sequence[str] = ()) -> str:
    """Returns a table with a row for each folder and a column for each metric, and its notes.

    Args:
      folders: folders of runs or evaluations, or of a sweep's entry with a folder seed_<k> for each
        run, whose row has mean and sample deviation.
      patterns: patterns of metrics, as in a sweep (`ranking/*/nDCG@10`); empty for all metrics of
        evaluators.
    """
    paths = [folder.resolve() for folder in folders]
    counts = Counter(path.name for path in paths)
    names = [f"{p.parent.name}/{p.name}" if counts[p.name] > 1 else p.name for p in paths]
    rows = list(map(row_of, folders, names))
    results = [values for row in rows for values in row.results]
    columns, unmatched = match_metrics(patterns or EVALUATORS, results)
    if not columns:
        choices, _ = match_metrics(("*",), results)
        raise UserError(
            f"No metric like {', '.join(patterns or EVALUATORS)} in these folders. Change "
            f"--metrics; the folders have {', '.join(choices)}."
        )
    return means_of_rows(rows, patterns or [x for x in EVALUATORS if x not in unmatched])


def row_of(folder: Path, name: str) -> TableRow:
    """Returns the row of a run folder, or the row of a folder with one run per seed."""
    if results := _read(folder):
        return TableRow(name, "1", [results])
    matches = {path: SEED.fullmatch(path.name) for path in folder.glob("*/")}
    seeds = sorted((int(match[1]), path) for path, match in matches.items() if match)
    finished = [results for _, path in seeds if (results := _read(path))]
    if not finished:
        raise UserError(
            f"No metrics in {folder}: it has no {' or '.join(FILES)}, and neither have its "
            f"{len(seeds)} folders of seeds. Let the run end, or use `big-retrieval evaluate`."
        )
    suffix = "" if len(finished) == len(seeds) else f" of {len(seeds)}"
    return TableRow(name, f"{len(finished)}{suffix}", finished)


def _read(folder: Path) -> dict[str, Any]:
    """Returns the metrics of one run or evaluation; {} if there are none yet."""
    return next((x for name in FILES if (x := read_object(folder / name))), {})


def means_of_rows(rows: Sequence[TableRow], patterns: Sequence[str]) -> str:
    """Returns a Markdown table of means and deviations with matching metrics, and its notes."""
    results = [values for row in rows for values in row.results]
    columns, _ = match_metrics(patterns, [*results, *(row.published for row in rows)])
    _, unmatched = match_metrics(patterns, results)
    body, partial = [], False
    for row in rows:
        cells = [cell(name, [values.get(name) for values in row.results]) for name in columns]
        partial |= any(text.endswith(")") for text in cells)
        if row.published:
            paper = [f"{row.published[x]:g}" if x in row.published else NONE for x in columns]
            cells = [" / ".join(pair) for pair in zip(cells, paper, strict=True)]
        body.append([row.name, row.count, *cells])
    notes = [
        "Mean ± sample standard deviation over the seeds, none for a single run; recalls and "
        "accuracies in percent."
    ]
    if any(row.published for row in rows):
        notes.append("ours / paper: the number after the slash is from the paper.")
    if partial:
        notes.append("(k of n): only k of the n finished runs have this metric.")
    if unmatched and results:
        names = ", ".join(f"`{pattern}`" for pattern in unmatched)
        notes.append(f"No finished run has a metric like {names}.")
    heads = ["run", "seeds", *(TYPE.sub("", name) for name in columns)]
    return "\n".join([*markdown(heads, body), "", *notes]) + "\n"


def match_metrics(
    patterns: Sequence[str], results: Iterable[Results]
) -> tuple[list[str], list[str]]:
    """Returns the metrics that match patterns, in their order, and the patterns without a match."""
    names = {name for values in results for name, value in values.items() if is_number(value)}
    order = sorted(names, key=natural)
    matches = {pattern: [x for x in order if fnmatchcase(x, pattern)] for pattern in patterns}
    columns = dict.fromkeys(name for matching in matches.values() for name in matching)
    return [*columns], [pattern for pattern, matching in matches.items() if not matching]


def cell(name: str, values: Sequence[Any]) -> str:
    """Formats mean ± sample standard deviation of a metric; None for a run without the metric."""
    percent = is_fraction(name)
    present = [float(value) * (100 if percent else 1) for value in values if is_number(value)]
    if not present:
        return NONE
    digits = ".2f" if percent else ".4g"
    text = format(statistics.fmean(present), digits)
    if len(present) > 1:
        finite = all(map(math.isfinite, present))
        text += f" ± {statistics.stdev(present) if finite else math.nan:{digits}}"
    return text if len(present) == len(values) else f"{text} ({len(present)} of {len(values)})"


def markdown(
    heads: Sequence[str], body: Sequence[Sequence[str]], align_right: bool = True
) -> list[str]:
    """Returns the lines of a Markdown table; `align_right` does not apply to the first column."""
    rows = [[text.replace("|", "\\|") for text in row] for row in (heads, *body)]
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    sides = ["<", *(">" if align_right else "<" for _ in widths[1:])]
    columns = list(zip(widths, sides, strict=True))
    rule = ["-" * (width - 1) + (":" if side == ">" else "-") for width, side in columns]
    return [
        f"| {' | '.join(f'{x:{side}{n}}' for x, (n, side) in zip(row, columns, strict=True))} |"
        for row in (rows[0], rule, *rows[1:])
    ]
