"""Own image-text pairs: one JSON object a line with an image's path and its texts."""

import json
import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data import images
from big_retrieval.data.sources import Record, as_texts
from big_retrieval.errors import UserError


class JsonLines:
    """Records from a file of lines like {"image": "cats/1.jpg", "captions": ["a cat", "a pet"]}.

    Only the place of every line is held in memory (24 bytes each). A record has the columns of its
    line under their own names, the image decoded to uint8 [H, W, 3], the text as a tuple of str,
    and an `id` where the line has none. Empty lines are skipped.

    Args:
      path: the file.
      image: the key of the image's path.
      text: the key of the text or list of texts; "" where the lines have none.
      root: the folder that image paths start from; None: the file's own.

    Raises:
      UserError: there is no such file or it has no lines.
    """

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        image: str = "image",
        text: str = "captions",
        root: str | os.PathLike[str] | None = None,
    ):
        self._path = Path(path).absolute()
        self._root = Path(root).absolute() if root is not None else self._path.parent
        self._image, self._text = image, text
        self.name = self._path.stem
        if not self._path.is_file():
            raise UserError(f"There is no file {self._path}; give the path of a JSON Lines file.")
        self._lines = _index(self._path)
        if not len(self._lines):
            raise UserError(f"{self._path} has no lines; write one JSON object a line.")
        self._open()

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> Record:
        record = self._read(index)
        if self._text:
            record[self._text] = self._texts(record, index, self._text)
        record[self._image] = self._load(record[self._image], index)
        record.setdefault("id", f"{self.name}-{index:06d}")
        return record

    def captions(self) -> Iterator[str]:
        """All texts of the text column, in the file's order; opens no image."""
        for index in range(len(self) if self._text else 0):
            yield from self.texts(index, self._text)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one record; opens no image.

        Raises:
          UserError: the line is no JSON object or lacks the column.
        """
        return self._texts(self._read(index), index, column)

    def value(self, index: int, column: str) -> Any:
        """One value of a record as it stands in the line; opens no image.

        Raises:
          UserError: the line is no JSON object or lacks the column.
        """
        return self._column(self._read(index), index, column)

    def _place(self, index: int) -> str:
        return f"{self._path}, line {self._lines[index, 2]}"

    def _read(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"{self._path} has records 0 to {len(self) - 1}, not {index}.")
        start, length, _ = self._lines[index].tolist()
        try:
            record = json.loads(os.pread(self._file, length, start))
        except ValueError as error:
            raise UserError(f"{self._place(index)} is not JSON ({error}).") from error
        if not isinstance(record, dict):
            raise UserError(f"{self._place(index)} is not a JSON object with keys.")
        for key in filter(None, (self._image, self._text)):
            self._column(record, index, key)
        return record

    def _column(self, record: Record, index: int, column: str) -> Any:
        if column not in record:
            known = ", ".join(sorted(record))
            raise UserError(f"{self._place(index)} has no {column!r}; it has {known}.")
        return record[column]

    def _texts(self, record: Record, index: int, column: str) -> tuple[str, ...]:
        return as_texts(self._column(record, index, column), column, self._place(index))

    def _load(self, path: Any, index: int) -> np.ndarray:
        try:
            return images.decode((self._root / path).read_bytes())  # [H, W, 3]
        except (OSError, TypeError):
            raise UserError(
                f"{self._place(index)} names the image {path!r}, which cannot be read under "
                f"{self._root}."
            ) from None
        except ValueError as error:
            raise UserError(f"{self._place(index)}: {self._root / path} is {error}.") from error


def _index(path: Path) -> np.ndarray:
    """Start, length in bytes and number of every line that is not empty: int64 [n, 3]."""
    found: list[np.ndarray] = []
    part: list[tuple[int, int, int]] = []
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                part.append((start, len(line), number))
            start += len(line)
            if len(part) == 65536:  # tuples take five times the memory of the array
                found.append(np.array(part, np.int64))
                part = []
    found.append(np.array(part, np.int64).reshape(-1, 3))
    return np.concatenate(found)  # [n, 3]
