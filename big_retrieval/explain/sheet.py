"""The sheet that people rate: items, the strongest words of each model, empty cells.

After VDR, appendix H: are the words relevant, do they name what matters, and of several models,
whose words describe the item best. Models are anonymous; items, models and words are in random
order, another one for each rater.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from big_retrieval.data.skipped import LeftOut
from big_retrieval.errors import UserError
from big_retrieval.explain.items import open_data, reader_of, values_of
from big_retrieval.explain.words import check_field, lexical_fields, strongest
from big_retrieval.io.durable import write_bytes
from big_retrieval.io.manifest import to_json

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

TOP = 5  # words of an item and model
PICTURE = 512  # pixels of the longer side at most
WORD, RELEVANT, ENOUGH, BEST = "word_", "relevant_", "enough", "best"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what formulas begin with in spreadsheets


@dataclass(frozen=True)
class SheetOptions:
    """What is to be rated.

    Attributes:
      data: see `items.open_data`.
      field: of the items; None: the first image field, else the first text field.
      count: items, drawn from the records; fewer where some of these are damaged.
      seed: of the draw and of all orders.
      raters: files, each in an order of its own.
    """

    data: str
    field: str | None
    count: int
    seed: int
    raters: int


@dataclass(frozen=True)
class _Row:
    """An item and the words of one model.

    Attributes:
      code: names the row, and neither the model nor, by itself, the item.
      item: its number in the sheet.
      shown: the text, or the file of the picture.
      words: strongest first.
      model: the model's folder.
      record: where the item comes from.
    """

    code: str
    item: int
    shown: str
    words: Sequence[str]
    model: str
    record: int


def write(models: Mapping[str, "TrainedModel"], options: SheetOptions, out: Path) -> list[Path]:
    """Writes the sheets, the pictures and the key.

    Args:
      models: folder -> model.
      options: what is to be rated.
      out: the CSV file; with several raters `-1`, `-2`, ... are added to its name. Pictures go to
        the folder `<name>_pictures`, the key, which raters must not see, to `<name>.key.json`.

    Returns:
      The sheets, then the key.

    Raises:
      UserError: a model has no such field, there are too few records, none can be used, or the file
        has no folder.
    """
    if not out.parent.is_dir():
        raise UserError(f"--out {out} is in no folder that exists; make it first.")
    first = next(iter(models.values()))
    field = options.field or next(
        iter([*lexical_fields(first.config, "image"), *lexical_fields(first.config)]), ""
    )
    for model in models.values():
        check_field(model.config, field)
    rows = _rows(models, field, options, out)
    sheets = []
    for rater in range(options.raters):
        rng = np.random.default_rng((options.seed, rater))
        path = out if options.raters == 1 else out.with_stem(f"{out.stem}-{rater + 1}")
        write_bytes(path, _csv(rows, len(models) > 1, rng).encode("utf-8-sig"))
        sheets.append(path)
    key = out.with_suffix(".key.json")
    codes = {r.code: {"model": r.model, "item": r.item, "record": r.record} for r in rows}
    about = {"data": options.data, "field": field, "seed": options.seed, "codes": codes}
    write_bytes(key, to_json(about))
    return [*sheets, key]


def _rows(
    models: Mapping[str, "TrainedModel"], field: str, options: SheetOptions, out: Path
) -> list[_Row]:
    """A row for each item and model; writes the pictures."""
    any_model = next(iter(models.values()))
    reader = reader_of(any_model, field)
    source = open_data(any_model.config, options.data, texts=reader.field.modality == "text")
    if options.count > len(source):
        raise UserError(f"--count is {options.count}, but {source.name} has {len(source)} records.")
    rng = np.random.default_rng(options.seed)
    records = np.sort(rng.choice(len(source), options.count, replace=False))
    codes = rng.permutation(options.count * len(models)) + 1
    rows: list[_Row] = []
    items: dict[int, Any] = {}
    left_out = LeftOut("records")
    for record, value in values_of(source, reader, records, left_out):
        items.setdefault(record, value)  # of several texts the first
    left_out.close()
    for item, (record, value) in enumerate(items.items(), 1):
        shown = _show(value, item, out)
        for folder, model in models.items():
            words = [word for word, _ in strongest(model, value, field, TOP)]
            code = f"{codes[len(rows)]:04d}"
            rows.append(_Row(code, item, shown, words, folder, record))
    return rows


def _show(value: Any, item: int, out: Path) -> str:
    """A text as it is; the name of the file that a picture is written to."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " · ".join(filter(None, value))
    folder = out.with_name(f"{out.stem}_pictures")
    folder.mkdir(exist_ok=True)
    image = Image.fromarray(np.ascontiguousarray(value))
    image.thumbnail((PICTURE, PICTURE))
    image.save(folder / f"{item:04d}.png")
    return f"{folder.name}/{item:04d}.png"


def _csv(rows: Sequence[_Row], several: bool, rng: np.random.Generator) -> str:
    """Rows of one rater: items shuffled, models in each, and words in each."""
    names = [f"{kind}{i}" for i in range(1, TOP + 1) for kind in (WORD, RELEVANT)]
    header = ["code", "item", "shown", *names, ENOUGH, *([BEST] if several else [])]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, header, restval="", lineterminator="\n")
    writer.writeheader()
    place = rng.permutation(max(row.item for row in rows))
    within = rng.permutation(len(rows))
    order = sorted(range(len(rows)), key=lambda i: (place[rows[i].item - 1], within[i]))
    for row in (rows[i] for i in order):
        words = [row.words[int(i)] for i in rng.permutation(len(row.words))]
        cells = {f"{WORD}{i}": as_cell(_line(word)) for i, word in enumerate(words, 1)}
        shown = as_cell(_line(row.shown))
        writer.writerow({"code": row.code, "item": row.item, "shown": shown, **cells})
    return stream.getvalue()


def _line(text: str) -> str:
    """Without carriage returns, which Python's csv does not quote and readers take for new rows."""
    return text.replace("\r", " ")


def as_cell(text: str) -> str:
    """A text of the data as a cell that no spreadsheet takes for a formula.

    Raters open sheets in spreadsheets, where "=HYPERLINK(...)" of a caption would be run. `of_cell`
    undoes it.
    """
    return f"'{text}" if text.startswith(FORMULA) else text


def of_cell(cell: str) -> str:
    """The text of a cell."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA) else cell


def read_key(path: Path) -> dict[str, str]:
    """Code -> folder of the model, from a key file.

    Raises:
      UserError: it cannot be read or is no key.
    """
    try:
        codes = json.loads(path.read_text(encoding="utf-8"))["codes"]
        return {code: str(row["model"]) for code, row in codes.items()}
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no key of a sheet; give the .key.json beside it.") from None
