"""Compares two systems query by query: means, their difference, and whether it is chance.

    big-retrieval compare RUN_A RUN_B [--out=FILE.csv]
    big-retrieval compare A.trec B.trec --qrels=FILE [--metrics=nDCG@10,MRR@10,R@100]

The first takes run folders, or those of `evaluate --rankings`, with
rankings/<evaluator>/queries.csv; the second TREC run files, measured as trec_eval does. For every
metric of both: the two means, B minus A, the p of a two-sided paired t-test over the queries, and
the queries where B is better, the same and worse. Of many tests some have a small p by chance.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.io.durable import write_bytes
from big_retrieval.runtime import locks

WORDS = 2
WITHOUT = ("config", "workdir", "plugins")
QRELS = flags.DEFINE_string(
    "qrels", None, "For run files: which documents are relevant, TREC's qrels or BEIR's tsv"
)
METRICS = flags.DEFINE_list("metrics", ["nDCG@10", "MRR@10", "R@100"], "Of run files")
DUPLICATES = flags.DEFINE_enum(
    "duplicates", "refuse", ("refuse", "max", "min", "mean", "first"), "Of pairs judged twice"
)
OUT = flags.DEFINE_string("out", None, "A CSV file for the table")
HEADER = ("evaluator", "metric", "queries", "a", "b", "difference", "p", "wins", "ties", "losses")
Values = tuple[list[str], Mapping[str, np.ndarray]]  # ids of queries, metric -> value of each


def main(*words: str) -> None:
    """Reads both systems, compares them and prints a table."""
    from big_retrieval.evals.paired import compare

    if len(words) != 2:
        raise UserError("give two systems: big-retrieval compare RUN_A RUN_B.")
    first, second = (Path(word) for word in words)
    pairs = _files(first, second) if QRELS.value else _folders(first, second)
    table = [HEADER]
    for evaluator, (a, b) in pairs.items():
        ids, values = a
        others = aligned(ids, b, first, second)
        for metric in (name for name in values if name in others):
            found = compare(values[metric], others[metric])
            numbers = (*found.means, found.difference, found.p)
            counts = (found.wins, found.ties, found.losses)
            table.append((evaluator, metric, found.queries, *numbers, *counts))  # type: ignore
    if len(table) == 1:
        raise UserError(_nothing_shared(first, second, pairs))
    show(first, second, table[1:])
    if OUT.value:
        out = Path(OUT.value)
        with cli.owning(locks.beside(out), out):
            content = io.StringIO(newline="")
            csv.writer(content).writerows(table)
            write_bytes(out, content.getvalue().encode())
        print(f"written to {out}")


def aligned(ids: list[str], other: Values, a: Path, b: Path) -> dict[str, np.ndarray]:
    """The other system's values in the order of these queries.

    Raises:
      UserError: the queries are not the same.
    """
    places, mine = {query: place for place, query in enumerate(other[0])}, set(ids)
    only = [(a, query) for query in ids if query not in places]
    only += [(b, query) for query in other[0] if query not in mine]
    if only:
        where, query = only[0]
        raise UserError(
            f"{len(only):,} queries are in one of the two alone, such as {query!r} in {where}; "
            "evaluate both on the same queries."
        )
    order = np.array([places[query] for query in ids])
    return {name: values[order] for name, values in other[1].items()}


def show(a: Path, b: Path, rows: list) -> None:
    """Prints the comparisons, a line each."""
    print(f"A  {a}\nB  {b}")
    last = None
    for evaluator, metric, queries, first, second, difference, p, *counts in rows:
        if evaluator != last:
            print(f"\n{evaluator or 'run files'}, {queries:,} queries")
            print(f"  {'metric':<12} {'A':>8} {'B':>8} {'B - A':>9} {'p':>9}   wins ties losses")
        last = evaluator
        wins, ties, losses = counts
        print(
            f"  {metric:<12} {first:>8.4f} {second:>8.4f} {difference:>+9.4f} {p:>9.2g} "
            f"{wins:>6} {ties:>4} {losses:>6}"
        )


def _nothing_shared(a: Path, b: Path, pairs: Mapping[str, tuple[Values, Values]]) -> str:
    """What is said of two systems without a metric in common."""
    names = [
        ", ".join(sorted({name for pair in pairs.values() for name in pair[place][1]})) or "none"
        for place in (0, 1)
    ]
    return (
        f"the two have no metric in common: {a} has {names[0]}; {b} has {names[1]}. Evaluate both "
        "with the same metrics."
    )


def _folders(first: Path, second: Path) -> dict[str, tuple[Values, Values]]:
    """The evaluators that both folders have rankings of."""
    from big_retrieval.evals.rankings import FOLDER, QUERIES, read_values

    found = []
    for path in (first, second):
        if path.is_file():
            raise UserError(f"{path} is a file; run files need qrels: give --qrels.")
        files = {each.parent.name: each for each in sorted((path / FOLDER).glob(f"*/{QUERIES}"))}
        if not files:
            raise UserError(
                f"{path} has no {FOLDER}/<evaluator>/{QUERIES}: write them with "
                f"big-retrieval evaluate --run={path} --rankings."
            )
        found.append(files)
    both = [name for name in found[0] if name in found[1]]
    if not both:
        names = " and ".join(", ".join(files) for files in found)
        raise UserError(f"the two have no evaluator in common: they have {names}.")
    return {name: (read_values(found[0][name]), read_values(found[1][name])) for name in both}


def _files(first: Path, second: Path) -> dict[str, tuple[Values, Values]]:
    """Both run files, measured by the same qrels."""
    from big_retrieval.evals.graded import parse_metric
    from big_retrieval.evals.run_files import read_qrels, values_of_run
    from big_retrieval.evals.trec import read_run

    for metric in METRICS.value:
        parse_metric(metric)
    qrels = read_qrels(Path(str(QRELS.value)), DUPLICATES.value)  # type: ignore
    found = []
    for path in (first, second):
        run = read_run(path)
        try:
            found.append(values_of_run(run, qrels, METRICS.value))
        except UserError as problem:
            raise UserError(f"{path}: {problem}") from None
    return {"": (found[0], found[1])}
