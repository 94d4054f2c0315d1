"""Comparison of two systems query by query: paired tests for every metric of both."""

import itertools
import logging
import warnings
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from big_retrieval.data.judged.qrels import DuplicatePolicy
from big_retrieval.errors import UserError
from big_retrieval.evals.graded import parse_metric
from big_retrieval.evals.rankings import FOLDER, QUERIES, csv_bytes, read_values
from big_retrieval.evals.trec import Values, read_qrels, read_run, values_of_run
from big_retrieval.io.durable import write_bytes

log = logging.getLogger(__name__)


class Comparison(NamedTuple):
    """One metric of two systems over the same queries."""

    queries: int
    a: float  # mean of the first system
    b: float  # mean of the second system
    difference: float  # b - a
    p: float  # p-value of the two-sided paired t-test; 1 if no query differs
    wins: int  # number of queries for which the second system is better
    ties: int
    losses: int


Pairs = Mapping[str, tuple[Values, Values]]  # values of both systems, by evaluator
ComparisonTable = Sequence[tuple[str, str, Comparison]]  # evaluator, metric, their comparison


def compare(first: np.ndarray, second: np.ndarray) -> Comparison:
    """Compares a metric of two systems, values [q] of the same queries, by a paired t-test.

    Differences of at most 1e-12 count as ties, because the order of a sum can cause them.
    """
    if len(first) != len(second) or len(first) < 2:
        raise UserError(
            f"a paired test needs at least 2 queries, the same for both; there are {len(first)} "
            f"and {len(second)}."
        )
    gain = second - first
    gain = np.where(np.abs(gain) <= 1e-12, 0.0, gain)
    p = 1.0
    if gain.any():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # if all gains are equal: p = 0
            p = float(stats.ttest_rel(gain, np.zeros(len(gain))).pvalue)  # type: ignore
    counts = [int(np.sum(mask)) for mask in (gain > 0, gain == 0, gain < 0)]
    a, b, difference = (float(np.mean(values)) for values in (first, second, gain))
    return Comparison(len(gain), a, b, difference, p, *counts)


def compare_systems(
    a: Path, b: Path, pairs: Pairs, modes: tuple[str, str] = ("", "")
) -> ComparisonTable:
    """Compares every metric that both systems have, from `values_of_folders` or `values_of_files`.

    `modes` selects a mode or weighting of each system; "" for all metrics.
    """
    table = []
    for evaluator, (first, second) in pairs.items():
        ids, values = _of_mode(first, modes[0], a)
        second_values = _aligned(ids, _of_mode(second, modes[1], b), a, b)
        if single := values.keys() ^ second_values.keys():
            log.info(f"{evaluator}: only one of the two has {', '.join(sorted(single))}")
        table += [
            (evaluator, metric, compare(values[metric], second_values[metric]))
            for metric in values
            if metric in second_values
        ]
    if not table:
        first, second = (
            ", ".join(sorted({name for pair in pairs.values() for name in pair[system][1]}))
            for system in (0, 1)
        )
        raise UserError(
            f"the two have no metric in common: {a} has {first or 'none'}; {b} has "
            f"{second or 'none'}. Evaluate both with the same metrics."
        )
    return table


def largest_gains(a: Path, b: Path, pairs: Pairs, metric: str, count: int) -> list[str]:
    """Returns a line per evaluator with at most `count` queries whose metric gains most.

    For example, the metric "R-precision" is precision@5 for images with five captions.
    """
    lines = []
    for evaluator, ((ids, values), second) in pairs.items():
        second_values = _aligned(ids, second, a, b)
        if metric not in values or metric not in second_values:
            continue
        gains = second_values[metric] - values[metric]
        order = np.argsort(-gains, kind="stable")[:count]
        queries = ",".join(ids[index] for index in order)
        sizes = ", ".join(f"{gains[index]:+.4g}" for index in order)
        lines.append(f"{evaluator}, largest gains in {metric}: --show={queries} ({sizes})")
    if not lines:
        raise UserError(f"No evaluator of both has the metric {metric!r}; see the table above.")
    return lines


