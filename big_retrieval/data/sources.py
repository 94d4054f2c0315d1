"""Records and their sources.

A record is a dict from column name to value. An image is uint8 [H, W, 3] or `decoding.Encoded`, a
text is a str, several texts are a tuple of str. Several threads and (pickled) processes read a
source by index, so `source[i]` must be a pure function of `i`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.damage import record_at
from big_retrieval.data.order import Order
from big_retrieval.errors import Damaged, UserError

if TYPE_CHECKING:
    from big_retrieval.config.sources import Source

Record = dict[str, Any]


class RecordSource:
    """Base class of sources: a fixed number of records, read by index.

    A subclass defines `name`, `__len__` and `__getitem__`. If its images are expensive to read, it
    overrides `value` to read only the requested column.

    Attributes:
      name: short name for logs and record ids.
      classes: label column -> names of its classes; the column contains indices into them.
      prompts: label column -> prompts with {} for the class name.
    """

    name: str
    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    @property
    def fingerprint(self) -> str:
        """Digest of all records; empty if unknown, or if the config determines them."""
        return ""

    def __len__(self) -> int:
        """Returns the number of records."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> Record:
        """Returns record `index`; raises `Damaged` if it cannot be used. Threads call this."""
        raise NotImplementedError

    def check_index(self, index: int) -> None:
        """Raises an IndexError if there is no such record."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")

    def place(self, index: int) -> str:
        """Returns the location of a record, for messages."""
        return f"{self.name}, record {index}"

    def value(self, index: int, column: str) -> Any:
        """Returns one value of a record, if possible without reading its images."""
        return column_of(self[index], column, self.name)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """Returns the texts of one record; raises `Damaged` if it has none."""
        return as_texts(self.value(index, column), column, self.place(index))

    def title(self, index: int, column: str) -> Any:
        """Returns the title or titles of one record; None for a damaged record."""
        try:
            return value_of(self, index, column)
        except Damaged:
            return None

    def cell(self, index: int, column: str) -> Any:
        """Returns the path, bytes or pixels of a record's image; None if unsupported.

        Opens no image file.
        """
        return None

    def captions(self) -> Iterator[str]:
        """Yields all texts, in order and without decoding images; by default none."""
        return iter(())

    def span(self, index: int) -> tuple[int, int]:
        """Returns the range (start, stop) of records that may replace a damaged record."""
        return 0, len(self)

    def order(self, seed: int) -> Order:
        """Returns the order that maps positions of a run to records."""
        return Order(len(self), seed)


class TextRecords(RecordSource):
    """A source of single texts, such as queries or class prompts.

    Args:
      texts: record i is {column: (texts[i],)}.
      titles: one per text, the same for any column; empty for no titles.
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
        """Returns the text of one record, even an empty text: n texts give n results."""
        return (as_utf8(self._texts[index]),)

    def title(self, index: int, column: str) -> str:
        return self._titles[index] if self._titles else ""

    def captions(self) -> Iterator[str]:
        return iter(self._texts)


def make_source(config: "Source") -> RecordSource:
    """Opens a source of records; raises a UserError if files are missing."""
    source = config.build()
    if not isinstance(source, RecordSource):
        raise UserError(
            f"the source of the type {config.type!r} built {source!r:.80}, not a `RecordSource` "
            "(data/sources.py) such as Records(table)."
        )
    return source


def column_of(record: Record, column: str, source: str) -> Any:
    """Returns the value of a column; raises a UserError if the record has no such column."""
    if column not in record:
        columns = ", ".join(sorted(record))
        raise UserError(
            f"{source}: records have no column {column!r}; they have {columns}. Correct the key of "
            "the field (or of labels, or the evaluator) that names it."
        )
    return record[column]


def is_absent(value: Any) -> bool:
    """Returns True for None, NaN, a blank text, or a list of these."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return True
    if isinstance(value, list | tuple):
        return all(map(is_absent, value))
    return isinstance(value, str | bytes) and not value.strip()


def as_texts(value: Any, column: str, place: str) -> tuple[str, ...]:
    """Returns one or several texts (bytes are UTF-8) as a tuple, without empty texts.

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
    """Returns `source.texts`; any exception of the record becomes `Damaged`."""
    with record_at(source.place(index)):
        return source.texts(index, column)


def value_of(source: RecordSource, index: int, column: str) -> Any:
    """Returns `source.value`; any exception of the record becomes `Damaged`."""
    with record_at(source.place(index)):
        return source.value(index, column)


def cell_of(source: RecordSource, index: int, column: str) -> Any:
    """Returns `source.cell`; any exception of the record becomes `Damaged`."""
    with record_at(source.place(index)):
        return source.cell(index, column)


def evenly_spaced(count: int, limit: int) -> np.ndarray:
    """Returns min(count, limit) ascending indices, int64, evenly spaced from 0 to count - 1.

    Runs store digests of the records at these indices, so the indices must never change.
    """
    return np.unique(np.linspace(0, count - 1, min(count, limit)).astype(np.int64))
