"""Sources of texts alone, whose records are made of a file's rows by a function."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.negatives import read_negatives
from big_retrieval.data.sources import Record, as_texts, column_of
from big_retrieval.errors import Damaged

Read = Callable[[Record, str], Record]  # from a row and its place; raises Damaged


class Passages:
    """Records with queries, documents and negatives.

    Args:
      table: the rows.
      read: makes a record of a row; can be pickled.
    """

    classes: Mapping[str, tuple[str, ...]] = {}
    prompts: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, table: Table, read: Read):
        self.name = table.name
        self._table, self._read = table, read

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, index: int) -> Record:
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} has records 0 to {len(self) - 1}, not {index}.")
        record = self._read(self._table.row(index), self.place(index))
        record.setdefault("id", f"{self.name}-{index:06d}")
        return record

    def place(self, index: int) -> str:
        """Where a record stands, for messages."""
        return self._table.place(index)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one record.

        Raises:
          Damaged: it has none.
          UserError: no record has such a column.
        """
        return as_texts(self.value(index, column), column, self.place(index))

    def value(self, index: int, column: str) -> Any:
        """One value of a record.

        Raises:
          UserError: no record has such a column.
        """
        return column_of(self[index], column, self.name)

    def captions(self) -> Iterator[str]:
        """All texts, in order; leaves damaged records out."""
        for index in range(len(self)):
            try:
                record = self[index]
                for column in ("query", "title", "text"):
                    value = record[column]
                    yield from filter(None, (value,) if isinstance(value, str) else value)
                for item in read_negatives(record["negatives"], "negatives", self.place(index)):
                    yield from filter(None, (item.title, item.text))
            except Damaged:
                continue


def right_ones(found: Sequence[Mapping[str, Any]], positive: str) -> Record:
    """The columns `text` and `title` of a record, and `document_id` where one is known.

    Args:
      found: the right documents, {"title", "text"} each and perhaps "document_id", at least one.
      positive: "first" takes the first, "any" all that have a text, of which training draws one.
    """
    if positive == "first":
        first = found[0]
        known = first.get("document_id")
        given = {} if known is None else {"document_id": known}
        return {"text": first["text"], "title": first["title"], **given}
    found = [each for each in found if each["text"].strip()] or found
    record: Record = {name: tuple(each[name] for each in found) for name in ("text", "title")}
    ids = tuple(each.get("document_id") for each in found)
    return record | ({} if all(each is None for each in ids) else {"document_id": ids})
