"""The configuration of a trained model that is to be evaluated on other files than its own."""

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from big_retrieval.config import Config, Pairs, Retrieval, Tar
from big_retrieval.data.build import make_source
from big_retrieval.data.formats import open_files
from big_retrieval.data.formats.records import IMAGE, TEXT, Records
from big_retrieval.errors import Damaged, UserError

log = logging.getLogger(__name__)
NAME = "data"  # of the evaluator
TRIES = 20  # rows of which the first that can be read tells the columns


@dataclass(frozen=True)
class ColumnFlags:
    """Columns that the user names; "": the model's own.

    Attributes:
      image: of the images, of a model of images and texts.
      text: of their texts.
      query: of the queries, of a model of two texts.
      document: of the documents.
      separator: between several texts in one cell; "": one is one.
    """

    image: str = ""
    text: str = ""
    query: str = ""
    document: str = ""
    separator: str = ""


def on_files(config: Config, files: str, flags: ColumnFlags) -> Config:
    """The same with one evaluator: retrieval between the fields of a query and of a document.

    Args:
      config: of a trained model.
      files: a path or pattern, as `Pairs.path`; of tar shards, as `Tar.path`.
      flags: columns that the user names.

    Raises:
      UserError: the files are missing or lack a column, or the model compares something else than
        images and texts.
    """
    _check_files(files)
    query, document = (_field(config, side) for side in ("query", "document"))
    kinds = {config.fields[name].modality: name for name in (query, document)}
    tar = files.endswith(".tar")
    if kinds.keys() == {"image", "text"}:
        _refuse(flags, ("query", "document"), "image", "text")
        if tar:
            source: Any = Tar(path=files, text=flags.text or Tar.text)
            source = dataclasses.replace(source, image=(flags.image,)) if flags.image else source
        else:
            trained = config.data if isinstance(config.data, Pairs) else Pairs()
            columns = _columns(files)
            names = {
                "image": (flags.image, trained.image, IMAGE),
                "text": (flags.text, trained.text, TEXT),
            }
            chosen = [_chosen(flag, each, columns, files) for flag, each in names.items()]
            source = Pairs(path=files, image=chosen[0], text=chosen[1], separator=flags.separator)
        columns_of = {kinds["image"]: IMAGE, kinds["text"]: TEXT}
    elif kinds.keys() == {"text"}:
        _refuse(flags, ("image", "text", "separator"), "query", "document")
        columns = _columns(files)
        columns_of = {
            name: _chosen(flag, (getattr(flags, flag), config.fields[name].columns()["column"]),
                          columns, files)
            for flag, name in (("query", query), ("document", document))
        }  # fmt: skip
        source = Pairs(path=files, image="", text=columns_of[query])
    else:
        raise UserError(
            f"--data is for models of images and texts, and this one compares {query} "
            f"({config.fields[query].type}) with {document} ({config.fields[document].type}); name "
            "the data in an evaluator of a config."
        )
    fields = {**config.fields}
    for name, column in columns_of.items():
        fields[name] = _read_from(fields[name], column)
    part = Retrieval(data=source, query=query, document=document)
    return dataclasses.replace(config, fields=fields, evals={NAME: part})


def _field(config: Config, side: str) -> str:
    """The first field of a side."""
    first, *others = config.side(side)
    if others:
        log.info(f"of the {side}, {first} is read and {', '.join(others)} left out")
    return first


def _read_from(field: Any, column: str) -> Any:
    """A field that reads another column and no titles, which new files may not have."""
    changed: Mapping[str, str] = {"title": ""} if getattr(field, "title", "") else {}
    return dataclasses.replace(field, column=column, **changed)


def _check_files(files: str) -> None:
    """Raises a UserError where there is no such file, or a folder that is no data set."""
    found, missing = open_files.expand(files)
    if missing:
        raise UserError(f"--data: there is no file {missing[0]}; check the path.")
    for path in found:
        if path.is_dir() and not (path / "dataset.json").exists():
            raise UserError(
                f"--data: {path} is a folder without dataset.json; give a table of images and "
                "texts (.csv, .tsv, .jsonl, .parquet, .npz), tar shards, or a folder that "
                "`big-retrieval data convert` made. Of pictures with text files, `big-retrieval "
                f"train --data={path} --workdir=NEW --plan` writes the tables NEW/data/*.jsonl, to "
                'be given as --data="NEW/data/*.jsonl" --image=image --text=captions.'
            )


def _columns(files: str) -> list[str]:
    """The columns of a file, as far as its first row that can be read tells."""
    # Neither of images nor of texts, which are yet to be chosen.
    table = cast(Records, make_source(Pairs(path=files, image="", text=""))).table
    problem = None
    for index in range(min(TRIES, len(table))):
        try:
            return sorted(table.row(index))
        except Damaged as found:
            problem = problem or found
    raise UserError(f"--data: no record of {files} can be read: {problem or 'it has none'}.")


def _chosen(flag: str, names: Sequence[str], columns: Sequence[str], files: str) -> str:
    """The column that the user names, or the first of the others that is there."""
    given, *others = names
    known = next((name for name in ([given] if given else others) if name in columns), "")
    if not known:
        asked = given or others[0]
        raise UserError(
            f"{files} has no column {asked!r}; it has {', '.join(columns)}: say which one is the "
            f"{flag} with --{flag}=COLUMN."
        )
    return known


def _refuse(flags: ColumnFlags, wrong: Sequence[str], *right: str) -> None:
    """Raises a UserError for a flag of the other kind of model."""
    for name in wrong:
        if getattr(flags, name):
            here = " and ".join(f"--{each}=COLUMN" for each in right)
            raise UserError(
                f"--{name} is not for this model, whose columns are named with {here}; leave it "
                "out."
            )
