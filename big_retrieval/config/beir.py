"""BEIR's data sets as one group of evaluators: the twelve that VDR's Table 1 has, and MS MARCO.

"BEIR: A Heterogeneous Benchmark for Zero-shot Evaluation of Information Retrieval Models". A folder
has one folder for each data set, named as BEIR's archives are:

    beir/arguana/corpus.jsonl, queries.jsonl, qrels/test.tsv
    beir/msmarco/corpus.jsonl, queries.jsonl, qrels/dev.tsv
"""

import dataclasses
from collections.abc import Sequence

from big_retrieval import config as configs
from big_retrieval.config.evals import Evaluator
from big_retrieval.errors import UserError

# Folder -> the name in papers
ZERO_SHOT = {
    "arguana": "ArguAna", "climate-fever": "Climate-FEVER", "dbpedia-entity": "DBPedia",
    "fever": "FEVER", "fiqa": "FiQA", "hotpotqa": "HotpotQA", "nfcorpus": "NFCorpus", "nq": "NQ",
    "scidocs": "SCIDOCS", "scifact": "SciFact", "trec-covid": "TREC-COVID",
    "webis-touche2020": "Touché-2020",
}  # fmt: skip
TRAINED_ON = "msmarco"  # not zero-shot, so no part of the average; its queries are those of dev
NAMES = (TRAINED_ON, *ZERO_SHOT)
METRICS = ("nDCG@10", "MRR@10", "R@100")


def beir(
    folder: str,
    sets: Sequence[str] = (),
    *,
    modes: Sequence[str] = (),
    columns: "configs.Beir | None" = None,
) -> dict[str, Evaluator]:
    """Returns an evaluator for each data set, with metrics such as `ranking/<set>/nDCG@10`.

    The twelve zero-shot sets have the same `traffic`, so that `ranking/traffic/nDCG@10` is the
    average that papers report.

    Args:
      folder: contains a folder for each data set.
      sets: names of `NAMES`; empty for all.
      modes: further search modes of a lexical model.
      columns: source with other columns than the default.

    Raises:
      UserError: an unknown name.
    """
    evaluators = {}
    for name in sets or NAMES:
        if name not in NAMES:
            raise UserError(f"{name!r} is no data set of BEIR's group; known: {', '.join(NAMES)}.")
        how = f"see `big-retrieval data get beir/{name}`, or evaluate other data sets only"
        split = "dev" if name == TRAINED_ON else "test"
        source = dataclasses.replace(
            columns or configs.Beir(), path=f"{folder}/{name}", split=split, how_to_get=how
        )
        evaluators[name] = configs.Ranking(
            data=source, metrics=METRICS, modes=tuple(modes), traffic=float(name in ZERO_SHOT)
        )
    return evaluators
