"""What the columns of a table hold, by a sample of its rows."""

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from big_retrieval.data.formats.folders import IMAGES
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.images.decoding import decode
from big_retrieval.data.images.limits import MOST_FILE
from big_retrieval.data.sources import evenly_spaced, is_absent
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.regular import read_bytes
from big_retrieval.own_data.roots import LONGEST, SAMPLED, folder_of_images, looks_like_path

FIRST = 2000  # rows that tell whether texts repeat, as queries of judged pairs do
FIGURES = re.compile(r"[-+.,:/ %$€£]*\d[-+\d.,:/ %$€£]*")  # prices, dates, times
YES_OR_NO = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}  # verdicts written as words
NUMBER = 0.95  # share of the values that must be of a kind


@dataclass
class Column:
    """What the sampled rows have in a column.

    Attributes:
      name: of the column.
      rows: sampled rows.
      filled: of them, those with a value.
      files: values that are the path of a file that is there.
      pixels: values that are the content of an image file, or an array of pixels.
      missing: values that look like the path of an image, which is not there.
      addresses: values that are addresses in the network.
      numbers: values that are numbers, or written so.
      texts: values that are texts, or lists of texts.
      words: of all texts.
      count: texts.
      different: values that differ.
      whole: images that were decoded.
      broken: images that begin as such but could not be.
      root: the folder that the files' paths start from.
      sides: the short sides of the decoded images.
      most: the largest number.
      repeats: whether texts come again among the first rows.
    """

    name: str
    rows: int = 0
    filled: int = 0
    files: int = 0
    pixels: int = 0
    missing: int = 0
    addresses: int = 0
    numbers: int = 0
    texts: int = 0
    words: list[int] = field(default_factory=list)
    different: set[Any] = field(default_factory=set)
    whole: int = 0
    broken: int = 0
    root: Path = Path()
    sides: list[int] = field(default_factory=list)
    most: float = 0.0
    repeats: bool = False

    @property
    def images(self) -> int:
        """Values that are images."""
        return self.files + self.pixels

    @property
    def is_image(self) -> bool:
        """Whether most values are images, be they broken."""
        return self.images > 0.5 * max(1, self.filled)

    @property
    def is_number(self) -> bool:
        """Whether nearly all values are numbers."""
        return self.numbers >= NUMBER * max(1, self.filled) and self.filled > 0

    @property
    def is_text(self) -> bool:
        """Whether nearly all values are texts that are neither paths nor addresses nor numbers."""
        others = self.files + self.addresses + self.missing + self.numbers
        return self.texts >= NUMBER * max(1, self.filled) > 0 and others < 0.5 * self.filled

    @property
    def is_yes_or_no(self) -> bool:
        """Whether all values are words such as "true" and "false"."""
        values = ({*x} if isinstance(x, tuple) else {str(x)} for x in self.different)
        return bool(self.different) and all(
            x.lower().strip() in YES_OR_NO for y in values for x in y
        )

    @property
    def is_written_list(self) -> bool:
        """Whether all values are texts such as '["a", "b"]'."""
        found = [x[0].strip() for x in self.different if isinstance(x, tuple) and len(x) == 1]
        return 0 < len(self.different) == len(found) and all(
            text.startswith(("['", '["')) and text.endswith(("']", '"]')) for text in found
        )

    @property
    def mean_words(self) -> float:
        """Words of a text."""
        return float(np.mean(self.words)) if self.words else 0.0

    @property
    def is_category(self) -> bool:
        """Whether few values come again and again, as those of a class do."""
        return self.rows >= 30 and len(self.different) <= 0.2 * self.filled

    def told(self) -> str:
        """The column in a few words."""
        if self.is_image:
            return f"{self.name} (images)"
        if self.addresses > 0.5 * max(1, self.filled):
            return f"{self.name} (addresses)"
        if self.missing > 0.5 * max(1, self.filled):
            return f"{self.name} (image files that are not there)"
        if self.is_number:
            return f"{self.name} (numbers)"
        if self.is_text:
            return f"{self.name} (texts of {self.mean_words:.0f} words)"
        return self.name if self.filled else f"{self.name} (empty)"


