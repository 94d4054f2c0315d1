"""Records and their sources.

A record is a dict from column name to value: an image as uint8 [H, W, 3] or `decoding.Encoded`, one
text as str, several as a tuple of str, numbers as int or float. Several threads and (pickled)
processes read a source by index, so that `source[i]` must be a pure function of `i`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from big_retrieval.data.damage import record_at
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config.sources import Source

Record = dict[str, Any]
REQUIRED = ("name", "classes", "prompts", "captions", "__len__", "__getitem__")  # of a source


@runtime_checkable
class RecordSource(Protocol):
    """A fixed number of records, read by index.

    Optional methods, which the functions of this module call if they exist:

    * `texts(index, column) -> tuple[str, ...]` and `value(index, column) -> Any`, without reading
      images (`texts_of`, `value_of`)
    * `cell(index, column) -> Any` (`cell_of`)
    * `title(index, column)`, of a source of single texts (`title_of`)
    * `place(index) -> str`, the location of a record for messages (`place_of`)
    * `order(seed) -> Order`, of a source that is not shuffled as a whole (`build.make_order`)
    * `fingerprint: str`, a digest of all records; "" if not known, or if the config determines them
      (`fingerprint_of`)
    """

    @property
    def name(self) -> str:
        """Short name for logs and record ids."""
        ...

    @property
    def classes(self) -> Mapping[str, tuple[str, ...]]:
        """Label column -> names of its classes; the column holds indices into them."""
        ...

    @property
    def prompts(self) -> Mapping[str, tuple[str, ...]]:
        """Label column -> prompts, in which {} stands for a class name."""
        ...

    def __len__(self) -> int:
        """Returns the number of records."""
        ...

    def __getitem__(self, index: int) -> Record:
        """Returns record `index`, 0 <= index < len; called from several threads.

        Raises:
          Damaged: this record cannot be used.
        """
        ...

    def captions(self) -> Iterator[str]:
        """Yields all texts of the source, in order and without decoding images."""
        ...


class BaseSource:
    """Base class of the package's sources, without classes and prompts.

    A subclass defines `name`, `__len__` and `__getitem__`. If its images are expensive to read, it
    overrides `value` to read only the requested column.
    """

    name: str
    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Record:
        raise NotImplementedError

    def check_index(self, index: int) -> None:
        """Raises an IndexError if there is no such record."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")

    def place(self, index: int) -> str:
        """Returns the location of a record, for messages."""
        return f"{self.name}, record {index}"

    def value(self, index: int, column: str) -> Any:
        """Returns one value of a record.

        Raises:
          UserError: there is no such column.
        """
        return column_of(self[index], column, self.name)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """Returns the texts of one record.

        Raises:
          Damaged: it has none.
          UserError: there is no such column.
        """
        return as_texts(self.value(index, column), column, self.place(index))

    def captions(self) -> Iterator[str]:
        """Yields no texts."""
        return iter(())


class TextRecords(BaseSource):
    """A source of single texts, such as queries or class prompts.

    Args:
      texts: record i is {column: (texts[i],)}.
      column: column of the texts.
      name: name of the source.
      titles: titles of the texts, returned for any column; empty for none.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        column: str = "captions",
        name: str = "texts",
        titles: Sequence[str] = (),
    ):
        self.name, self._column = name, column
        self._texts, self._titles = tuple(texts), tuple(titles)

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, index: int) -> Record:
        return {self._column: (self._texts[index],)}

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """Returns the text of one record, even if it is empty: n texts give n results."""
        return (as_utf8(self._texts[index]),)

    def title(self, index: int, column: str) -> str:
        """Returns the title of one record; empty for none."""
        return self._titles[index] if self._titles else ""

    def captions(self) -> Iterator[str]:
        """Yields all texts, in order."""
        return iter(self._texts)


def make_source(config: "Source") -> RecordSource:
    """Opens a source of records.

    Raises:
      UserError: its files are missing (the message says how to get them), or a user's source lacks
        a required attribute.
    """
    source = config.build()
    if not isinstance(source, RecordSource):
        missing = sorted(name for name in REQUIRED if not hasattr(source, name))
        raise UserError(
            f"the source of the type {config.type!r} built {source!r:.80}, which has no "
            f"{', '.join(missing)}: return what `RecordSource` of data/sources.py lists, such as "
            "Records(table)."
        )
    return source


def column_of(record: Record, column: str, source: str) -> Any:
    """Returns the value of a column.

    Raises:
      UserError: the record has no such column.
    """
    if column not in record:
        known = ", ".join(sorted(record))
        raise UserError(f"{source}: records have no column {column!r}; they have {known}.")
    return record[column]


def is_absent(value: Any) -> bool:
    """Returns True for None, NaN, a blank text, or a list of these."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return True
    if isinstance(value, list | tuple):
        return all(map(is_absent, value))
    return isinstance(value, str | bytes) and not value.strip()


