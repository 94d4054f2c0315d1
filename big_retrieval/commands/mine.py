"""Finds hard negatives: non-relevant documents that a model or BM25 ranks high.

    big-retrieval mine --bm25 --data=FOLDER --out=FILE.jsonl
    big-retrieval mine --run=RUN [--config=FILE] [--data=...] --out=FILE.jsonl

The command searches all documents for every training query. It excludes documents that are relevant
to the query, have the text of a relevant document, contain an answer, or are the query itself.
--skip, --margin and --share exclude documents that may be relevant although nobody judged them. The
--count best documents are kept. FILE has DPR's form, which `config.Dpr`
reads. Repeat a command that was stopped to resume it.

--data is a folder in BEIR's form (relevant: at least 1) or a file in DPR's form, by default the
config's `data`. For pairs, the documents come from the pairs and from --documents (tab-separated
id, text and title, or JSON lines). The fields come from --config, or from the checkpoint; with
--bm25 alone, they are `query`, `title` and `text`.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.cli.options import AtLeast1, Flag, only_one, select
from big_retrieval.errors import UserError
from big_retrieval.mining.options import MiningOptions

if TYPE_CHECKING:
    from big_retrieval.config import Config
    from big_retrieval.config.sources import Source
    from big_retrieval.mining.searchers import CandidateSearcher
    from big_retrieval.mining.task import Task

LOG = True
Duplicates = Literal["refuse", "max", "min", "mean", "first"]
BATCH = 256  # rows encoded at a time


@dataclass(frozen=True, kw_only=True)
class MineOptions(MiningOptions, ConfigOptions):
    out: Path  # File to write, .jsonl
    run: str | None = None  # Run or checkpoint folder, or a third-party model
    bm25: bool = False  # BM25 instead of a model
    data: str | None = None  # Folder in BEIR's form, or a file in DPR's form
    split: Annotated[str, Flag(needs="data")] = "train"  # Split of BEIR's qrels
    # Score of a pair that was judged several times
    duplicates: Annotated[Duplicates, Flag(needs="data")] = "refuse"
    documents: str | None = None  # File of additional documents, for DPR's form
    depth: AtLeast1 = 200  # Documents that are searched for a query


def main(options: MineOptions) -> None:
    only_one(options, "run", "bm25", required=True)
    if options.bm25 and not options.data and options.config is None:
        raise UserError("--bm25 needs --data or --config. Add one of them.")
    if options.share == 0:
        raise UserError("--share is 0; it must be above 0 and at most 1.")
    with options.owning_file(options.out):
        from big_retrieval.mining.mine import mine

        task, searcher, config = _bm25(options) if options.bm25 else _model(options)
        choice = select(MiningOptions, options)
        mine(task, searcher, config, choice, options.depth, options.out)


def _bm25(options: MineOptions) -> "tuple[Task, CandidateSearcher, Config]":
    """Returns BM25 over the texts of --config, or of the fields query, title and text."""
    from big_retrieval.mining.searchers import search_with_bm25
    from big_retrieval.mining.task import config_of_texts

    config = options.load_config() if options.config is not None else None
    data = _data(options, config)
    config = config or config_of_texts(data)
    return *search_with_bm25(config, data, options.documents), config


def _model(options: MineOptions) -> "tuple[Task, CandidateSearcher, Config]":
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.mining.searchers import search_with_model

    path = str(options.run)
    if options.config is None:
        model = load(path, batch_size=BATCH)
        data, config = _data(options, model.config), model.config
    else:
        like = options.load_config()
        model = import_model(path, like=like, batch_size=BATCH)
        data, config = _data(options, like), dataclasses.replace(model.config, data=like.data)
    return *search_with_model(model, data, options.documents), config


def _data(options: MineOptions, config: "Config | None") -> "Source":
    from big_retrieval.mining.task import source_of_path

    if options.data:
        return source_of_path(options.data, options.split, options.duplicates)
    assert config is not None  # `main` requires --data or --config
    return config.data