def look(table: Table, folder: Path, split: str = "train") -> dict[str, Column]:
    """Samples a table.

    Args:
      table: the rows.
      folder: of the file, near which image paths are looked for.
      split: that the rows are of; of folders alike, the one of its name has the images.

    Returns:
      The columns by name, in alphabetical order.
    """
    rows = []
    for index in evenly_spaced(len(table), SAMPLED).tolist():
        try:
            rows.append(table.row(index))
        except (Damaged, UserError):
            continue
    names = sorted({name for row in rows for name in row})
    found = {name: _look(name, [row.get(name) for row in rows], folder, split) for name in names}
    texts = [name for name, column in found.items() if column.is_text]
    for name, repeats in _repeated(table, texts).items():
        found[name].repeats = repeats
    return found


def _repeated(table: Table, names: Sequence[str]) -> dict[str, bool]:
    """Whether the first rows have texts of these columns several times."""
    seen: dict[str, list[str]] = {name: [] for name in names}
    for index in range(min(FIRST, len(table)) if names else 0):
        try:
            row = table.row(index, names)
        except (Damaged, UserError):
            continue
        for name in names:
            seen[name].append(str(row.get(name)))
    return {name: len(set(values)) < 0.95 * len(values) for name, values in seen.items()}


def _look(name: str, values: Sequence[Any], folder: Path, split: str) -> Column:
    found = Column(name, rows=len(values), root=folder_of_images(values, folder, split))
    for value in values:
        if not _absent(value):
            found.filled += 1
            _add(found, value)
    return found


def _absent(value: Any) -> bool:
    return False if isinstance(value, np.ndarray) else is_absent(value)


def _add(found: Column, value: Any) -> None:
    """Adds what one value is."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    data = content(value, found.root)
    if data is not None:
        found.files += isinstance(value, str)
        found.pixels += not isinstance(value, str)
        _decode(found, data)
        return
    several = [value] if isinstance(value, str) else value
    if isinstance(several, np.ndarray):
        several = several.tolist() if several.dtype.kind in "US" else []
    if isinstance(value, int | float | np.number):
        found.numbers += 1
        found.most = max(found.most, float(value))
        found.different.add(value)
    elif isinstance(value, str) and (as_float(value) is not None or FIGURES.fullmatch(value)):
        found.numbers += 1
        found.texts += 1
        found.words.append(1)
        found.most = max(found.most, as_float(value) or 0.0)
        found.different.add(value)
    elif isinstance(value, str) and "://" in value[:12]:
        found.addresses += 1
    elif isinstance(value, str) and looks_like_path(value):
        found.missing += 1
    elif isinstance(several, list | tuple) and several and all(isinstance(x, str) for x in several):
        found.texts += 1
        found.words += [len(text.split()) for text in several]
        found.different.add(tuple(several))


def content(value: Any, root: Path) -> Any:
    """What a cell holds of an image: its file's content, or an array of pixels; None: it is none.

    A file that cannot be read is b"".
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, np.ndarray):
        return value if value.dtype == np.uint8 and value.ndim in (2, 3) else None
    if isinstance(value, bytes):
        return value if is_image_file(value) else None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or "\n" in value:
        return None
    path = root / value
    if path.suffix.lower() not in IMAGES or not os.path.isfile(path):
        return None
    try:
        return read_bytes(path, MOST_FILE)
    except (OSError, UserError, ValueError):
        return b""


def is_image_file(data: bytes | BinaryIO) -> bool:
    """Whether the bytes, or those of an open file, begin as an image file does."""
    try:
        with Image.open(io.BytesIO(data) if isinstance(data, bytes) else data):
            return True
    except Exception:  # Pillow raises anything
        return False


def _decode(found: Column, data: Any) -> None:
    if isinstance(data, bytes) and not is_image_file(data):
        return  # a look at all records leaves it out
    try:
        pixels = data if isinstance(data, np.ndarray) else decode(data)
    except Exception:  # of a decoder
        found.broken += 1
        return
    found.whole += 1
    found.sides.append(min(pixels.shape[:2]))


def as_float(value: Any) -> float | None:
    """A number, or one that is written as text; None: it is none."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def verdict_of(value: Any) -> float | None:
    """What a cell says on a pair: a number, or 1 or 0 for "yes" or "no"; None: nothing."""
    number = as_float(value)
    return YES_OR_NO.get(str(value).strip().lower()) if number is None else number