def _aligned(ids: list[str], values: Values, a: Path, b: Path) -> dict[str, np.ndarray]:
    """Returns the second system's values in the order of the first system's query ids."""
    index_of = {query: index for index, query in enumerate(values[0])}
    if single := sorted(index_of.keys() ^ set(ids)):
        raise UserError(
            f"{len(single):,} queries are in only one of the two, such as {single[0]!r} in "
            f"{b if single[0] in index_of else a}. Evaluate both on the same queries."
        )
    order = np.array([index_of[query] for query in ids])
    return {name: column[order] for name, column in values[1].items()}


def values_of_folders(a: Path, b: Path) -> Pairs:
    """Reads the values by query of the evaluators that both folders have.

    Both may be the same folder, to compare two modes.
    """
    first, second = _tables(a), _tables(b)
    both = [name for name in first if name in second]
    if not both:
        raise UserError(
            f"the two have no evaluator in common: {', '.join(first)} and {', '.join(second)}. "
            "Evaluate both with the same evaluators."
        )
    if single := first.keys() ^ second.keys():
        log.info(f"only one of the two has values of {', '.join(sorted(single))}")
    return {name: (read_values(first[name]), read_values(second[name])) for name in both}


def _tables(path: Path) -> dict[str, Path]:
    files = {file.parent.name: file for file in sorted((path / FOLDER).glob(f"*/{QUERIES}"))}
    if not files:
        if not path.exists():
            raise UserError(f"No folder {path}. Give two folders, or two run files and --qrels.")
        raise UserError(
            f"{path} has no {FOLDER}/<evaluator>/{QUERIES}. Write the values with `big-retrieval "
            "evaluate --rankings` and --run=FOLDER or --out=FOLDER. For run files, add --qrels."
        )
    return files


def _of_mode(values: Values, mode: str, path: Path) -> Values:
    """Selects the values of a mode or weighting, and removes its prefix; all values for ""."""
    if not mode:
        return values
    ids, table = values
    prefix = f"{mode}/"
    selected = {k.removeprefix(prefix): x for k, x in table.items() if k.startswith(prefix)}
    if not selected:
        modes = sorted({name.rpartition("/")[0] for name in table} - {""})
        raise UserError(f"{path} has no mode {mode!r}; it has: {', '.join(modes) or 'none'}.")
    return ids, selected


def values_of_files(
    a: Path, b: Path, qrels: Path, metrics: Sequence[str], duplicates: DuplicatePolicy
) -> Pairs:
    """Computes the metrics of two run files with the same qrels."""
    for path in (a, b):
        if path.is_dir():
            raise UserError(
                f"{path} is a folder. Compare two run files, or remove --qrels to compare folders."
            )
    for metric in metrics:
        parse_metric(metric)
    judged = read_qrels(qrels, duplicates)

    def measure(path: Path) -> Values:
        run = read_run(path)  # one run in memory at a time
        try:
            return values_of_run(run, judged, metrics)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    return {"": (measure(a), measure(b))}


def as_text(a: Path, b: Path, table: ComparisonTable) -> str:
    """Formats comparisons for the terminal, one line per metric."""
    lines = [f"A  {a}", f"B  {b}"]
    head = f"  {'metric':<12} {'A':>8} {'B':>8} {'B - A':>9} {'p':>9}   wins ties losses"
    for evaluator, group in itertools.groupby(table, itemgetter(0)):
        rows = [*group]
        lines += ["", f"{evaluator or 'run files'}, {rows[0][2].queries:,} queries", head]
        lines += [
            f"  {metric:<12} {x.a:>8.4f} {x.b:>8.4f} {x.difference:>+9.4f} {x.p:>9.2g} "
            f"{x.wins:>6} {x.ties:>4} {x.losses:>6}"
            for _, metric, x in rows
        ]
    return "\n".join(lines)


def write_csv(file: Path, table: ComparisonTable) -> None:
    """Writes comparisons to a CSV file, one row per metric."""
    rows = ((evaluator, metric, *x) for evaluator, metric, x in table)
    write_bytes(file, csv_bytes([("evaluator", "metric", *Comparison._fields), *rows]))
