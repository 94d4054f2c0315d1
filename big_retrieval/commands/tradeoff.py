"""Quality of retrieval against latency per query: gates of different widths, and bags of words.

    big-retrieval tradeoff --run=RUN --out=FOLDER [--eval=NAME]
        [--queries=bag,16,64,256,all] [--documents=binary,64,256,all] [--metric=nDCG@10]
        [--limit=1000] [--rounds=5] [--bm25] [--average] [--beir=FOLDER]

--run takes several folders, separated by commas; of dense models the exact search is one
point. Queries and documents are those of an evaluator of the run. Numbers are terms that stay
besides a text's own words; "bag" and "binary" are bags of words, which no network encodes. --bm25
adds BM25, whose weights are in an index like those of the models. --average shows the quality of
ranking/traffic, the weighted average over the run's evaluators with `traffic`, such as that of
BEIR's twelve data sets (--beir=FOLDER adds them), against the times of --eval. Writes
tradeoff.html, tradeoff.md and tradeoff.json.
"""

import logging
from pathlib import Path

from absl import flags

from big_retrieval import cli
from big_retrieval.cli import beir
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

log = logging.getLogger(__name__)
LOG = True
WITHOUT = ("config", "workdir")
RUN = flags.DEFINE_list("run", [], "Run or checkpoint folders, one or several")
EVAL = flags.DEFINE_string("eval", "", "Evaluator of the run; may be left out where it has one")
QUERIES = flags.DEFINE_list("queries", [], "Gates of queries: bag, numbers of terms, all")
DOCUMENTS = flags.DEFINE_list("documents", [], "Gates of documents: binary, numbers, all")
METRIC = flags.DEFINE_string("metric", "", "What the plot shows; the evaluator's first by default")
LIMIT = flags.DEFINE_integer("limit", 1000, "Queries that are timed at most", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 5, "How often each of them is timed", lower_bound=1)
OUT = flags.DEFINE_string("out", None, "The folder to write to; a new one")
BM25 = flags.DEFINE_bool("bm25", False, "Measure BM25 over the texts, too")
AVERAGE = flags.DEFINE_bool("average", False, "Quality of all evaluators with traffic, not of one")


def main() -> None:
    """Measures and writes the files."""
    if not OUT.value:
        raise UserError("--out is missing: the folder to write the plot and its numbers to.")
    from big_retrieval.tradeoff.measure import TradeoffOptions
    from big_retrieval.tradeoff.page import make

    options = TradeoffOptions(
        checkpoints=RUN.value,
        evaluator=EVAL.value,
        queries=QUERIES.value,
        documents=DOCUMENTS.value,
        metric=METRIC.value,
        limit=LIMIT.value,
        rounds=ROUNDS.value,
        bm25=BM25.value,
        average=AVERAGE.value,
        change=beir.added,
    )
    out = Path(OUT.value)
    with cli.owning(locks.beside(out), out):
        make(options, out)
    print((out / "tradeoff.md").read_text())
    log.info(f"written to {out}/tradeoff.html, tradeoff.md and tradeoff.json")
