"""Sources of a run on files: the roles of the columns, and the records of each split."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Karpathy, Pairs, Tar
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.views import save_rows
from big_retrieval.data.sources import cell_of, evenly_spaced, make_source, texts_of
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.own_data.columns import ENDINGS, ColumnChooser, DataFlags, Roles, columns_of
from big_retrieval.own_data.find import DataSplit, FoundData, find
from big_retrieval.own_data.judged import judged_sources
from big_retrieval.own_data.records import SAMPLED, RecordKeys, RecordSample, read_keys, split_off
from big_retrieval.own_data.tasks import TrainingTask

log = logging.getLogger(__name__)
FOLDER = "data"  # in the run folder
FEW_HELD_OUT = 20  # records for validation below which a warning is logged
LEAST = 10  # records that a run needs
SEVERAL = 0.6  # different images per row below which rows of one image become one record


def open_data(data: str, flags: DataFlags, workdir: Path) -> FoundData:
    """Opens the data at a path, and logs their splits.

    Raises:
      UserError: there are no data of a known form, or they need another command.
    """
    found = find(data, flags.images or "", workdir / FOLDER, workdir)
    counts = ", ".join(f"{len(split):,} for {name}" for name, split in found.splits.items())
    for message in (f"data {data}: {found.form}, {counts}", *found.notes):
        log.info(message)
    train = found.splits["train"]
    if train.source is not None and flags != DataFlags(images=flags.images):
        raise UserError(f"{data} is a Karpathy split file. Remove the flags for its columns.")
    columns = columns_of(train.table)
    if found.form == "pictures" and "captions" not in columns and flags.text is None:
        raise UserError(
            f"{data} holds pictures without captions. Put a text file next to each (cat.txt next "
            "to cat.jpg, one caption per line), give a table of files and captions, or use names "
            "of files or folders as captions: --text=name or --text=folder."
        )
    if flags.images and found.form in ("pictures", "tar shards", "shards"):
        raise UserError(f"--images is for paths in tables, but {data} has {found.form}. Remove it.")
    if "positive_ctxs" in columns:
        raise UserError(
            f"{data} has passages in DPR's form. Give them to a config as config.Dpr "
            "(docs/DATA.md, Text retrieval)."
        )
    return found


def table_task(data: str, flags: DataFlags, workdir: Path) -> TrainingTask:
    """Returns the task of files whose rows are records or judged pairs.

    Args:
      workdir: the run folder; indices of rows are written into a folder in it.

    Raises:
      UserError: nothing to train on, or a column is missing.
    """
    found, folder = open_data(data, flags, workdir), (workdir / FOLDER).absolute()
    chooser = ColumnChooser(found.splits["train"].table, flags, Path(data).name or data)
    roles = chooser.decide(chooser.kind())
    for message in roles.messages:
        log.info(message)
    durable.make_folder(folder)
    splits = {name: SplitRecords(split, roles, flags) for name, split in found.splits.items()}
    if roles.kind == "clicks":
        facts = splits["train"].usable("train", SAMPLED).sample
        sources, records, limit = judged_sources(found.splits, roles, flags.images or "", folder)
        return TrainingTask(roles, facts, sources, records, limit=limit)
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
        """Reads the records, or a number of them; logs how many cannot be used, and a reason.

        Raises:
          UserError: none can be used.
        """
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
                f"some texts for {name} are lists written as one text, with brackets. For several "
                "texts per record, write JSON lines with lists"
            )
        if keys.dropped and count is None:
            log.info(f"{keys.dropped:,} records for {name} left out, the first: {keys.first}")
        return keys

    def chosen(
        self, name: str, rows: np.ndarray, keys: RecordKeys, folder: Path
    ) -> tuple[Source, int]:
        """Returns the source of some rows for a split, and its number of records.

        Rows with few different images become one record for each image, with all its captions:
        in evaluations, copies of an image would take many of the first ranks.
        """
        config = self.config
        if isinstance(config, Karpathy):
            return config, len(rows)
        groups = self._images(name, rows, keys)
        if groups:
            path = folder / f"{name}.jsonl"
            self._write(path, groups)
            return Pairs(path=str(path)), len(groups)
        if len(rows) == len(self.rows) and self.split.rows is None:
            return config, len(rows)
        if len(rows) == len(self.rows) and self.split.where and isinstance(config, Pairs):
            return dataclasses.replace(config, where=self.split.where), len(rows)
        path = folder / f"{name}_rows.npz"
        save_rows(path, rows, self.source.table)
        return dataclasses.replace(config, rows=str(path)), len(rows)

    def _images(self, name: str, rows: np.ndarray, keys: RecordKeys) -> list[list[int]]:
        """Returns the rows of each image; empty if most images have one row."""
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
        """Writes a record for each group of rows: its image, and the different captions."""
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
    """Returns the source of all rows at the path of a split."""
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
    """Returns facts about records for training, split -> source, and the number for training.

    A validation split is split off the training records if the data have none.
    """
    keys = {name: records.usable(name) for name, records in splits.items()}
    rows = {name: np.array(own.rows, np.int64) for name, own in keys.items()}
    train, made = keys["train"], dict(splits)
    if len(rows["train"]) < LEAST:
        raise UserError(
            f"only {len(rows['train']):,} usable records. Training compares records with each "
            f"other and needs at least {LEAST}. Correct the files, or give more data."
        )
    for name in rows.keys() - {"train"}:
        _warn_of_copies(name, keys[name], train)
    if "validation" not in rows:
        rows["train"], rows["validation"], apart = split_off(train)
        if not len(rows["validation"]):
            raise UserError("all records share one text. Training needs records that differ.")
        log.info(
            f"{len(rows['validation']):,} records are split off for validation, "
            f"{len(rows['train']):,} are for training: {apart}"
        )
        made["validation"], keys["validation"] = splits["train"], train
    order = sorted(rows, key=["train", "validation", "test"].index)
    found = {name: made[name].chosen(name, rows[name], keys[name], folder) for name in order}
    if found["validation"][1] < FEW_HELD_OUT:
        count = found["validation"][1]
        log.warning(f"only {count} records for validation: its metrics are optimistic and noisy")
    sources = {name: source for name, (source, _) in found.items()}
    return train.sample, sources, found["train"][1]


def _warn_of_copies(name: str, keys: RecordKeys, train: RecordKeys) -> None:
    """Logs how many records have an image, or else a first text, of the training data."""
    what = "image" if any(train.images) else "text"
    own, known = (x.images if what == "image" else [y[0] for y in x.texts] for x in (keys, train))
    shared = len(own) - sum(map(set(known).isdisjoint, ([key] for key in own)))
    if shared:
        log.warning(
            f"{shared:,} of {len(own):,} records for {name} have the {what} of a training record: "
            "their metrics say little. Remove them, or name no splits"
        )
