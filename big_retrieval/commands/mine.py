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
import functools
import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from big_retrieval import cli
from big_retrieval.config import Beir, Config, Dpr, TextField, schema
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

if TYPE_CHECKING:
    from big_retrieval.config.sources import Source
    from big_retrieval.data.fields.reader import FieldReader
    from big_retrieval.mining.choice import MiningOptions
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
log = logging.getLogger(__name__)
BATCH = 256  # rows encoded at a time
QUERIES = 1024  # that are searched at a time


def main() -> None:
    """Reads the flags, mines, and says what came of it."""
    out = _checked()
    with cli.owning(locks.beside(out), out):
        _mine(out)


def _mine(out: Path) -> None:
    """Mines what the flags ask for."""
    from big_retrieval.mining.choice import MiningOptions
    from big_retrieval.mining.output import Output
    from big_retrieval.retrieval.progress import ProgressCounter

    options = MiningOptions(
        COUNT.value, SKIP.value, MARGIN.value, SHARE.value, DRAW.value, SEED.value
    )
    task, searcher, config = _bm25() if BM25.value else _model()
    asked = np.array([n for n, right in enumerate(task.right) if right], np.int64)
    log.info(f"{len(asked):,} queries, {len(task.documents):,} documents")
    file = Output(out, made_of(task, searcher, config, asked, options))
    if file.done:
        log.info(f"goes on after the {file.done:,} queries that {out}.partial has")
    try:
        progress = ProgressCounter("queries", len(asked) - file.done)
        for start in range(file.done, len(asked), QUERIES):
            part = asked[start : start + QUERIES]
            file.add(rows(task, searcher, part, options, DEPTH.value, file.dropped), len(part))
            progress.add(len(part))
        progress.close()
        file.finish()
    finally:
        file.close()
    counts, made = file.counts, sum(number * count for number, count in file.counts.items())
    log.info(
        f"{made:,} negatives, {made / max(1, counts.total()):.1f} a query; {counts[0]:,} without"
    )
    if file.dropped:
        log.info(
            "left out: " + "; ".join(f"{n:,} x {why}" for why, n in file.dropped.most_common())
        )
    log.info(f"written to {out}; to train on it: {' '.join(training(config, out))}")


def rows(
    task: "Task",
    searcher: "CandidateSearcher",
    asked: np.ndarray,
    options: "MiningOptions",
    depth: int,
    dropped: Counter[str],
) -> Iterator[dict[str, Any]]:
    """What is written of some queries, a query at a time.

    Args:
      task: queries and documents.
      searcher: finds documents.
      asked: numbers of the queries, [q].
      options: which of those found become negatives.
      depth: documents that are found for a query.
      dropped: counts what was left out, by reason.
    """
    from big_retrieval.mining.choice import QueryResults, choose

    found, scores, best_right = searcher.search(asked, min(depth, len(task.documents)))
    for place, number in enumerate(asked.tolist()):
        present = found[place] >= 0
        ranking = QueryResults(
            number,
            found[place][present].tolist(),
            scores[place][present].tolist(),
            set(task.right[number]),
            float(best_right[place]),
        )
        answers = task.answers(number)
        if not task.question(number):
            dropped["query without a text"] += 1
            continue
        itself = functools.partial(task.itself, number)
        chosen = choose(ranking, options, task.whole_text, answers, dropped, itself)
        yield _row(task, number, answers, chosen)


def made_of(
    task: "Task",
    searcher: "CandidateSearcher",
    config: Config,
    asked: np.ndarray,
    options: "MiningOptions",
) -> dict[str, Any]:
    """All that what is written follows from.

    Args:
      task: queries and documents.
      searcher: finds documents.
      config: has the fields.
      asked: numbers of the queries, [q].
      options: which of those found become negatives.
    """
    from big_retrieval.mining.output import data_sha256

    return {
        "searcher": searcher.identity,
        "config": schema.to_plain(config),
        "data": data_sha256(task, asked),
        "depth": DEPTH.value,
        **dataclasses.asdict(options),
    }


