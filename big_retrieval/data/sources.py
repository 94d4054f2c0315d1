"""What the pipeline asks of a source of records.

A record is a plain dict from column name to value: an image as uint8 [H, W, 3] or as
`decoding.Encoded`, one text as str, several as a tuple of str, numbers as int or float. Sources are
read by index, from several threads and (pickled) from several processes, so that `source[i]` must
be a pure function of `i`.
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

    A source whose images cost something to read may also have
    `texts(index: int, column: str) -> tuple[str, ...]` and `value(index: int, column: str) -> Any`;
    `texts_of` and `value_of` use them where they are there, as `cell_of` does with
    `cell(index: int, column: str) -> Any`. One of single texts may have
    `title(index: int, column: str)` for `title_of`. One whose records stand somewhere has
    `place(index: int) -> str` for messages (`place_of`). One that is not shuffled as a whole has
    `order(seed: int) -> Order` (`build.make_order`).
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
        """Record `index`, 0 <= index < len; a pure function of `index`, safe in threads.

        Raises:
          Damaged: this record cannot be used.
        """
        ...

    def captions(self) -> Iterator[str]:
        """All texts of the source, in order and without decoding images."""
        ...


class BaseSource:
    """The base of this package's own sources: no classes, and values of whole records.

    A subclass has `name`, `__len__` and `__getitem__`; one whose images cost something to read has
    a `value` that does not read them.
    """

    name: str
    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Record:
        raise NotImplementedError

    def check_index(self, index: int) -> None:
        """Raises an IndexError where there is no such record."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")

    def place(self, index: int) -> str:
        """Where a record stands, for messages."""
        return f"{self.name}, record {index}"

    def value(self, index: int, column: str) -> Any:
        """One value of a record.

        Raises:
          UserError: there is no such column.
        """
        return column_of(self[index], column, self.name)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one record.

        Raises:
          Damaged: it has none.
          UserError: there is no such column.
        """
        return as_texts(self.value(index, column), column, self.place(index))

    def captions(self) -> Iterator[str]:
        """See `RecordSource`."""
        return iter(())


class TextRecords(BaseSource):
    """A source of single texts, such as queries or filled-in class prompts.

    Args:
      texts: the texts; record i is {column: (texts[i],)}.
      column: the column that holds them.
      name: the source's name.
      titles: of the texts, in any column that is asked for; (): they have none.
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
        """The text of one record, an empty one too: who asks for n texts gets n answers."""
        return (as_utf8(self._texts[index]),)

    def title(self, index: int, column: str) -> str:
        """The title of one record; "": it has none."""
        return self._titles[index] if self._titles else ""

    def captions(self) -> Iterator[str]:
        """All texts, in order."""
        return iter(self._texts)


def make_source(config: "Source") -> RecordSource:
    """Opens a source of records.

    Raises:
      UserError: its files are not there; the sentence says how to get them. Or a user's own source
        lacks what all sources have.
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
    """The value of a column.

    Raises:
      UserError: the record has no such column.
    """
    if column not in record:
        known = ", ".join(sorted(record))
        raise UserError(f"{source}: records have no column {column!r}; they have {known}.")
    return record[column]


def is_absent(value: Any) -> bool:
    """Whether a record has nothing there: None, NaN, a blank text, or a list of nothing else."""
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return True
    if isinstance(value, list | tuple):
        return all(is_absent(each) for each in value)
    return isinstance(value, str | bytes) and not value.strip()


def as_texts(value: Any, column: str, place: str) -> tuple[str, ...]:
    """One or several texts as a tuple, without empty ones; any Unicode.

    Args:
      value: a text or a sequence of texts; bytes are UTF-8.
      column: where it was, for messages.
      place: the record, for messages.

    Raises:
      Damaged: the value is something else, or nothing is left.
    """
    texts = (value,) if isinstance(value, str | bytes) else value
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()
    known = isinstance(texts, list | tuple)
    if not known or not all(text is None or isinstance(text, str | bytes) for text in texts):
        raise Damaged(place, f"{column!r} is {value!r:.80}, not a text or list of texts")
    found = tuple(as_utf8(text) for text in texts if text is not None)
    found = tuple(text for text in found if text and not text.isspace())
    if not found:
        raise Damaged(place, f"{column!r} has no text")
    return found


def as_utf8(text: str | bytes) -> str:
    """A text that can be encoded as UTF-8: lone surrogates and wrong bytes are replaced."""
    if isinstance(text, bytes):
        return text.decode("utf-8", "replace")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def texts_of(source: RecordSource, index: int, column: str) -> tuple[str, ...]:
    """The texts of one record, without its images where the source can do so.

    Raises:
      UserError: the record has no such column or it holds no texts.
    """
    texts = getattr(source, "texts", None)
    with record_at(place_of(source, index)) as place:
        if texts is not None:
            return texts(index, column)
        return as_texts(column_of(source[index], column, source.name), column, place)


def value_of(source: RecordSource, index: int, column: str) -> Any:
    """One value of a record, such as a label, without its images where the source can do so.

    Raises:
      UserError: the record has no such column.
    """
    value = getattr(source, "value", None)
    with record_at(place_of(source, index)):
        if value is not None:
            return value(index, column)
        return column_of(source[index], column, source.name)


def cell_of(source: RecordSource, index: int, column: str) -> Any:
    """What the file of a source holds for a record's image: a path, its bytes, or pixels.

    Opens no image file. None: the source does not say.
    """
    cell = getattr(source, "cell", None)
    if cell is None:
        return None
    with record_at(place_of(source, index)):
        return cell(index, column)


def title_of(source: RecordSource, index: int, column: str) -> Any:
    """The title, or the titles, of one record; None where it lacks the column."""
    title = getattr(source, "title", None)
    if title is not None:
        return title(index, column)
    try:
        return value_of(source, index, column)
    except Damaged:
        return None


def evenly_spaced(count: int, most: int) -> np.ndarray:
    """At most `most` numbers below `count`, evenly spaced from 0 to the last; all if no more.

    Runs and indexes store digests of these records: were the numbers others, they would be refused.

    Returns:
      int64 [min(count, most)], ascending.
    """
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def place_of(source: RecordSource, index: int) -> str:
    """Where a record stands, for messages."""
    place = getattr(source, "place", None)
    return f"{source.name}, record {index}" if place is None else place(index)
