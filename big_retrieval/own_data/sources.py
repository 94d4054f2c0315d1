"""The sources of a run on own data: what lies there, what its columns are, and its split."""

import logging
from pathlib import Path

import numpy as np

from big_retrieval.config.data import Pairs, Tar
from big_retrieval.config.sources import Source
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.own_data.columns import Column, look, root_of
from big_retrieval.own_data.files import find
from big_retrieval.own_data.judged import judged_sources
from big_retrieval.own_data.roles import Roles, Said, decide, endings
from big_retrieval.own_data.rows import merged, read_rows, write_rows
from big_retrieval.own_data.splits import DataFiles, FoundData, by_column
from big_retrieval.own_data.splitting import RecordKeys, keys_of, split
from big_retrieval.own_data.tasks import TrainingTask

log = logging.getLogger(__name__)
FOLDER = "data"  # in the run folder
LEAST = 10  # records that a run takes
MANY = 50_000  # records from which a user is told that all are read
SEVERAL = 0.6  # different images a row below which rows of one image are made one record


def table_task(data: str, said: Said, workdir: Path) -> TrainingTask:
    """The task of files whose rows are records.

    Args:
      data: a file, folder or pattern.
      said: what the columns are.
      workdir: the run folder; rows that no source reads as they are are written below it.

    Raises:
      UserError: nothing to train on, or columns that cannot be told apart.
    """
    found = by_column(find(data, leave_out=workdir))
    columns = look(found.train.table, found.train.root)
    for line in (_summary(found, data), *found.notes):
        log.info(line)
    if not columns:
        first = found.train.table.place(0)
        raise UserError(f"{data}: none of the sampled rows can be read, such as {first}.")
    if found.form == "pictures" and "captions" not in columns and said.text is None:
        raise UserError(
            f"{data} holds {counted(len(found.train.table), 'picture')} and no captions: put "
            "a text file beside each (cat.txt beside cat.jpg, a caption a line), give a table of "
            "files and captions, or take the names of the files or of their folders as captions by "
            "--text=name or --text=folder."
        )
    if "positive_ctxs" in columns:
        raise UserError(
            f"{data} has passages in DPR's form: train with a config whose data are config.Dpr "
            "(docs/DATA.md, Text retrieval), or write a question and an answer a line."
        )
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
    keys, roots = {}, {}
    for name, each in found.splits.items():
        roots[name] = _image_root(name, each, roles, columns)
        keys[name] = _keys(each, roles, columns, roots[name])
        for why, count in keys[name].dropped.items():
            of = f" for {name}" if len(found.splits) > 1 else ""
            log.info(f"{count:,} records{of} {why}: left out")
    rows = {name: np.array(each.rows, np.int64) for name, each in keys.items()}
    _check_enough(keys["train"])
    for name in keys.keys() - {"train"}:
        _warn_of_copies(name, keys[name], keys["train"])
    if "validation" not in rows:
        rows["train"], rows["validation"] = _split(keys["train"])
    sources: dict[str, Source] = {}
    records = 0
    for name, chosen in rows.items():
        if not len(chosen):
            raise UserError(f"none of the records for {name} is usable; correct the files.")
        of = name if name in found.splits else "train"
        groups = _of_one_image(chosen, keys[of])
        if roles.kind != "captions" or files_are_tars(found.splits[of]):
            groups = []
        if groups:
            log.info(
                f"{len(chosen):,} rows for {name} have {len(groups):,} different images: the rows "
                "of an image are one record with several captions"
            )
        records = records or len(groups or chosen)
        sources[name] = _source(
            name, found.splits[of], chosen, groups, roles, columns, roots[of], folder
        )
    return sources, records


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


def _image_root(name: str, files: DataFiles, roles: Roles, columns: dict[str, Column]) -> Path:
    """The folder that image paths of a split start from; splits may have one each."""
    column = columns.get(roles["image"])
    if column is None or not column.files:
        return files.root
    return column.root if name == "train" else root_of(files.table, column.name, files.root, name)


def _keys(files: DataFiles, roles: Roles, columns: dict[str, Column], root: Path) -> RecordKeys:
    if len(files.table) > MANY:
        log.info(f"reading all {len(files.table):,} records once, to keep copies apart ...")
    texts = [roles[role] for role in ("text", "query", "document") if roles[role]]
    image = endings(columns) if files_are_tars(files) else (roles["image"],)
    image = image if roles["image"] else ()
    return keys_of(files.table, image, texts, root, roles["verdict"], roles.least)


def _of_one_image(rows: np.ndarray, keys: RecordKeys) -> list[list[int]]:
    """The rows of each image, in their order; [] where most images have a row of their own."""
    image = dict(zip(keys.rows, keys.image, strict=True))
    groups: dict[int, list[int]] = {}
    for row in rows.tolist():
        groups.setdefault(image[row], []).append(row)
    return list(groups.values()) if len(groups) < SEVERAL * len(rows) else []


def files_are_tars(files: DataFiles) -> bool:
    """Whether the rows are samples of tar shards."""
    return files.pattern.endswith(".tar")


def counted(count: int, what: str) -> str:
    """A number with what it counts, such as "1 record" or "2 records"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def _source(
    name: str, files: DataFiles, rows: np.ndarray, groups: list[list[int]], roles: Roles,
    columns: dict[str, Column], root: Path, folder: Path,
) -> Source:  # fmt: skip
    """The source of some rows, which are written where no source reads the files as they are."""
    image, text = roles["image"], roles["text"] or roles["document"]
    numbers = rows if files.chosen is None else files.chosen[rows]
    if files_are_tars(files):
        endings_ = tuple(dict.fromkeys((image, *endings(columns))))
        chosen = _write_rows(folder, name, numbers)
        return Tar(path=files.pattern, image=endings_, text=text, rows=chosen)
    if files.pattern and root == files.root and not groups:
        chosen = _write_rows(folder, name, numbers)
        return Pairs(path=files.pattern, image=image, text=text, rows=chosen)
    found = read_rows(files.table, rows, image, root)
    if groups:
        each = (list(read_rows(files.table, group, image, root)) for group in groups)
        found = merged(filter(None, each), image, text)
    path = write_rows(folder / name, found, image)
    return Pairs(path=str(path.absolute()), image=image, text=text)


def _write_rows(folder: Path, name: str, rows: np.ndarray) -> str:
    """Writes the numbers of rows; the path of their file."""
    path = folder / f"{name}_rows.npy"
    np.save(path, rows)
    return str(path.absolute())