def _row(task: "Task", number: int, answers: tuple[str, ...], chosen: list) -> dict[str, Any]:
    def passage(document: int) -> dict[str, Any]:
        title, text = task.text(document)
        title, text = (title, text) if text else ("", title)  # DPR's form needs a text
        return {"title": title, "text": text, "passage_id": task.document_id(document)}

    return {
        "question": task.question(number),
        "answers": list(answers),
        "positive_ctxs": [passage(document) for document in task.right[number]],
        "negative_ctxs": [],
        "hard_negative_ctxs": [
            {**passage(each.document), "score": round(each.score, 6), "rank": each.rank}
            for each in chosen
        ],
    }


def training(config: Config, out: Path) -> list[str]:
    """The flags with which a config trains on what was written.

    Args:
      config: whose fields read other data, perhaps.
      out: the file.
    """
    names = ["type=dpr", f"path={out}"]
    given = [*(f"data.{each}" for each in names), f"negatives.count={config.negatives.count or 1}"]
    for name, field in config.encoded.items():
        column = "query" if field.side == "query" else "text"
        if field.modality == "text" and field.column != column:
            given.append(f"fields.{name}.column={column}")
    given += [f"labels.{name}=" for name in ("query", "score") if getattr(config.labels, name)]
    return [f"--config.{each}" for each in given]


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
    from big_retrieval.data.passages.beir import has_titles
    from big_retrieval.evals.bm25 import text_columns
    from big_retrieval.mining.searchers import WordSearcher

    if cli.CONFIG.value is not None:
        config = cli.load_config()
    else:
        data = _source(Config().data)
        folder = Path(DATA.value or "")
        titled = not (DATA.value and folder.is_dir()) or has_titles(folder)
        document = TextField(side="document", column="text", title="title" if titled else "")
        fields: Any = {"query": TextField(column="query"), "document": document}
        config = Config(fields=fields, data=data)
    task = _task(config, None)
    return task, WordSearcher(task, text_columns(config)), config


def _model() -> "tuple[Task, CandidateSearcher, Config]":
    """The model of --run."""
    from big_retrieval.data.build import make_readers, make_reading
    from big_retrieval.inference.load import load
    from big_retrieval.interop.model import import_model
    from big_retrieval.mining.searchers import ModelSearcher

    path = str(RUN.value)
    if cli.CONFIG.value is None:
        model = load(path, batch_size=BATCH)
    else:
        model = import_model(path, like=cli.load_config(), batch_size=BATCH)
    config = model.config
    if cli.CONFIG.value is not None:
        config = dataclasses.replace(config, data=cli.load_config().data)
    readers = make_readers(config, model.tokenizer)
    task = _task(config, model.tokenizer)
    reading = make_reading(config.loader)
    searcher = ModelSearcher(task, config, readers, model.encoder, model.weights, reading)
    return task, searcher, config


def _source(other: "Source") -> "Source":
    """The data of --data, or others."""
    if not DATA.value:
        return other
    if Path(DATA.value).is_dir():
        policy: Any = DUPLICATES.value
        return Beir(path=DATA.value, split=SPLIT.value, min_relevance=1, duplicates=policy)
    return Dpr(path=DATA.value, positive="any")


def _task(config: Config, tokenizer: Any) -> "Task":
    """Queries and documents of the data.

    Raises:
      UserError: data that are missing, or a side without a text field.
    """
    from big_retrieval.data.build import make_readers, make_source
    from big_retrieval.data.judged.qrels import JudgedSource
    from big_retrieval.data.passages.collection import Collection
    from big_retrieval.mining.task import judged_task, pairs_task

    readers = make_readers(config, tokenizer)
    texts: list[FieldReader] = []
    for side in ("query", "document"):
        names = [n for n, f in config.fields.items() if f.side == side and f.modality == "text"]
        if not names:
            raise UserError(f"config.fields has no text field on the {side} side to be written.")
        texts.append(readers[min(names)])
    source = make_source(_source(config.data))
    if isinstance(source, JudgedSource):
        if DOCUMENTS.value:
            raise UserError("--documents is not for judged pairs, which bring all documents.")
        return judged_task(source, texts[0], texts[1])
    collection = Collection(DOCUMENTS.value) if DOCUMENTS.value else None
    return pairs_task(source, texts[0], texts[1], collection)
