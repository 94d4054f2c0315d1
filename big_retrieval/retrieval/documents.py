"""Documents and queries from files: ids, values to encode, and texts that results show."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.data.damage import SkippedRecords, record_at
from big_retrieval.data.formats import open_files
from big_retrieval.data.formats.columns import as_text
from big_retrieval.data.formats.records import IMAGE, Records
from big_retrieval.data.formats.tables import Table, check_columns
from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.sources import Record, as_texts, is_absent
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.headerless import read_first_line, tab_reader
from big_retrieval.errors import Damaged, UserError

log = logging.getLogger(__name__)
SHOWN = 120  # characters of a text that results show
TRIES = 100  # reading ends if this many records at the start cannot be read
IDS = ("id", "_id")  # columns of ids; the first that exists is used
TEXT = "text"  # usual column of texts in files of queries or documents
HEADERLESS = ("id", TEXT, "title")  # cells of MS MARCO's files, which have no header line


@dataclass(frozen=True)
class DocumentReader:
    """Columns of a file to read, by field of the model."""

    noun: str  # "documents" or "queries", for messages
    texts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)  # joined columns
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    show: str = ""  # column that results show; empty for the first text, or the path of an image
    id: str = ""  # column of ids; empty for one of `IDS`, or else the file's name and a number
    join: str = " "  # separator of the columns of a text
    # True if the columns come from the model's config, not from flags. Files may then have one
    # column of texts with the name `TEXT`, and a column of images with the name `IMAGE`.
    from_config: bool = False
    images_from_config: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of values."""
        texts = (column for names in self.texts.values() for column in names)
        return (*texts, *self.titles.values(), *self.images.values())


@dataclass(frozen=True)
class DocumentRow:
    """One record."""

    id: str
    # Value by field: a text, a pair of title and text if the field has titles, or an image as for
    # `encode_images`; None if the record has no value
    values: dict[str, Any]
    shown: str = ""  # text of a search result, such as the beginning of the document
    index: int = 0  # record index

    def stored(self) -> Record:
        """Returns the row of an index's store.

        Columns are `row`, `id`, `shown`, the whole `text`, and the path of the `image`. `inside` is
        True if an image is inside a file of many images.
        """
        name = self.id.encode("utf-8", "replace").decode()  # file names may not be UTF-8
        row: Record = {"row": self.index, "id": name, "shown": self.shown}
        texts: list[str] = []
        for value in self.values.values():
            if isinstance(value, str | tuple):
                texts += filter(None, (value,) if isinstance(value, str) else value)
            elif isinstance(value, Encoded) and value.path:
                row["image"] = value.path
            elif value is not None:
                row["inside"] = True
        return row | ({"text": "\n".join(dict.fromkeys(texts))} if texts else {})


def open_records(
    flag: str, patterns: str, reader: DocumentReader
) -> tuple[Records, DocumentReader]:
    """Opens files of --`flag`; returns the records, and the reader with the files' columns."""
    paths = open_files.files_of_flag(flag, patterns)
    image = tuple(dict.fromkeys(reader.images.values()))
    if len(image) > 1:
        raise UserError(f"--{flag} has several columns of images: {', '.join(image)}. Use one.")
    cells = {path: _headerless_cells(path, reader) for path in paths}

    def form_of(path: Path) -> Table | Reader:
        return tab_reader(path, cells[path]) if cells[path] else open_files.by_ending(path)

    table, _ = open_files.table_of(paths, form_of, "".join(image))
    id_column, reader = reader.id, _fit_columns(reader, table, log_text=not any(cells.values()))
    image = tuple(dict.fromkeys(reader.images.values()))
    if image and id_column in (*image, IMAGE):  # `Records` puts images under `IMAGE`
        raise UserError(
            f"--id={id_column} names the column of images. Remove --id to use file names and row "
            "numbers, or name another column."
        )
    texts = [column for names in reader.texts.values() for column in names]
    for name, columns in (("image", image), ("text", texts)):
        check_columns(
            table, columns, remedy=f"name one by --{name}=COLUMN, or choose another field"
        )
    check_columns(table, list(filter(None, [*reader.titles.values(), reader.id, reader.show])))
    return Records(table, image=image, text="", root=paths[0].parent), reader


