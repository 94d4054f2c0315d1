"""Texts by id, for triples of ids."""

from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from big_retrieval.data.formats.columns import Keys, check_ids, scan
from big_retrieval.data.formats.open_files import file_table, find_files
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.sources import as_utf8
from big_retrieval.data.stores.headerless import tab_reader
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import Damaged, UserError

_compute: Any = pc  # pyarrow generates its functions at import; type checkers miss them
ID_NAMES = ("_id", "id", "docid", "pid", "qid")  # of JSON lines; the first present name counts


class Collection:
    """Texts with ids: `id text` or `id text title` per line, tab-separated, or JSON lines.

    The sorted ids are in memory; texts are read when needed.
    """

    def __init__(self, path: str, how_to_get: str = ""):
        files = find_files(path, how_to_get, "write a file with an id and a text per line")
        self.table = _open(files[0])
        self.name = self.table.name
        if isinstance(self.table, Store) and self.table.damaged:
            self.table = View(self.table, self.table.whole_rows())
        key = _id_column(self.table)
        ids = _compute.utf8_trim_whitespace(scan(self.table, (key,)).texts[key])
        check_ids(ids, key, self.table.place)
        self.ids, self._keys = ids, Keys(ids)

    def __len__(self) -> int:
        return len(self.table)

    def find(self, key: str, place: str) -> dict[str, str]:
        """Returns title and text of an id.

        Raises:
          Damaged: the id is unknown, or has no text.
        """
        row = self._keys.find(key.strip())
        if row is None:
            raise Damaged(place, f"{key!r:.60} is not in {self.name}")
        return self.read(row)

    def read(self, row: int) -> dict[str, str]:
        """Returns title and text of a row; raises `Damaged` if it has neither."""
        values = self.table.row(row, ("title", "text"))
        texts = {name: values.get(name) or "" for name in ("title", "text")}
        if not all(isinstance(text, str) for text in texts.values()) or not any(texts.values()):
            raise Damaged(self.table.place(row), "title and text are missing")
        return {name: as_utf8(text).strip() for name, text in texts.items()}


def _open(path: Path) -> Table:
    if path.suffix.lower() in (".tsv", ".txt"):
        return open_store([path], tab_reader(path, ("id", "text", "title"), least=2))
    if path.suffix.lower() in (".jsonl", ".ndjson"):
        return file_table(path)
    raise UserError(f"{path} must be .tsv (id, text and optional title) or .jsonl. Convert it.")


def _id_column(table: Table) -> str:
    columns = table.columns or table.row(0)
    for name in ID_NAMES:
        if name in columns:
            return name
    raise UserError(f"{table.name} has no ids. Name one of {', '.join(ID_NAMES)} in every line.")
