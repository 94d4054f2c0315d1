"""Finds hard negatives: documents that a model or BM25 takes for right ones.

    big-retrieval mine --bm25 --data=FOLDER --out=FILE.jsonl
    big-retrieval mine --run=RUN [--config=FILE] [--data=...] --out=FILE.jsonl

All documents are searched for every training query; documents that are right for it, have the text
of a right one or are the query itself are left out, and so are those that contain an answer. Of the
others --skip leaves out the first ranks, --margin and --share those that score too near to the best
right document, or above it: they may be right though nobody judged them. --count best ones are
kept, or drawn with --draw. FILE is in DPR's form; `config.Dpr` trains on it. A run that was stopped
goes on where it was when it is called again with the same flags.

--data is a folder in BEIR's form (--split, "train"; relevance of 1 or more is right) or a file in
DPR's form; without it, it is the config's `data`. Documents of pairs that nobody judged are those
of the pairs, and those of --documents (tab-separated id, text and title, or JSON lines). The fields
are those of the checkpoint's config, or of --config; with --bm25 and neither, `query`, `title` and
`text`.
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from big_retrieval import cli
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

if TYPE_CHECKING:
    from big_retrieval.config import Config
    from big_retrieval.config.sources import Source
    from big_retrieval.mining.searchers import CandidateSearcher
    from big_retrieval.mining.task import Task

LOG = True
WITHOUT = ("workdir",)
RUN = flags.DEFINE_string("run", None, "Run or checkpoint folder, or other model")
BM25 = flags.DEFINE_bool("bm25", False, "BM25 instead of a model")
DATA = flags.DEFINE_string("data", None, "Folder in BEIR's form, or a file in DPR's form")
SPLIT = flags.DEFINE_string("split", "train", "With --data: of BEIR's qrels")
DUPLICATES = flags.DEFINE_enum(
    "duplicates",
    "refuse",
    ("refuse", "max", "min", "mean", "first"),
    "With --data: of pairs judged twice",
)
DOCUMENTS = flags.DEFINE_string("documents", None, "File of further documents, for DPR's form")
OUT = flags.DEFINE_string("out", None, "The file to write, .jsonl")
DEPTH = flags.DEFINE_integer("depth", 200, "Documents that are found for a query", lower_bound=1)
COUNT = flags.DEFINE_integer("count", 10, "Negatives of a query; 0: all", lower_bound=0)
SKIP = flags.DEFINE_integer("skip", 0, "Ranks that are left out", lower_bound=0)
MARGIN = flags.DEFINE_float("margin", None, "Least distance below the best right document's score")
SHARE = flags.DEFINE_float("share", None, "Most of the best right document's score, such as 0.95")
DRAW = flags.DEFINE_bool("draw", False, "Draw the negatives among all, by --seed")
SEED = flags.DEFINE_integer("seed", 0, "Of --draw", lower_bound=0)
BATCH = 256  # rows encoded at a time


def main() -> None:
    """Mines what the flags ask for."""
    out = _checked()
    with cli.owning(locks.beside(out), out):
        from big_retrieval.mining.choice import MiningOptions
        from big_retrieval.mining.mine import mine

        options = MiningOptions(
            COUNT.value, SKIP.value, MARGIN.value, SHARE.value, DRAW.value, SEED.value
        )
        task, searcher, config = _bm25() if BM25.value else _model()
        mine(task, searcher, config, options, DEPTH.value, out)


def _checked() -> Path:
    """The file to write, when the flags go together.

    Raises:
      UserError: they do not.
    """
    if bool(RUN.value) == BM25.value:
        raise UserError("say who searches: --run=RUN or --bm25, one of them.")
    if not OUT.value:
        raise UserError("--out is missing: the file to write, such as negatives.jsonl.")
    if BM25.value and not DATA.value and cli.CONFIG.value is None:
        raise UserError("--bm25 needs --data, or --config with its `data`.")
    if SHARE.value is not None and not 0 < SHARE.value <= 1:
        raise UserError(f"--share is {SHARE.value}; it must be above 0, at most 1, such as 0.95.")
    if MARGIN.value is not None and MARGIN.value < 0:
        raise UserError(f"--margin is {MARGIN.value}; it must be 0 or more.")
    return Path(OUT.value)


def _bm25() -> "tuple[Task, CandidateSearcher, Config]":
    """BM25 over the texts of --config's fields, or of query, title and text."""
    from big_retrieval.mining.searchers import search_with_bm25
    from big_retrieval.mining.task import config_of_texts

    given = cli.load_config() if cli.CONFIG.value is not None else None
    data = _data(given)
    config = given or config_of_texts(data)
    return *search_with_bm25(config, data, DOCUMENTS.value), config


def _model() -> "tuple[Task, CandidateSearcher, Config]":
    """The model of --run."""
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.mining.searchers import search_with_model

    path = str(RUN.value)
    if cli.CONFIG.value is None:
        model = load(path, batch_size=BATCH)
        data, config = _data(model.config), model.config
    else:
        given = cli.load_config()
        model = import_model(path, like=given, batch_size=BATCH)
        data, config = _data(given), dataclasses.replace(model.config, data=given.data)
    return *search_with_model(model, data, DOCUMENTS.value), config


def _data(config: "Config | None") -> "Source":
    """The data of --data, or else of a config."""
    from big_retrieval.mining.task import source_of_path

    if DATA.value:
        duplicates: Any = DUPLICATES.value
        return source_of_path(DATA.value, SPLIT.value, duplicates)
    assert config is not None  # `_checked` has asked for one of both
    return config.data
