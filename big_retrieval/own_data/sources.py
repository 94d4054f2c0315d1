"""The sources of a run on own data: what lies there, what its columns are, and its split."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.own_data.columns import Column, look
from big_retrieval.own_data.files import find
from big_retrieval.own_data.judged import judged_sources
from big_retrieval.own_data.reading import SplitReading
from big_retrieval.own_data.roles import Roles, Said, decide
from big_retrieval.own_data.splits import FoundData, by_column
from big_retrieval.own_data.splitting import RecordKeys, split, tell_apart
from big_retrieval.own_data.tasks import TrainingTask

log = logging.getLogger(__name__)
FOLDER = "data"  # in the run folder
FEW_ASKED = 20  # records for validation below which a user is warned
LEAST = 10  # records that a run takes


def table_task(data: str, said: Said, workdir: Path) -> TrainingTask:
    """The task of files whose rows are records.

    Args:
      data: a file, folder or pattern.
      said: what the columns are.
      workdir: the run folder; rows that no source reads as they are are written below it.

    Raises:
      UserError: nothing to train on, or columns that cannot be told apart.
    """
    found, _, columns = looked_at(data, said, leave_out=workdir)
    roles = decide(columns, said, Path(data).name or data)
    for line in roles.lines:
        log.info(line)
    folder, limit = workdir / FOLDER, 0.0
    durable.make_folder(folder)
    if roles.kind == "clicks":
        sources, records, limit = judged_sources(found, roles, columns, folder)
    else:
        sources, records = _sources(found, roles, columns, folder)
    image = columns.get(roles["image"])
    damaged = image.broken / max(1, image.whole + image.broken) if image else 0.0
    return TrainingTask(roles, columns, sources, records, damaged, limit=limit)


def looked_at(
    data: str, said: Said, order: Sequence[str] = ("train",), leave_out: Path | None = None
) -> tuple[FoundData, str, dict[str, Column]]:
    """What lies at a path, which is told; the name of a split, and its columns by a sample.

    Args:
      data: a file, folder or pattern.
      said: what the columns are.
      order: of splits; the first one that is there is sampled.
      leave_out: a folder whose files do not count.

    Raises:
      UserError: there are no data, or nothing that training or an evaluator compares.
    """
    found = by_column(find(data, leave_out=leave_out))
    name = next(each for each in order if each in found.splits)
    files = found.splits[name]
    columns = look(files.table, files.root, name)
    for line in (_summary(found, data), *found.notes):
        log.info(line)
    if not columns:
        first = files.table.place(0)
        raise UserError(f"{data}: none of the sampled rows can be read, such as {first}.")
    if found.form == "pictures" and "captions" not in columns and said.text is None:
        raise UserError(
            f"{data} holds {counted(len(files.table), 'picture')} and no captions: put "
            "a text file beside each (cat.txt beside cat.jpg, a caption a line), give a table of "
            "files and captions, or take the names of the files or of their folders as captions by "
            "--text=name or --text=folder."
        )
    if "positive_ctxs" in columns:
        raise UserError(
            f"{data} has passages in DPR's form: give them to a config as config.Dpr "
            "(docs/DATA.md, Text retrieval), or write a question and an answer a line."
        )
    return found, name, columns


def _summary(found: FoundData, data: str) -> str:
    counts = ", ".join(f"{len(each.table):,} for {name}" for name, each in found.splits.items())
    if len(found.splits) == 1:
        counts = counted(len(found.train.table), "record")
    return f"data {data}: {found.form}, {counts}"


def _sources(
    found: FoundData, roles: Roles, columns: dict[str, Column], folder: Path
) -> tuple[dict[str, Source], int]:
    """A source for each split, and how many records the training has.

    One for validation is split off where none is named.
    """
    made = {
        name: SplitReading(name, each, roles, columns, sampled=name == "train")
        for name, each in found.splits.items()
    }
    keys = {name: usable(each, len(made) > 1) for name, each in made.items()}
    tell_apart(keys.values())
    rows = {name: np.array(each.rows, np.int64) for name, each in keys.items()}
    _check_enough(keys["train"])
    for name in keys.keys() - {"train"}:
        _warn_of_copies(name, keys[name], keys["train"])
    if "validation" not in rows:
        rows["train"], rows["validation"] = _split(keys["train"])
        made["validation"] = replace(made["train"], name="validation")
        keys["validation"] = keys["train"]
    sources: dict[str, Source] = {}
    records = {}
    for name, chosen in rows.items():
        if not len(chosen):
            raise UserError(f"none of the records for {name} is usable; correct the files.")
        sources[name], records[name] = made[name].source(chosen, keys[name], folder)
    if records["validation"] < FEW_ASKED:
        log.warning(
            f"{counted(records['validation'], 'record')} for validation are few: the fewer, the "
            "easier one is told from the others, and the less its numbers say"
        )
    return sources, records["train"]


def usable(reading: SplitReading, several: bool) -> RecordKeys:
    """The usable records of a split; tells how many are left out and why.

    Args:
      reading: of the split.
      several: whether there are other splits.
    """
    keys = reading.keys()
    for why, count in keys.dropped.items():
        of = f" for {reading.name}" if several else ""
        log.info(f"{count:,} records{of} {why}: left out")
    return keys


def _check_enough(keys: RecordKeys) -> None:
    """Raises a UserError where too few records can be trained on."""
    if len(keys.rows) < LEAST:
        dropped = sum(keys.dropped.values())
        more = f" ({dropped:,} others are not usable: see above)" if dropped else ""
        raise UserError(
            f"{counted(len(keys.rows), 'usable record')}{more}: training compares records with "
            f"each other and needs at least {LEAST} of them: give more data."
        )


def _warn_of_copies(name: str, keys: RecordKeys, train: RecordKeys) -> None:
    """Says how many records are trained on, too: by their image, or else by their first text."""
    what = "image" if any(train.image) else "text"
    own, known = (x.image if what == "image" else [y[0] for y in x.texts] for x in (keys, train))
    shared = len(own) - sum(map(set(known).isdisjoint, ([x] for x in own)))
    if shared:
        log.warning(
            f"{shared:,} of {len(own):,} records for {name} have the {what} of one that is trained "
            "on: their numbers say little; leave them out, or name no splits"
        )


def _split(keys: RecordKeys) -> tuple[np.ndarray, np.ndarray]:
    """The rows for training and for validation."""
    train, validation, apart = split(keys)
    if not len(validation):
        raise UserError(
            f"all {counted(len(keys.rows), 'record')} share one text, so that none can be told "
            "from another; training needs records that differ."
        )
    log.info(
        f"{len(validation):,} records are split off for validation, {len(train):,} are trained on: "
        f"{apart}"
    )
    return train, validation


def counted(count: int, what: str) -> str:
    """A number with what it counts, such as "1 record" or "2 records"."""
    return f"{count:,} {what}{'s' * (count != 1)}"
