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
from big_retrieval.config.fields import Field
from big_retrieval.config.run import Config, is_lexical
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
    """An evaluator for each data set, `ranking/<set>/nDCG@10`, and their average.

    The twelve zero-shot sets have the same `traffic`, so that `ranking/traffic/nDCG@10` is the
    average of papers.

    Args:
      folder: of the data sets' folders.
      sets: names of `NAMES`; (): all of them.
      modes: of lexical models, further ways to search.
      columns: what else the sources have: `query_column` and `text_column`; None: the defaults.

    Raises:
      UserError: a name is none of BEIR's here.
    """
    out = {}
    for name in sets or NAMES:
        if name not in NAMES:
            raise UserError(f"{name!r} is no data set of BEIR's group; known: {', '.join(NAMES)}.")
        how = f"see `big-retrieval data get beir/{name}`, or evaluate other data sets only"
        split = "dev" if name == TRAINED_ON else "test"
        source = dataclasses.replace(
            columns or configs.Beir(), path=f"{folder}/{name}", split=split, how_to_get=how
        )
        out[name] = configs.Ranking(
            data=source, metrics=METRICS, modes=tuple(modes), traffic=float(name in ZERO_SHOT)
        )
    return out


def with_beir(config: Config, folder: str, sets: Sequence[str] = ()) -> Config:
    """A config with BEIR's evaluators beside its own; lexical models search by bags of words, too.

    Args:
      config: of a model of texts on both sides.
      folder: as `beir`.
      sets: as `beir`.

    Raises:
      UserError: the model reads something else, or a name is none of BEIR's.
    """
    query, document = _text_field(config, "query"), _text_field(config, "document")
    lexical = is_lexical(config, *config.side("query"), *config.side("document"))
    columns = configs.Beir(query_column=query.column, text_column=document.column)
    made = beir(folder, sets, modes=("bag",) if lexical else (), columns=columns)
    return dataclasses.replace(config, evals={**config.evals, **made})


def _text_field(config: Config, side: str) -> Field:
    """The only field of a side, which reads texts."""
    names = config.side(side)  # type: ignore[arg-type]
    if len(names) != 1 or config.fields[names[0]].modality != "text":
        raise UserError(
            f"BEIR's data sets are for models with one text field on the {side} side; this one has "
            f"{', '.join(names) or 'none'}."
        )
    return config.fields[names[0]]