def as_texts(value: Any, column: str, place: str) -> tuple[str, ...]:
    """Returns one or several texts as a tuple, without empty ones.

    Args:
      value: a text or a sequence of texts; bytes are UTF-8.
      column: name of the column, for messages.
      place: location of the record, for messages.

    Raises:
      Damaged: the value is something else, or all texts are empty.
    """
    texts = (value,) if isinstance(value, str | bytes) else value
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    if not isinstance(texts, list | tuple) or not all(
        text is None or isinstance(text, str | bytes) for text in texts
    ):
        raise Damaged(place, f"{column!r} is {value!r:.80}, not a text or list of texts")
    decoded = (as_utf8(text) for text in texts if text is not None)
    remaining = tuple(text for text in decoded if text and not text.isspace())
    if not remaining:
        raise Damaged(place, f"{column!r} has no text")
    return remaining


def as_utf8(text: str | bytes) -> str:
    """Returns a text that UTF-8 can encode: lone surrogates and invalid bytes are replaced."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def texts_of(source: RecordSource, index: int, column: str) -> tuple[str, ...]:
    """Returns the texts of one record, if possible without reading its images.

    Raises:
      UserError: the record has no such column, or it holds no texts.
    """
    texts = getattr(source, "texts", None)
    with record_at(place_of(source, index)) as place:
        if texts is not None:
            return texts(index, column)
        return as_texts(column_of(source[index], column, source.name), column, place)


def value_of(source: RecordSource, index: int, column: str) -> Any:
    """Returns one value of a record, if possible without reading its images.

    Raises:
      UserError: the record has no such column.
    """
    value = getattr(source, "value", None)
    with record_at(place_of(source, index)):
        if value is not None:
            return value(index, column)
        return column_of(source[index], column, source.name)


def cell_of(source: RecordSource, index: int, column: str) -> Any:
    """Returns the image of a record as its file stores it: a path, bytes or pixels.

    Opens no image file. Returns None if the source does not support it.
    """
    cell = getattr(source, "cell", None)
    if cell is None:
        return None
    with record_at(place_of(source, index)):
        return cell(index, column)


def title_of(source: RecordSource, index: int, column: str) -> Any:
    """Returns the title, or the titles, of one record; None if it lacks the column."""
    title = getattr(source, "title", None)
    if title is not None:
        return title(index, column)
    try:
        return value_of(source, index, column)
    except Damaged:
        return None


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """Returns at most `most` indices below `count`, evenly spaced from 0 to the last.

    Runs store digests of these records, so that other indices would make them invalid.

    Returns:
      int64 [min(count, most)], ascending.
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def fingerprint_of(source: RecordSource) -> str:
    """Returns the digest of all records; "" if the source has none."""
    return getattr(source, "fingerprint", "")


def place_of(source: RecordSource, index: int) -> str:
    """Returns the location of a record, for messages."""
    place = getattr(source, "place", None)
    return f"{source.name}, record {index}" if place is None else place(index)
