"""What the pipeline asks of a source of records.

A record is a plain dict from column name to value: an image as uint8 [H, W, 3], one text as str,
several as a tuple of str, numbers as int or float. Sources are read by index, from several threads
and (pickled) from several processes, so that `source[i]` must be a pure function of `i`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from big_retrieval.errors import UserError

Record = dict[str, Any]


@runtime_checkable
class Source(Protocol):
    """A fixed number of records, read by index.

    A source whose images cost something to read may also have
    `texts(index: int, column: str) -> tuple[str, ...]` and `value(index: int, column: str) -> Any`;
    `texts_of` and `value_of` use them where they are there.
    """

    @property
    def name(self) -> str:
        """A short name for logs and record ids."""
        ...

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """Label column -> the names of its classes; the column holds indices into them."""
        ...

    @property
    def prompts(self) -> Mapping[str, tuple[str, ...]]:
        """Label column -> prompts in which every {} stands for a class name."""
        ...

    def __len__(self) -> int:
        """The number of records."""
        ...

    def __getitem__(self, index: int) -> Record:
        """Record `index`, 0 <= index < len; a pure function of `index`, safe in threads."""
        ...

    def captions(self) -> Iterator[str]:
        """All texts of the source, in order and without decoding images."""
        ...


class Texts:
    """A source of single texts, such as queries or filled-in class prompts.

    Args:
      texts: the texts; record i is {column: (texts[i],)}.
      column: the column that holds them.
      name: the source's name.
    """

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, texts: Sequence[str], *, column: str = "captions", name: str = "texts"):
        self.name = name
        self._texts = tuple(texts)
        self._column = column

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Record:
        return {self._column: (self._texts[index],)}

    def captions(self) -> Iterator[str]:
        """All texts, in order."""
        return iter(self._texts)


def column_of(record: Record, column: str, source: str) -> Any:
    """The value of a column.

    Raises:
      UserError: the record has no such column.
    """
    if column not in record:
        known = ", ".join(sorted(record))
        raise UserError(f"{source}: records have no column {column!r}; they have {known}.")
    return record[column]


def as_texts(value: Any, column: str, source: str) -> tuple[str, ...]:
    """One or several texts as a tuple.

    Raises:
      UserError: the value is neither a str nor a sequence of at least one str.
    """
    texts = (value,) if isinstance(value, str) else value
    if isinstance(texts, list | tuple) and texts and all(isinstance(text, str) for text in texts):
        return tuple(texts)
    raise UserError(f"{source}: column {column!r} is {value!r:.80}, not a text or list of texts.")


def as_image(value: Any, column: str, source: str) -> np.ndarray:
    """Checks that a value is an image: uint8 [H, W, 3].

    Raises:
      UserError: another type or shape.
    """
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3:
        if value.shape[-1] == 3 and value.size:
            return value
        raise UserError(f"{source}: column {column!r} has shape {value.shape}, not [H, W, 3].")
    raise UserError(f"{source}: column {column!r} is no uint8 image but {type(value).__name__}.")


def texts_of(source: Source, index: int, column: str) -> tuple[str, ...]:
    """The texts of one record, without its images where the source can do so.

    Raises:
      UserError: the record has no such column or it holds no texts.
    """
    texts = getattr(source, "texts", None)
    if texts is not None:
        return texts(index, column)
    return as_texts(column_of(source[index], column, source.name), column, source.name)


def value_of(source: Source, index: int, column: str) -> Any:
    """One value of a record, such as a label, without its images where the source can do so.

    Raises:
      UserError: the record has no such column.
    """
    value = getattr(source, "value", None)
    if value is not None:
        return value(index, column)
    return column_of(source[index], column, source.name)
