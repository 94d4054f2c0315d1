"""Texts by id: queries or documents that files of triples name by their ids."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from big_retrieval.data.formats.columns import Keys, check_ids, scan
from big_retrieval.data.formats.open_files import file_table, files_of
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.sources import as_utf8
from big_retrieval.data.stores.headerless import tab_reader
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import Damaged, UserError

_compute: Any = pc  # its functions are made when it is imported, which types cannot see
ID_NAMES = ("_id", "id", "docid", "pid", "qid")  # of JSON lines; the first that a line has counts


class Collection:
    """Texts with ids: `id text` or `id text title` a line, tab-separated, or JSON lines.

    The sorted ids and the place of every line are in memory; texts are read when needed.

    Args:
      how_to_get: what the error says if the file is missing.

    Raises:
      UserError: the file is missing or of another kind, or an id is repeated or missing.
    """

    def __init__(self, path: str, how_to_get: str = ""):
        files = files_of(path, how_to_get or "write a file with an id and a text a line")
        self.table = _open(files[0])
        self.name = self.table.name
        if isinstance(self.table, Store) and self.table.damaged:
            self.table = View(self.table, self.table.whole_rows())
        key = _key(self.table)
        ids = _compute.utf8_trim_whitespace(scan(self.table, (key,)).texts[key])
        check_ids(ids, key, self.table.place)
        self.ids, self._keys = ids, Keys(ids)

    def __len__(self) -> int:
        return len(self.table)

    def find(self, number: str, place: str) -> dict[str, str]:
        """Title and text of an id.

        Raises:
          Damaged: there is no such id, or it has no text.
        """
        row = self._keys.find(number.strip())
        if row is None:
            raise Damaged(place, f"{number!r:.60} is not in {self.name}")
        return self.read(row)

    def read(self, row: int) -> dict[str, str]:
        """Title and text of a row.

        Raises:
          Damaged: the row has neither.
        """
        found = self.table.row(row, ("title", "text"))
        values = {name: found.get(name) or "" for name in ("title", "text")}
        if not all(isinstance(value, str) for value in values.values()) or not any(values.values()):
            raise Damaged(self.table.place(row), "there is no title or text")
        return {name: as_utf8(value).strip() for name, value in values.items()}


def _open(path: Path) -> Table:
    if path.suffix.lower() in (".tsv", ".txt"):
        return open_store([path], tab_reader(path, ("id", "text", "title"), least=2))
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return file_table(path)
    raise UserError(f"{path} must be .tsv (id, text and perhaps title) or .jsonl; convert it.")


def _key(table: Table) -> str:
    """The column of ids."""
    first = table.columns or (table.row(0) if len(table) else {})
    for name in ID_NAMES:
        if name in first:
            return name
    raise UserError(f"{table.name} has no ids: name one of {', '.join(ID_NAMES)} in every line.")
