"""Tables as sources: `image` and `captions` of records come from columns of any names."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.tables import Table, check_columns
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.images.limits import MOST_FILE
from big_retrieval.data.sources import (
    Record,
    RecordSource,
    as_texts,
    cell_of,
    is_absent,
    texts_of,
    value_of,
)
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.regular import read_bytes

# A record is an image with its captions (training samples one per epoch), or a caption with its
# image (an epoch has every caption once).
Each = Literal["images", "captions"]
IMAGE, TEXT = "image", "captions"  # columns of records


class Records(RecordSource):
    """Records of a table: `image` (pixels, `Encoded` or None), `captions`, and the other columns.

    Args:
      image: columns of images; the first column with a value is used. A value is a path, the
        content of an image file, an array of pixels, or {"bytes": ..., "path": ...}. Empty for no
        images.
      text: column of one or several texts; empty for no texts.
      separator: separates several texts in a cell; empty for one text per cell.
      classes: label column -> names of its classes.

    Attributes:
      root: absolute folder that image paths start from.
    """

    def __init__(
        self,
        table: Table,
        *,
        image: Sequence[str] = ("image",),
        text: str = "captions",
        separator: str = "",
        root: str | os.PathLike[str] = "",
        classes: Mapping[str, tuple[str, ...]] | None = None,
        name: str = "",
    ):
        self.name = name or table.name
        self.classes = dict(classes or {})
        self.table = table
        self._image, self._text, self._separator = tuple(image), text, separator
        self.root = Path(root).absolute()
        columns = table.columns
        if columns is not None and self._image and not columns & set(self._image):
            check_columns(table, self._image[:1], "image")
        check_columns(table, [text] if text else [], "text")

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> Record:
        self.check_index(index)
        with record_at(self.place(index)):
            return self._record(index)

    def _record(self, index: int) -> Record:
        row = dict.fromkeys(self.table.columns or ()) | self.table.row(index)
        fields: Record = {IMAGE: self._load(index, row)} if self._image else {}
        if self._text:
            fields[TEXT] = self._texts(row, index)
        for key in self._image:
            row.pop(key, None)
        if row.get("id") is None:
            row["id"] = f"{self.name}-{index:06d}"
        return row | fields

    def place(self, index: int) -> str:
        return self.table.place(index)

    @property
    def fingerprint(self) -> str:
        return self.table.fingerprint

    def captions(self) -> Iterator[str]:
        for index in range(len(self) if self._text else 0):
            with contextlib.suppress(Damaged):
                yield from texts_of(self, index, TEXT)

    def value(self, index: int, column: str) -> Any:
        """Returns one value of a row, or its texts; opens no image.

        Raises:
          Damaged: the row has no such column.
        """
        if column == TEXT and self._text:
            return self._texts(self.table.row(index, (self._text,)), index)
        return self._value(self.table.row(index, (column,)), index, column)

    def cell(self, index: int, column: str) -> Any:
        if column != IMAGE or not self._image:
            return None
        row = self.table.row(index, self._image)
        return row.get(self._image_key(row))

    def _image_key(self, row: Record) -> str:
        return next((key for key in self._image if row.get(key) is not None), self._image[0])

    def _value(self, row: Record, index: int, column: str) -> Any:
        columns = self.table.columns or row
        if column not in row and column not in columns:
            raise Damaged(self.place(index), _missing(column, columns))
        return row.get(column)

    def _load(self, index: int, row: Record) -> Any:
        value = self._value(row, index, self._image_key(row))
        return None if is_absent(value) else load_image(value, self.root, self.place(index))

    def _texts(self, row: Record, index: int) -> tuple[str, ...]:
        value = self._value(row, index, self._text)
        if value is None:
            present = (name for name, x in self.table.row(index).items() if x is not None)
            raise Damaged(self.place(index), _missing(self._text, present))
        if self._separator and isinstance(value, str):
            value = [part.strip() for part in value.split(self._separator)]
        return as_texts(value, self._text, self.place(index))


def _missing(column: str, present: Iterable[str]) -> str:
    return f"there is no {column!r}; it has {', '.join(sorted(present))}"


class EachCaption(RecordSource):
    """Every caption of a source as a record, in the order of the source.

    Two captions of one image are two records, so a batch may contain both, each a negative of the
    other. With `config.labels.document="id"`, losses know that both belong to one image. A damaged
    record of the source is one record here, so reading it counts it as damaged.
    """

    def __init__(self, source: RecordSource):
        self._source, self.name = source, source.name
        self.classes, self.prompts = source.classes, source.prompts
        counts = [max(1, len(_captions(source, index))) for index in range(len(source))]
        self._starts = np.cumsum([0, *counts])  # [records of the source + 1]

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _find(self, index: int) -> tuple[int, int]:
        """Returns the index of the source's record, and the index of the caption in it."""
        self.check_index(index)
        record = int(np.searchsorted(self._starts, index, "right")) - 1
        return record, index - int(self._starts[record])

    def __getitem__(self, index: int) -> Record:
        return {**self._source[self._find(index)[0]], TEXT: self._text(index)}

    def _text(self, index: int) -> tuple[str]:
        record, caption = self._find(index)
        return (texts_of(self._source, record, TEXT)[caption],)

    def value(self, index: int, column: str) -> Any:
        if column == TEXT:
            return self._text(index)
        return value_of(self._source, self._find(index)[0], column)

    def cell(self, index: int, column: str) -> Any:
        return cell_of(self._source, self._find(index)[0], column)

    def place(self, index: int) -> str:
        record, caption = self._find(index)
        return f"{self._source.place(record)}, caption {caption + 1}"

    @property
    def fingerprint(self) -> str:
        return self._source.fingerprint

    def captions(self) -> Iterator[str]:
        return self._source.captions()


def _captions(source: RecordSource, index: int) -> tuple[str, ...]:
    try:
        return texts_of(source, index, TEXT)
    except Damaged:
        return ()


def load_image(value: Any, root: Path, place: str) -> Any:
    """Returns the image of a cell, not decoded: `Encoded` or an array.

    Args:
      value: a path, the content of an image file, an array or nested lists of pixels, or
        {"bytes": ..., "path": ...}.

    Raises:
      Damaged: the value is not an image, or the file cannot be read.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes | bytearray | memoryview):
        return Encoded(bytes(value), place)
    if isinstance(value, list):
        return _pixels(value, place)
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise Damaged(place, f"the image is {value!r:.80}, not a path, bytes or an array")
    if "://" in str(value):
        raise Damaged(place, f"the image {str(value)!r:.80} is an address; download it first")
    try:
        path = root / value
        return Encoded(read_bytes(path, MOST_FILE), f"{place}, {value!s:.200}", str(path))
    except (OSError, ValueError, UserError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise Damaged(
            place, f"the image {str(value)!r:.200} cannot be read under {root} ({reason})"
        ) from None


def _pixels(value: list[Any], place: str) -> np.ndarray:
    """Converts nested lists of numbers from 0 to 255 to uint8 [H, W, 3]."""
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0)
    if array.size and array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return array.astype(np.uint8)
    raise Damaged(place, "the image is a list, but not rows of pixels from 0 to 255")
