"""A trained model's config with an evaluator of other data, as they lie there."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config, Pairs, Ranking, Retrieval
from big_retrieval.data.formats.records import IMAGE, TEXT
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.errors import UserError
from big_retrieval.own_data.beir import is_beir
from big_retrieval.own_data.columns import Column
from big_retrieval.own_data.guess import Said
from big_retrieval.own_data.judged import graded_pairs
from big_retrieval.own_data.reading import SplitReading
from big_retrieval.own_data.roles import Roles, check_said, decide, is_judged
from big_retrieval.own_data.sources import looked_at, usable
from big_retrieval.own_data.splitting import tell_apart

log = logging.getLogger(__name__)
NAME = "data"  # of the evaluator
SIDES = ("query", "document")
ORDER = ("test", "validation", "train")  # the split that counts is the furthest from training
KINDS = {  # kind of data -> what it is, and the flags that name its columns
    "captions": ("images with texts", ("image", "text")),
    "answers": ("queries with documents", ("query", "document")),
    "clicks": ("judged pairs", ("query", "document", "image", "score", "document_id")),
}


def on_data(config: Config, data: str, said: Said, folder: Path, separator: str = "") -> Config:
    """The same with one evaluator, of other data in any form that `train --data` takes.

    Args:
      config: of a trained model.
      data: a file, folder or pattern.
      said: columns that the user names. Of the others, those of the training data count where the
        data have them, and else what `train --data` guesses.
      folder: takes the rows of forms that no source reads as they are, such as pictures with text
        files beside them.
      separator: between several texts in one cell; "": a cell is one text.

    Returns:
      A config whose `evals` are `NAME` alone: retrieval both ways between the model's first field
      of a query and of a document; of judged pairs, a ranking of all documents for each query.

    Raises:
      UserError: no data, no fitting columns, or a model that compares something else.
    """
    if is_beir(Path(data)):
        place = Path(data).absolute()
        raise UserError(
            f"--data: {data} is in BEIR's form, for which there is --beir={place.parent} "
            f"--beir_sets={place.name}."
        )
    fields = {side: config.fields[config.side(side)[0]] for side in SIDES}
    kind = _compared(fields)
    found, split, columns = looked_at(data, said, ORDER)
    files = found.splits[split]
    if len(found.splits) > 1:
        log.info(f"the records for {split} are evaluated on")
    else:
        split = NAME
    name = Path(data).name or data
    check_said(columns, said, name)
    kind = "clicks" if is_judged(columns, said, name) else kind
    _check_flags(said, kind)
    roles = decide(columns, _known(said, kind, config, fields, columns), name, kind)
    told = ", ".join(f"{column} is the {role}" for role, column in roles.columns.items() if column)
    others = ", ".join(f"--{role}" for role in KINDS[kind][1])
    log.info(f"columns: {told} ({others} say others)")
    if kind == "clicks":
        source = graded_pairs(split, files, roles, columns.get(roles["image"]), folder)
        return _ranked(config, source, roles, columns)
    reading = SplitReading(split, files, roles, columns)
    return _paired(config, reading, folder, separator)


def _paired(config: Config, reading: SplitReading, folder: Path, separator: str) -> Config:
    """The config that finds the other half of pairs, both ways, by the first field of each side."""
    keys = usable(reading, several=False)
    tell_apart([keys])
    if not keys.rows:
        raise UserError(f"--data: no record of {reading.files.root} is usable; correct the files.")
    source: Any
    source, _ = reading.source(np.array(keys.rows, np.int64), keys, folder)
    if isinstance(source, Pairs):
        source = replace(source, separator=separator)
    elif separator:
        raise UserError("--separator is for tables: the captions of tar shards have one each.")
    changed, roles = {}, reading.roles
    for side in SIDES:
        name, *others = config.side(side)
        if others:
            log.info(f"of the {side}, {name} is read and {', '.join(others)} left out")
        field: Any = config.fields[name]
        column = IMAGE if field.modality == "image" else TEXT
        column = column if roles.kind == "captions" else roles[side]
        changed[name] = _reading(field, column, reading.columns)
    query, document = changed
    part = Retrieval(data=source, query=query, document=document)
    return replace(config, fields={**config.fields, **changed}, evals={NAME: part})


def _compared(fields: Mapping[str, Any]) -> str:
    """The kind of data that a model of these fields of a query and of a document compares."""
    kinds = {field.modality for field in fields.values()}
    if kinds == {"image", "text"}:
        return "captions"
    if kinds == {"text"}:
        return "answers"
    query, document = (field.type for field in fields.values())
    raise UserError(
        f"--data is for models of images and texts, and this one compares {query} with {document}; "
        "name the data in an evaluator of a config."
    )


def _check_flags(said: Said, kind: str) -> None:
    """Raises a UserError for a flag of another kind of data."""
    what, right = KINDS[kind]
    wrong = next((role for role, name in asdict(said).items() if name and role not in right), "")
    if wrong:
        here = ", ".join(f"--{each}=COLUMN" for each in right)
        raise UserError(
            f"--{wrong} is not for {what}, whose columns are named with {here}; leave it out."
        )


def _known(
    said: Said, kind: str, config: Config, fields: Mapping[str, Any], columns: Mapping[str, Column]
) -> Said:
    """What the user says, and else the columns of the training data, where these data have them."""
    known: dict[str, Any] = {
        role: getattr(config.data, role, None) for role in ("image", "text", "score")
    }
    known |= {side: field.column for side, field in fields.items() if field.modality == "text"}
    fits = {"image": "is_image", "score": "is_number"}
    taken = set(asdict(said).values())
    for role in KINDS[kind][1]:
        name = known.get(role)
        column = columns.get(name) if isinstance(name, str) and name not in taken else None
        if getattr(said, role) is None and getattr(column, fits.get(role, "is_text"), False):
            said = replace(said, **{role: name})
    return said


def _ranked(config: Config, source: Graded, roles: Roles, columns: Mapping[str, Column]) -> Config:
    """The config that ranks all documents of judged pairs, by all fields of a query and of one."""
    changed, texts = {}, []
    for side in SIDES:
        column = roles[side]  # of the side's first field of texts
        for name in config.side(side):
            field: Any = config.fields[name]
            if field.modality == "image":
                changed[name] = replace(field, column=IMAGE)
                missing = "--image" if side == "query" or not roles["image"] else ""
            else:
                changed[name] = _reading(field, column or field.column, columns)
                missing = "" if changed[name].column in columns else f"--{side}"
                texts += changed[name].columns().values()
                column = ""
            if missing:
                raise UserError(
                    f"--data: the model's field {name!r} reads the {field.modality} of a {side}, "
                    f"and no column has it; name it by {missing}=COLUMN."
                )
    source = replace(source, text=tuple(dict.fromkeys(texts)))
    part = Ranking(data=source)
    return replace(config, fields={**config.fields, **changed}, evals={NAME: part})


def _reading(field: Any, column: str, columns: Mapping[str, Column]) -> Any:
    """A field that reads another column, and no titles where there are none."""
    title = getattr(field, "title", "")
    changed = {"title": ""} if title and title not in columns else {}
    return replace(field, column=column, **changed)
