"""Compares two systems query by query: means, their difference, and whether it is chance.

    big-retrieval compare RUN_A RUN_B [--mode_a=MODE] [--mode_b=MODE] [--out=FILE.csv]
    big-retrieval compare A.trec B.trec --qrels=FILE [--metrics=nDCG@10,MRR@10,R@100]

The first takes run folders, or those of `evaluate --rankings`, with
rankings/<evaluator>/queries.csv; the second TREC run files, measured as trec_eval does. Modes are
those of the evaluators, such as bag: a dense model against the bags of a lexical one is
--mode_b=bag, a lexical model against its own bags RUN RUN --mode_b=bag. For every
metric of both: the two means, B minus A, the p of a two-sided paired t-test over the queries, and
the queries where B is better, the same and worse. Of many tests some have a small p by chance.
--largest=R-precision:3 lists the three queries where B gains most in a metric, for
`big-retrieval evaluate --show`.
"""

from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
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
MODE_A = flags.DEFINE_string("mode_a", "", "Of folders: the mode or weighting of A, such as bag")
MODE_B = flags.DEFINE_string("mode_b", "", "Of folders: that of B")
LARGEST = flags.DEFINE_string("largest", "", "Of folders: METRIC:COUNT, queries where B gains most")
OUT = flags.DEFINE_string("out", None, "A CSV file for the table")


def main(*words: str) -> None:
    """Reads both systems, compares them and prints a table."""
    from big_retrieval.evals import comparison

    if len(words) != 2:
        raise UserError("give two systems: big-retrieval compare RUN_A RUN_B.")
    a, b = (Path(word) for word in words)
    metric, colon, count = LARGEST.value.partition(":")
    if LARGEST.value and not (colon and count.isdecimal() and int(count) and not QRELS.value):
        raise UserError("--largest is METRIC:COUNT, such as R-precision:3, and is for folders.")
    if QRELS.value:
        if MODE_A.value or MODE_B.value:
            raise UserError("--mode_a and --mode_b are for folders; leave them out with --qrels.")
        keys = Path(QRELS.value), METRICS.value, DUPLICATES.value
        pairs = comparison.values_of_files(a, b, *keys)  # type: ignore[arg-type]
    else:
        pairs = comparison.values_of_folders(a, b)
    table = comparison.compare_systems(a, b, pairs, (MODE_A.value, MODE_B.value))
    print(comparison.as_text(a, b, table))
    if LARGEST.value:
        gains = comparison.largest_gains(a, b, pairs, metric, int(count))
        print("\n" + "\n".join(gains))
    if OUT.value:
        out = Path(OUT.value)
        with cli.owning(locks.beside(out), out):
            comparison.write_csv(out, table)
        print(f"written to {out}")