def _headerless_cells(path: Path, reader: DocumentReader) -> tuple[str, ...]:
    """Returns the column names of a .tsv file without a header line (MS MARCO); else ()."""
    if path.suffix.lower() != ".tsv" or not reader.from_config or not reader.texts or reader.id:
        return ()
    cells = [cell.strip() for cell in read_first_line(path).rstrip("\r\n").split("\t")]
    has_names = bool({*reader.columns, *IDS, TEXT, reader.show} & set(cells))
    is_id = any(letter.isdigit() for letter in cells[0])
    if has_names or not is_id or len(cells) not in (2, 3):
        return ()
    names = HEADERLESS[: len(cells)]
    log.info(f"{path} has no header line: its columns are {', '.join(names)}")
    return names


def _fit_columns(reader: DocumentReader, table: Table, *, log_text: bool) -> DocumentReader:
    """Chooses the columns of texts, images and ids that the first row of a table has.

    The id column is chosen here, because `Records` adds an id to rows without one.
    """
    try:
        with record_at(table.place(0)):
            available = table.columns or frozenset(table.row(0))
    except Damaged:
        return reader
    id_column = reader.id or next((name for name in IDS if name in available), "")
    texts = dict(reader.texts)
    if reader.from_config and len(texts) == 1 and not reader.images:
        ((field, columns),) = texts.items()
        if len(columns) == 1 and columns[0] not in available and TEXT in available:
            if log_text:
                log.info(f"{table.name} has no column {columns[0]!r}: using {TEXT!r}")
            texts[field] = (TEXT,)
    images = dict(reader.images)
    if reader.images_from_config and IMAGE in available and not available & set(images.values()):
        images = dict.fromkeys(images, IMAGE)
    return dataclasses.replace(reader, id=id_column, texts=texts, images=images)


def read(
    records: Records,
    reader: DocumentReader,
    size: int,
    skipped: SkippedRecords,
    span: range,
) -> Iterator[list[DocumentRow]]:
    """Reads records in order, without damaged records, which `skipped` counts.

    Args:
      size: number of records per list, before damaged records are removed. So damaged records do
        not move other records to another list.
      span: record indices, starting at a multiple of `size`.
    """
    for start in range(span.start, span.stop, size):
        rows: list[DocumentRow] = []
        for index in range(start, min(start + size, span.stop)):
            try:
                with record_at(records.place(index)):
                    rows.append(read_row(records, reader, index))
            except Damaged as error:
                skipped.add(error)
                if skipped.count == index + 1 and index + 1 in (TRIES, len(records)):
                    columns = (reader.texts, reader.titles, reader.images)
                    flags = zip(("--text", "--title", "--image"), columns, strict=True)
                    raise UserError(
                        f"None of the first {index + 1} {reader.noun} can be used. Name their "
                        f"columns by {' and '.join(flag for flag, names in flags if names)}, or "
                        f"repair them. Last error: {error}"
                    ) from None
        if rows:
            yield rows


def read_row(records: Records, reader: DocumentReader, index: int) -> DocumentRow:
    """Reads the id and the fields of a record; raises `Damaged` if one cannot be read."""
    place, row = records.place(index), records[index]
    name = as_text(row.get(reader.id or "id"))
    if name is None:
        raise Damaged(place, f"there is no id in {reader.id or 'id'!r}")
    values: dict[str, Any] = {}
    first = ""  # the first text with its title
    for field, columns in reader.texts.items():
        text = reader.join.join(filter(None, (_text(row, column, place) for column in columns)))
        title = _text(row, reader.titles[field], place) if field in reader.titles else ""
        value = (title, text) if field in reader.titles else text
        values[field] = value if text or title else None
        first = first or f"{title} {text}".strip()
    for field in reader.images:
        values[field] = row.get(IMAGE)
    if all(value is None for value in values.values()):
        present = ", ".join(sorted(records.table.row(index)))
        columns = ", ".join(map(repr, reader.columns))
        raise Damaged(place, f"there is nothing in {columns}; it has {present}")
    show = reader.show or ("" if first else next(iter(reader.images.values()), ""))
    if show:  # as stored in the file, such as the path of an image
        value = records.table.row(index, (show,)).get(show)
        first = _shown(value) if reader.show or isinstance(value, str) else ""
    return DocumentRow(name, values, " ".join(first.split())[:SHOWN], index)


def _shown(value: Any) -> str:
    """Formats a value of a column; semicolons separate several texts."""
    if isinstance(value, list | tuple) and all(isinstance(text, str) for text in value):
        return "; ".join(value)
    return as_text(value) or ""


def _text(row: Mapping[str, Any], column: str, place: str) -> str:
    """Returns the text of a column, the first one of a list; "" if it is missing."""
    value = row.get(column)
    return "" if is_absent(value) else as_texts(value, column, place)[0]
