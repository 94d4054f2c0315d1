"""Config of a trained model with one evaluator on other data (`evaluate --data`)."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.auto_config.beir import is_beir
from big_retrieval.auto_config.clicks import graded_pairs
from big_retrieval.auto_config.columns import ColumnChooser, DataFlags, Roles, columns_of
from big_retrieval.auto_config.find import DataSplit
from big_retrieval.auto_config.sources import FOLDER, SplitRecords, open_data
from big_retrieval.config import Config, Ranking, Retrieval
from big_retrieval.data.formats.records import IMAGE, TEXT
from big_retrieval.errors import UserError

log = logging.getLogger(__name__)
NAME = "data"  # of the evaluator
SIDES = ("query", "document")
ORDER = ("test", "validation", "train")  # the first of these in the data is evaluated


def on_data(
    config: Config, data: str, flags: DataFlags, folder: Path, separator: str = ""
) -> Config:
    """Returns the config with one evaluator on data in any form of `train --data`.

    Args:
      flags: columns that the user names. Other roles prefer the columns of the training data.
      separator: separates several texts in a cell; empty for one text per cell.

    Returns:
      A config whose only evaluator is `NAME`: retrieval both ways between the model's first field
      of queries and of documents; for judged pairs, a ranking of all documents per query.
    """
    if is_beir(Path(data)):
        path = Path(data).absolute()
        raise UserError(
            f"--data: {data} is in BEIR's form. Give --beir={path.parent} --beir_sets={path.name}."
        )
    fields = {side: config.fields[config.side(side)[0]] for side in SIDES}
    kind = _kind(fields)
    files = open_data(data, flags, folder)
    name = next(x for x in ORDER if x in files.splits)
    split = files.splits[name]
    if len(files.splits) > 1:
        log.info(f"the records for {name} are evaluated")
    preferred = {} if split.source is not None else _training_columns(config, fields)
    chooser = ColumnChooser(split.table, flags, Path(data).name or data, preferred)
    kind = "clicks" if chooser.is_judged() else kind
    roles = chooser.decide(kind)
    for message in roles.messages:
        log.info(message)
    if kind == "clicks":
        return _ranked(config, split, roles, flags)
    records = SplitRecords(split, roles, flags, separator)
    label = name if len(files.splits) > 1 else "evaluation"
    return _paired(config, label, records, folder / FOLDER)


def _paired(config: Config, name: str, records: SplitRecords, folder: Path) -> Config:
    """Returns the config with retrieval both ways, by the first field of each side."""
    keys = records.usable(name)
    folder.mkdir(parents=True, exist_ok=True)
    source, _ = records.chosen(NAME, np.array(keys.rows, np.int64), keys, folder.absolute())
    changed, roles = {}, records.roles
    for side in SIDES:
        field_name, *unused_fields = config.side(side)
        if unused_fields:
            log.info(f"{side}: uses {field_name}, without {', '.join(unused_fields)}")
        field: Any = config.fields[field_name]
        column = IMAGE if field.modality == "image" else TEXT
        column = column if roles.kind == "captions" else roles[side]
        changed[field_name] = _reading(field, column, columns_of(records.source.table))
    query, document = changed
    evaluator = Retrieval(data=source, query=query, document=document)
    return replace(config, fields={**config.fields, **changed}, evals={NAME: evaluator})


def _kind(fields: dict[str, Any]) -> str:
    modalities = {field.modality for field in fields.values()}
    if modalities == {"image", "text"}:
        return "captions"
    if modalities == {"text"}:
        return "answers"
    query, document = (field.type for field in fields.values())
    raise UserError(
        f"--data is for models of images and texts; this one compares {query} with {document}. "
        "Name the data in an evaluator of a config."
    )


def _training_columns(config: Config, fields: dict[str, Any]) -> dict[str, str]:
    """Returns role -> column of the training data."""
    columns = {role: getattr(config.data, role, None) for role in ("image", "text", "score")}
    columns |= {side: field.column for side, field in fields.items() if field.modality == "text"}
    return {role: name for role, name in columns.items() if name and isinstance(name, str)}


def _ranked(config: Config, split: DataSplit, roles: Roles, flags: DataFlags) -> Config:
    """Returns the config that ranks all documents of judged pairs, by all fields of both sides."""
    changed, texts, columns = {}, [], columns_of(split.table)
    for side in SIDES:
        column = roles[side]  # of the side's first text field
        for name in config.side(side):
            field: Any = config.fields[name]
            if field.modality == "image":
                changed[name] = replace(field, column=IMAGE)
                missing = "" if side == "document" and roles["image"] else "--image"
            else:
                changed[name] = _reading(field, column or field.column, columns)
                missing = "" if changed[name].column in columns else f"--{side}"
                texts += changed[name].columns().values()
                column = ""
            if missing:
                raise UserError(
                    f"--data: no column for the field {name!r}, the {field.modality} of a {side}. "
                    f"Name it: {missing}=COLUMN."
                )
    source = graded_pairs(split, roles, flags.images or "")
    evaluator = Ranking(data=replace(source, text=tuple(dict.fromkeys(texts))))
    return replace(config, fields={**config.fields, **changed}, evals={NAME: evaluator})


def _reading(field: Any, column: str, columns: list[str]) -> Any:
    """Returns a field that reads another column, without titles that the data do not have."""
    title = getattr(field, "title", "")
    changed = {"title": ""} if title and title not in columns else {}
    return replace(field, column=column, **changed)
