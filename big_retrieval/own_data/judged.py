"""Judged pairs, such as clicks: one file in, the files of training and of new queries out."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from big_retrieval.config.sources import Source
from big_retrieval.data.judged.four_way import SplitOptions
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.data.judged.split_files import reading, split_files
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.guess import plain
from big_retrieval.own_data.roles import CLICKS, RANKS, Roles
from big_retrieval.own_data.rows import read_rows, write_rows
from big_retrieval.own_data.splits import DataFiles, FoundData

log = logging.getLogger(__name__)
# Nine tenths of the queries and of the documents are trained on; half of the new queries is kept.
OPTIONS = SplitOptions(0, 0.9, 0.9, 0.5, "")
PARTS = {"train": "in_domain", "validation": "novel_query", "new_documents": "novel_document"}


def judged_sources(
    found: FoundData, roles: Roles, columns: Mapping[str, Column], folder: Path
) -> tuple[dict[str, Source], int, float]:
    """Sources of judged pairs, which are split by queries and documents where no file names say so.

    Args:
      found: the pairs, of one split or more.
      roles: query, score, and document, document_id or image.
      columns: by a sample.
      folder: of the run, for the files of the split.

    Returns:
      Split -> source; how many pairs are trained on; the score of the best ones.

    Raises:
      UserError: pairs without an id or a score, or too few to split.
    """
    image = columns.get(roles["image"])
    configs: dict[str, Source] = {
        name: graded_pairs(name, each, roles, image, folder) for name, each in found.splits.items()
    }
    train: Any = configs["train"]
    source: Any = train.build()
    limit = float(max(1.0, source.qrels.score.max()))
    if len(configs) > 1:
        return configs, len(source.qrels), limit
    summary = split_files(source, train, OPTIONS, folder)
    parts = {name: summary["splits"][split] for name, split in PARTS.items()}
    log.info(
        f"{parts['train']['pairs']:,} pairs of {parts['train']['queries']:,} queries and "
        f"{parts['train']['documents']:,} documents are trained on; validation asks "
        f"{parts['validation']['queries']:,} queries that training never has"
    )
    for note in summary["skipped"]:
        log.info(f"skipped: {note}")
    made = {name: reading(train, folder, split) for name, split in PARTS.items()}
    used: dict[str, Source] = {name: each for name, each in made.items() if parts[name]["pairs"]}
    return used, parts["train"]["pairs"], limit


def graded_pairs(
    name: str, files: DataFiles, roles: Roles, image: Column | None, folder: Path
) -> Graded:
    """The source that reads the judged pairs of a split.

    Args:
      name: of the split.
      files: whose rows they are.
      roles: query, score, and document, document_id or image.
      image: the column of images; None: there is none.
      folder: takes the rows where no source reads the files as they are.
    """
    path, from_files = files.pattern, image is not None and image.files
    if not path or files.chosen is not None or from_files:  # image paths have to be whole
        root = image.root if image is not None else files.root
        rows = read_rows(files.table, range(len(files.table)), roles["image"], root)
        path = str(write_rows(folder / f"pairs_of_{name}", rows, roles["image"]).absolute())
    score = plain(roles["score"])
    return Graded(
        path=path,
        query=roles["query"],
        document=roles["document_id"] or roles["document"] or roles["image"],
        score=roles["score"],
        score_from="rank" if score in RANKS else "clicks" if score in CLICKS else "score",
        text=tuple(filter(None, (roles["query"], roles["document"]))),
        image=roles["image"],
        duplicates="max",
        negative="zero",
    )
