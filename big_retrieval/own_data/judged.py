"""Sources of judged pairs, such as clicks."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from big_retrieval.config.sources import Source
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.data.judged.split_files import reading, split_files
from big_retrieval.data.judged.split_options import SplitOptions
from big_retrieval.errors import UserError
from big_retrieval.own_data.columns import CLICKS, RANKS, Roles, plain
from big_retrieval.own_data.find import DataSplit

log = logging.getLogger(__name__)
OPTIONS = SplitOptions(0, 0.9, 0.9, 0.5, "")  # shares of queries, documents and development
PARTS = {"train": "in_domain", "validation": "novel_query", "new_documents": "novel_document"}


def judged_sources(
    splits: Mapping[str, DataSplit], roles: Roles, images: str, folder: Path
) -> tuple[dict[str, Source], int, float]:
    """Returns split -> source, the number of pairs for training, and the highest score.

    Without a validation split, queries and documents are split four ways.

    Args:
      images: folder that image paths start from; empty for the folder of their file.
    """
    configs: dict[str, Source] = {
        name: graded_pairs(split, roles, images) for name, split in splits.items()
    }
    train: Any = configs["train"]
    source: Any = train.build()
    limit = float(max(1.0, source.qrels.score.max()))
    if "validation" in configs:
        return configs, len(source.qrels), limit
    summary = split_files(source, train, OPTIONS, folder)
    counts = {name: summary["splits"][split] for name, split in PARTS.items()}
    log.info(
        f"{counts['train']['pairs']:,} pairs of {counts['train']['queries']:,} queries and "
        f"{counts['train']['documents']:,} documents are for training; validation has "
        f"{counts['validation']['queries']:,} queries that training does not have"
    )
    for note in summary["skipped"]:
        log.info(f"skipped: {note}")
    sources: dict[str, Source] = {
        name: reading(train, folder, split)
        for name, split in PARTS.items()
        if counts[name]["pairs"]
    }
    sources |= {name: x for name, x in configs.items() if name == "test"}
    return sources, counts["train"]["pairs"], limit


def graded_pairs(split: DataSplit, roles: Roles, images: str) -> Graded:
    """Returns the source of a split's pairs; raises if the column has several names for it."""
    if split.rows is not None and not split.where:
        raise UserError(
            f"{split.path}: judged pairs need one name per split in their column of splits, and "
            "readable rows. Correct the file."
        )
    score = plain(roles["score"])
    return Graded(
        path=split.path,
        where=split.where,
        query=roles["query"],
        document=roles["document_id"] or roles["document"] or roles["image"],
        score=roles["score"],
        score_from="rank" if score in RANKS else "clicks" if score in CLICKS else "score",
        text=tuple(filter(None, (roles["query"], roles["document"]))),
        image=roles["image"],
        root=images,
        duplicates="max",
        negative="zero",
    )
