"""`big-retrieval data split`: judged pairs into the four-way split of GCL."""

import dataclasses
import typing
from pathlib import Path
from typing import Any

from absl import flags

from big_retrieval import cli
from big_retrieval.cli.help import meanings_of
from big_retrieval.config.ranges import out_of_range
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.errors import UserError
from big_retrieval.runtime import locks

SEED = flags.DEFINE_integer("seed", 0, "split: of the draw", lower_bound=0)
QUERY_SHARE = flags.DEFINE_float("query_share", 0.8, "split: of the queries, for training")
DOCUMENT_SHARE = flags.DEFINE_float("document_share", 0.5, "split: of the documents, for training")
DEV_SHARE = flags.DEFINE_float("dev_share", 0.2, "split: of the queries, for development")
GROUP = flags.DEFINE_string(
    "group_column", "", "split: documents with the same value in it stay together"
)
for _name in ("query_share", "document_share", "dev_share", "group_column"):
    flags.DEFINE_alias(_name.replace("_", "-"), _name)


def _define(field: dataclasses.Field[Any], hint: Any, meaning: str) -> None:
    """The flag --data.NAME of a key of judged pairs."""
    name, text = f"data.{field.name}", f"split: {meaning}"
    default: Any = field.default
    if typing.get_origin(hint) is tuple:
        flags.DEFINE_list(name, list(default), text)
    elif typing.get_origin(hint) is typing.Literal:
        flags.DEFINE_enum(name, default, list(typing.get_args(hint)), text)
    else:
        kinds = {
            bool: flags.DEFINE_bool,
            float: flags.DEFINE_float,
            str: flags.DEFINE_string,
        }
        kinds[hint](name, default, text)


KEYS = [field for field in dataclasses.fields(Graded) if field.name != "type"]
_hints, _meanings = typing.get_type_hints(Graded), meanings_of(Graded)
for _field in KEYS:
    _define(_field, _hints[_field.name], _meanings[_field.name])


def source_of_flags() -> Graded:
    """The source that the flags --data.NAME describe.

    Raises:
      UserError: no path, or keys that do not go together.
    """
    found = {field.name: flags.FLAGS[f"data.{field.name}"].value for field in KEYS}
    keys: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
    source = Graded(**keys)
    if not source.path:
        raise UserError(
            "--data.path is missing: the file of the pairs (or give --config, whose config.data "
            "has judged pairs)."
        )
    for sentence in (*out_of_range(source, "--data"), *source.check_columns("--data")):
        raise UserError(sentence)
    return source


def split(config: Graded, out: str | None) -> None:
    """Splits judged pairs as the flags say, and prints what came of it.

    Raises:
      UserError: no folder is given, or as `split_files`.
    """
    from big_retrieval.data.judged.four_way import SplitOptions
    from big_retrieval.data.judged.split_files import describe, split_files

    if not out:
        raise UserError("--out is missing: the folder to write the split to.")
    for flag in (QUERY_SHARE, DOCUMENT_SHARE, DEV_SHARE):
        if not 0 < flag.value < 1:
            raise UserError(f"--{flag.name} is {flag.value}; it must be above 0 and below 1.")
    options = SplitOptions(
        SEED.value, QUERY_SHARE.value, DOCUMENT_SHARE.value, DEV_SHARE.value, GROUP.value
    )
    folder = Path(out)
    with cli.owning(locks.in_folder(folder), folder):
        summary = split_files(config.build(), config, options, folder)
    for line in describe(summary):
        print(line)
