"""Compares two systems query by query: means, their difference, and a significance test.

    big-retrieval compare RUN_A RUN_B [--mode_a=MODE] [--mode_b=MODE] [--out=FILE.csv]
    big-retrieval compare A.trec B.trec --qrels=FILE [--metrics=nDCG@10,MRR@10,R@100]

Systems are run folders with rankings (`evaluate --rankings`), or TREC run files, measured as by
trec_eval. Modes are the evaluators' modes: --mode_b=bag compares a dense model with the bags of a
lexical model. For every metric of both systems, the table has both means, their difference B - A,
the p of a two-sided paired t-test, and the numbers of queries where B is better, equal and worse.
Among many tests some have a small p by chance. --largest=R-precision:3 lists the three queries
where B gains most.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from big_retrieval.cli.option_groups import OutputOptions
from big_retrieval.cli.options import Flag
from big_retrieval.errors import UserError


@dataclass(frozen=True, kw_only=True)
class CompareOptions(OutputOptions):
    systems: Annotated[tuple[str, ...], Flag(words=2)] = ()
    qrels: Path | None = None  # For run files: relevant documents, TREC's qrels or BEIR's tsv
    metrics: tuple[str, ...] = ("nDCG@10", "MRR@10", "R@100")  # For run files: metrics of the table
    # Score of a pair that was judged several times
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    mode_a: str = ""  # For folders: mode or weighting of A, such as bag
    mode_b: str = ""  # For folders: mode or weighting of B
    largest: str = ""  # For folders: METRIC:COUNT, queries where B gains most
    out: Path | None = None  # CSV file for the table


def main(options: CompareOptions) -> None:
    from big_retrieval.evals import comparison

    if len(options.systems) != 2:
        raise UserError("Compare needs two systems: big-retrieval compare RUN_A RUN_B.")
    a, b = map(Path, options.systems)
    metric, colon, count = options.largest.partition(":")
    if options.largest and not (colon and count.isdecimal() and int(count) and not options.qrels):
        raise UserError("--largest is METRIC:COUNT, such as R-precision:3, and is for folders.")
    if options.qrels:
        if options.mode_a or options.mode_b:
            raise UserError("--mode_a and --mode_b are for folders. Remove them, or --qrels.")
        metrics = list(options.metrics)
        pairs = comparison.values_of_files(a, b, options.qrels, metrics, options.duplicates)
    else:
        pairs = comparison.values_of_folders(a, b)
    table = comparison.compare_systems(a, b, pairs, (options.mode_a, options.mode_b))
    print(comparison.as_text(a, b, table))
    if options.largest:
        print("\n" + "\n".join(comparison.largest_gains(a, b, pairs, metric, int(count))))
    if options.out:
        with options.owning_file(options.out):
            comparison.write_csv(options.out, table)
        print(f"written to {options.out}")
