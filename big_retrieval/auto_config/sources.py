"""Sources for training on a user's files: roles of the columns, and records of each split."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.auto_config.clicks import judged_sources
from big_retrieval.auto_config.columns import ENDINGS, ColumnChooser, DataFlags, Roles, columns_of
from big_retrieval.auto_config.find import DataSplit, FoundData, find
from big_retrieval.auto_config.records import (
    SAMPLED,
    RecordKeys,
    RecordSample,
    read_keys,
    split_off,
)
from big_retrieval.auto_config.tasks import TrainingTask
from big_retrieval.config import Karpathy, Pairs, Tar
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.views import save_rows
from big_retrieval.data.sources import cell_of, evenly_spaced, make_source, texts_of
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
FOLDER = "data"  # in the run folder
FEW_HELD_OUT = 20  # a warning is logged below this number of records for validation
LEAST = 10  # minimum number of records
SEVERAL = 0.6  # below this number of distinct images per row, each image becomes one record


def open_data(data: str, flags: DataFlags, workdir: Path) -> FoundData:
    """Opens the data at a path, and logs their splits."""
    files = find(data, flags.images or "", workdir / FOLDER, workdir)
    counts = ", ".join(f"{len(split):,} for {name}" for name, split in files.splits.items())
    if len(files.splits) == 1:
        counts = count_of(len(files.splits["train"]), "record")
    for message in (f"data {data}: {files.form}, {counts}", *files.notes):
        log.info(message)
    train = files.splits["train"]
    if train.source is not None and flags != DataFlags(images=flags.images):
        raise UserError(f"{data} is a Karpathy split file. Remove the flags for its columns.")
    columns = columns_of(train.table)
    if files.form == "pictures" and "captions" not in columns and flags.text is None:
        raise UserError(
            f"{data} holds pictures without captions. Put a text file next to each (cat.txt next "
            "to cat.jpg, one caption per line), give a table of files and captions, or use names "
            "of files or folders as captions: --text=name or --text=folder."
        )
    if flags.images and files.form in ("pictures", "tar shards", "shards"):
        raise UserError(f"--images is for paths in tables, but {data} has {files.form}. Remove it.")
    if "positive_ctxs" in columns:
        raise UserError(
            f"{data} has passages in DPR's form. Give them to a config as config.Dpr "
            "(docs/DATA.md, Text retrieval)."
        )
    return files


def table_task(data: str, flags: DataFlags, workdir: Path) -> TrainingTask:
    """Returns the task of files; writes row indices into the folder `FOLDER` of the run."""
    files, folder = open_data(data, flags, workdir), (workdir / FOLDER).absolute()
    chooser = ColumnChooser(files.splits["train"].table, flags, Path(data).name or data)
    roles = chooser.decide(chooser.kind())
    for message in roles.messages:
        log.info(message)
    durable.make_folder(folder)
    splits = {name: SplitRecords(split, roles, flags) for name, split in files.splits.items()}
    if roles.kind == "clicks":
        sample = splits["train"].usable("train", SAMPLED).sample
        sources, records, limit = judged_sources(files.splits, roles, flags.images or "", folder)
        return TrainingTask(roles, sample, sources, records, limit=limit)
    return TrainingTask(roles, *_sources(splits, folder))


class SplitRecords:
    """Records of one split.

    Attributes:
      config: source of all rows at the path of the split.
      rows: indices of the rows of the split.
    """

    def __init__(self, split: DataSplit, roles: Roles, flags: DataFlags, separator: str = ""):
        self.split, self.roles = split, roles
        self.config = _source(split, roles, flags)
        if isinstance(self.config, Pairs):
            self.config = dataclasses.replace(self.config, separator=separator)
        elif separator:
            raise UserError("--separator is for tables, not for tar shards or Karpathy's splits.")
        self.source: Any = make_source(self.config)
        self.rows = range(len(self.source)) if split.rows is None else split.rows.tolist()
        names = [roles[role] for role in ("query", "document") if roles[role]]
        self.columns = ["captions"] if roles.kind == "captions" else names

    def usable(self, name: str, count: int | None = None) -> RecordKeys:
        """Reads all records, or a sample of `count`; logs the number of unusable records."""
        has_image, rows = bool(self.roles["image"]), self.rows
        if count is not None:
            rows = [rows[i] for i in evenly_spaced(len(rows), count).tolist()]
        keys = read_keys(self.source, rows, has_image, self.columns)
        if not keys.rows:
            raise UserError(
                f"none of {len(rows):,} records for {name} can be used, the first: {keys.first}. "
                "--images=FOLDER is where image paths start; --image, --text, --query and "
                "--document name other columns."
            )
        if keys.sample.lists:
            log.warning(
                f"some texts for {name} are lists in brackets. For several texts per record, write "
                "JSON lines with lists"
            )
        if keys.dropped and count is None:
            left_out = count_of(keys.dropped, "record")
            log.info(f"{left_out} for {name} left out, the first: {keys.first}")
        return keys

    def chosen(
        self, name: str, rows: np.ndarray, keys: RecordKeys, folder: Path
    ) -> tuple[Source, int]:
        """Returns the source of some rows for a split, and its number of records.

        If images repeat in many rows, all rows of an image become one record with all captions:
        copies of an image would fill the first ranks in evaluations.
        """
        config, is_complete = self.config, len(rows) == len(self.rows)
        if isinstance(config, Karpathy):
            return config, len(rows)
        groups = self._group_by_image(name, rows, keys)
        if groups:
            path = folder / f"{name}.jsonl"
            self._write(path, groups)
            return Pairs(path=str(path)), len(groups)
        if is_complete and self.split.rows is None:
            return config, len(rows)
        if is_complete and self.split.where and isinstance(config, Pairs):
            return dataclasses.replace(config, where=self.split.where), len(rows)
        path = folder / f"{name}_rows.npz"
        save_rows(path, rows, self.source.table)
        return dataclasses.replace(config, rows=str(path)), len(rows)

    def _group_by_image(self, name: str, rows: np.ndarray, keys: RecordKeys) -> list[list[int]]:
        image = dict(zip(keys.rows, keys.images, strict=True))
        groups: dict[int, list[int]] = {}
        for row in rows.tolist():
            groups.setdefault(image[row], []).append(row)
        if self.roles.kind != "captions" or len(groups) >= SEVERAL * len(rows):
            return []
        message = f"{len(rows):,} rows for {name} have {len(groups):,} different images"
        if isinstance(cell_of(self.source, int(rows[0]), "image"), str):
            log.info(f"{message}: the rows of an image are one record with several captions")
            return list(groups.values())
        log.warning(
            f"{message}: copies of an image lower R@5 and R@10. Write one row per image with a "
            "list of its captions"
        )
        return []

    def _write(self, path: Path, groups: list[list[int]]) -> None:
        """Writes a record per group of rows: its image, and the distinct captions."""
        with path.open("w", encoding="utf-8", errors="replace") as out:
            for group in groups:
                captions: dict[str, str] = {}
                for row in group:
                    for text in texts_of(self.source, row, "captions"):
                        captions.setdefault(normalize_text(text), text.strip())
                image = str(self.source.root / cell_of(self.source, group[0], "image"))
                record = {"image": image, "captions": list(captions.values())}
                out.write(json.dumps(record, ensure_ascii=False) + "\n")


def _source(split: DataSplit, roles: Roles, flags: DataFlags) -> Pairs | Tar | Karpathy:
    if split.source is not None:
        return split.source
    image, text = roles["image"], roles["text"] or roles["document"] or roles["query"]
    if split.path.endswith(".tar") and image:
        members = [] if flags.image else columns_of(split.table)
        images = dict.fromkeys((image, *(name for name in members if name in ENDINGS)))
        return Tar(path=split.path, image=tuple(images), text=text)
    return Pairs(path=split.path, image=image, text=text, root=flags.images or "")


def _sources(
    splits: Mapping[str, SplitRecords], folder: Path
) -> tuple[RecordSample, dict[str, Source], int]:
    """Returns a sample of the training records, sources by split, and the number of records.

    Without a validation split, a part of the training records becomes one.
    """
    keys = {name: records.usable(name) for name, records in splits.items()}
    rows = {name: np.array(usable.rows, np.int64) for name, usable in keys.items()}
    train, records = keys["train"], dict(splits)
    if len(rows["train"]) < LEAST:
        raise UserError(
            f"only {len(rows['train']):,} usable records. Training compares records with each "
            f"other and needs at least {LEAST}. Correct the files, or give more data."
        )
    for name in rows.keys() - {"train"}:
        _warn_of_copies(name, keys[name], train)
    if "validation" not in rows:
        rows["train"], rows["validation"], description = split_off(train)
        if not len(rows["validation"]):
            raise UserError("all records share one text. Training needs records that differ.")
        log.info(
            f"{count_of(len(rows['validation']), 'record')} split off for validation, "
            f"{count_of(len(rows['train']), 'record')} for training: {description}"
        )
        records["validation"], keys["validation"] = splits["train"], train
    sources, counts = {}, {}
    for name in sorted(rows, key=["train", "validation", "test"].index):
        selected = records[name].chosen(name, rows[name], keys[name], folder)
        sources[name], counts[name] = selected
    if (count := counts["validation"]) < FEW_HELD_OUT:
        few = count_of(count, "record")
        log.warning(f"only {few} for validation: its metrics are optimistic and noisy")
    return train.sample, sources, counts["train"]


def _warn_of_copies(name: str, keys: RecordKeys, train: RecordKeys) -> None:
    """Logs a warning if records have an image (or else a first text) of the training data."""
    label = "image" if any(train.images) else "text"
    held_out, known = (
        x.images if label == "image" else [texts[0] for texts in x.texts] for x in (keys, train)
    )
    train_keys = set(known)
    copies = sum(key in train_keys for key in held_out)
    if copies:
        log.warning(
            f"{copies:,} of {len(held_out):,} records for {name} have the {label} of a training "
            "record: their metrics are too high. Remove them, or use no splits"
        )
