"""Finds hard negatives: non-relevant documents that a model or BM25 ranks high.

    big-retrieval mine --bm25 --data=FOLDER --out=FILE.jsonl
    big-retrieval mine --run=RUN [--config=FILE] [--data=...] --out=FILE.jsonl

All documents are searched for every training query. Documents that are relevant to it, have the
text of a relevant document, contain an answer, or are the query itself are left out. --skip leaves
out the first ranks of the others; --margin and --share leave out documents whose scores are too
near to the best relevant document's score, or above it: they may be relevant although nobody judged
them. The --count best documents are kept, or drawn with --draw. FILE is in DPR's form; `config.Dpr`
trains on it. A command that was stopped resumes when it is called again with the same flags.

--data is a folder in BEIR's form (--split, "train"; relevance of at least 1 is relevant) or a file
in DPR's form; by default it is the config's `data`. Documents of pairs that nobody judged are the
documents of the pairs, and of --documents (tab-separated id, text and title, or JSON lines). The
fields come from the checkpoint's config, or from --config; with --bm25 and neither, they are
`query`, `title` and `text`.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from big_retrieval.cli.option_groups import ConfigOptions
from big_retrieval.cli.options import AtLeast1, Flag, select
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
    """Options of `big-retrieval mine`."""

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
    """Mines hard negatives."""
    if bool(options.run) == options.bm25:
        raise UserError("say who searches: --run=RUN or --bm25, one of them.")
    if options.bm25 and not options.data and options.config is None:
        raise UserError("--bm25 needs --data, or --config with its `data`.")
    if options.share == 0:
        raise UserError("--share is 0; it must be above 0, at most 1, such as 0.95.")
    with options.owning_file(options.out):
        from big_retrieval.mining.mine import mine

        task, searcher, config = _bm25(options) if options.bm25 else _model(options)
        choice = select(MiningOptions, options)
        mine(task, searcher, config, choice, options.depth, options.out)


def _bm25(options: MineOptions) -> "tuple[Task, CandidateSearcher, Config]":
    """Returns BM25 over the texts of --config's fields, or of query, title and text."""
    from big_retrieval.mining.searchers import search_with_bm25
    from big_retrieval.mining.task import config_of_texts

    given = options.load_config() if options.config is not None else None
    data = _data(options, given)
    config = given or config_of_texts(data)
    return *search_with_bm25(config, data, options.documents), config


def _model(options: MineOptions) -> "tuple[Task, CandidateSearcher, Config]":
    """Returns the model of --run."""
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.mining.searchers import search_with_model

    path = str(options.run)
    if options.config is None:
        model = load(path, batch_size=BATCH)
        data, config = _data(options, model.config), model.config
    else:
        given = options.load_config()
        model = import_model(path, like=given, batch_size=BATCH)
        data, config = _data(options, given), dataclasses.replace(model.config, data=given.data)
    return *search_with_model(model, data, options.documents), config


def _data(options: MineOptions, config: "Config | None") -> "Source":
    """Returns the data of --data, or else of a config."""
    from big_retrieval.mining.task import source_of_path

    if options.data:
        return source_of_path(options.data, options.split, options.duplicates)
    assert config is not None  # `main` needs one of both
    return config.data
