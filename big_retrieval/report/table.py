"""One Markdown table of several folders: trained, imported and untrained models, and BM25."""

import json
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

FILES = ("results.json", "evaluation.json")  # the first that is there counts
EVALUATORS = ("retrieval/*", "zeroshot/*", "ranking/*")  # where no metrics are asked for
TYPE = re.compile(r"^(retrieval|zeroshot)/(?=.*/)")  # left out of column heads
SEED = re.compile(r"seed_\d+")
NAMED = 6  # metrics in a message
Results = Mapping[str, Any]


@dataclass(frozen=True)
class TableRow:
    """A row of means.

    Attributes:
      name: in the first column.
      count: how many runs it is of, for the reader.
      results: of these runs.
      published: the numbers of a paper for the same metrics, in the units of the table.
    """

    name: str
    count: str
    results: Sequence[Results]
    published: Mapping[str, float] = field(default_factory=dict)


def table(folders: Sequence[Path], patterns: Sequence[str] = ()) -> str:
    """A row for each folder, a column for each metric.

    Args:
      folders: a run's, or one that `big-retrieval evaluate` wrote to; or that of a sweep's entry
        with a folder seed_<k> for each run, of which the row has mean and sample deviation.
      patterns: of the metrics, as in a sweep (`ranking/*/nDCG@10`); none: all of evaluators.

    Returns:
      The table, and what has to be said about it.

    Raises:
      UserError: a folder is given twice, is none, or has no numbers; or no metric is chosen.
    """
    seen: dict[Path, Path] = {}
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"{folder} is given twice; give each folder once.")
        seen[folder.resolve()] = folder
    rows = [row_of(folder, name) for folder, name in zip(folders, _names(list(seen)), strict=True)]
    found = [each for row in rows for each in row.results]
    chosen, unknown = chosen_metrics(patterns or EVALUATORS, found)
    if not chosen:
        known, _ = chosen_metrics(("*",), found)
        more = ", ..." if len(known) > NAMED else ""
        raise UserError(
            f"none of these folders has a metric like {', '.join(patterns or EVALUATORS)}; they "
            f"have {', '.join(known[:NAMED]) or 'no numbers at all'}{more}: change --metrics."
        )
    return means_of_rows(rows, patterns or [each for each in EVALUATORS if each not in unknown])


def row_of(folder: Path, name: str) -> TableRow:
    """The numbers of a folder, or of the seeds in it.

    Args:
      folder: as in `table`.
      name: of the row.

    Raises:
      UserError: it is no folder, a file of it is damaged, or there are no numbers.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the folder of a run or of an evaluation.")
    own = _read(folder)
    if own is not None:
        return TableRow(name, "1", [own])
    seeds = [path for path in folder.iterdir() if path.is_dir() and SEED.fullmatch(path.name)]
    read = [_read(path) for path in sorted(seeds, key=lambda path: int(path.name[5:]))]
    found = [each for each in read if each is not None]
    if not found:
        where = f" nor in its {len(seeds)} folders of seeds" if seeds else ""
        raise UserError(
            f"{folder} has neither {' nor '.join(FILES)}{where}: let the run end, or evaluate it "
            "with big-retrieval evaluate."
        )
    missing = len(seeds) - len(found)
    return TableRow(name, f"{len(found)} of {len(seeds)}" if missing else str(len(found)), found)


def _read(folder: Path) -> dict[str, Any] | None:
    """The numbers of one run or evaluation; None: there are none yet."""
    for path in (folder / name for name in FILES):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise UserError(f"{path} is damaged: evaluate again, or leave {folder} out.")
        return found
    return None


def _names(folders: Sequence[Path]) -> list[str]:
    """The folders' own names, with their parents' where two are the same."""
    count = Counter(path.name for path in folders)
    return [f"{p.parent.name}/{p.name}" if count[p.name] > 1 else p.name for p in folders]


def means_of_rows(rows: Sequence[TableRow], patterns: Sequence[str]) -> str:
    """A Markdown table of means and deviations, and what has to be said about it.

    Args:
      rows: a row of the table each.
      patterns: of the metrics, which are its columns.
    """
    finished = [each for row in rows for each in row.results]
    columns, _ = chosen_metrics(patterns, [*finished, *(row.published for row in rows)])
    _, unknown = chosen_metrics(patterns, finished)
    head = ["run", "seeds", *(TYPE.sub("", name) for name in columns)]
    body, partial = [], False
    for row in rows:
        cells = [cell(name, [each.get(name) for each in row.results]) for name in columns]
        partial |= any(text.endswith(")") for text in cells)
        if row.published:
            theirs = [f"{row.published[x]:g}" if x in row.published else NONE for x in columns]
            cells = [f"{mine} / {their}" for mine, their in zip(cells, theirs, strict=True)]
        body.append([row.name, row.count, *cells])
    notes = [
        "Mean ± sample standard deviation over the seeds, none for a single run; recalls and "
        "accuracies in percent."
    ]
    if any(row.published for row in rows):
        notes.append("ours / paper: behind the slash stands the paper's own number.")
    if partial:
        notes.append("(k of n): only k of the n finished runs have this metric.")
    if unknown and any(row.results for row in rows):
        names = ", ".join(f"`{pattern}`" for pattern in unknown)
        notes.append(f"No finished run has a metric like {names}.")
    return "\n".join([*markdown(head, body), "", *notes]) + "\n"


def chosen_metrics(
    patterns: Sequence[str], results: Iterable[Results]
) -> tuple[list[str], list[str]]:
    """The metrics that patterns choose, in their order, and the patterns that choose none."""
    numbers = {name for one in results for name, value in one.items() if is_number(value)}
    chosen: list[str] = []
    unknown = []
    for pattern in patterns:
        matching = sorted((name for name in numbers if fnmatchcase(name, pattern)), key=natural)
        chosen += [name for name in matching if name not in chosen]
        unknown += [] if matching else [pattern]
    return chosen, unknown


def cell(name: str, values: Sequence[Any]) -> str:
    """Mean ± sample standard deviation of the values that are numbers.

    Args:
      name: the metric's; recalls and accuracies are given in percent.
      values: one for each finished run; None where a run lacks the metric.
    """
    percent = is_fraction(name)
    numbers = [float(value) * (100 if percent else 1) for value in values if is_number(value)]
    if not numbers:
        return NONE
    text = _number(statistics.fmean(numbers), percent)
    if len(numbers) > 1:
        finite = all(map(math.isfinite, numbers))
        deviation = statistics.stdev(numbers) if finite else math.nan
        text += f" ± {_number(deviation, percent)}"
    return text if len(numbers) == len(values) else f"{text} ({len(numbers)} of {len(values)})"


def _number(value: float, percent: bool) -> str:
    return f"{value:.2f}" if percent else f"{value:.4g}"


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], right: bool = True) -> list[str]:
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
