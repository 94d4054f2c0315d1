"""Documents and queries of files: what is encoded, and the text that results show."""

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
SHOWN = 120  # characters of a text that are kept to be shown
TRIES = 100  # unreadable records at the start of the files after which reading ends
IDS = ("id", "_id")  # columns of ids, the first one there counts; the second is BEIR's
TEXT = "text"  # what files of queries or documents call their text, whatever the model's field does
HEADERLESS = ("id", TEXT, "title")  # cells of MS MARCO's files, which have no header line


@dataclass(frozen=True)
class DocumentReader:
    """Which columns of a file are read.

    Attributes:
      what: "documents" or "queries", for messages.
      texts: field of the model -> the columns of its text, which are joined.
      titles: field of the model -> the column of the text's title.
      images: field of the model -> the column of its image.
      show: the column that is kept to be shown; "": the first text, or the path of an image.
      id: the column of ids; "": one of `IDS` where there is one, else the file's name and a number.
      join: between the columns of a text.
      own: whether the columns of texts come from the model's fields, not from the user. The only
        column of texts may then have the name `TEXT` in a file instead.
      own_image: the same of the column of images, which may then have the name `IMAGE`, as that of
        a folder of pictures has.
    """

    what: str
    texts: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    images: Mapping[str, str] = dataclasses.field(default_factory=dict)
    show: str = ""
    id: str = ""
    join: str = " "
    own: bool = False
    own_image: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that hold something of a record."""
        texts = (column for each in self.texts.values() for column in each)
        return (*texts, *self.titles.values(), *self.images.values())


@dataclass(frozen=True)
class DocumentRow:
    """One record.

    Attributes:
      id: its id.
      values: field -> a text, a pair of title and text where the field has titles, or an image as
        `encode_images` takes it; None where the record has none.
      shown: what a search result shows, such as the beginning of the text.
      index: of the record.
    """

    id: str
    values: dict[str, Any]
    shown: str = ""
    index: int = 0

    def stored(self) -> Record:
        """Returns the row of an index's store.

        Columns are `row`, the whole `text`, and the path of the `image`; `inside` is True for an
        image that is not a file, but inside one.
        """
        row: Record = {"row": self.index}
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
    """Opens the files of documents or queries.

    Args:
      flag: the name of the flag, for messages.
      patterns: paths, glob patterns or {00..99} ranges, separated by commas.
      reader: which columns are read.

    Returns:
      The records, and the reader with the columns of texts and ids that the files have.

    Raises:
      UserError: a file is missing, of no known kind or empty, or it lacks a column; or --id names
        that of images.
    """
    paths = open_files.files_of_flag(flag, patterns)
    image = tuple(dict.fromkeys(reader.images.values()))
    if len(image) > 1:
        raise UserError(f"--{flag}: images are read from one column, not from {', '.join(image)}.")
    cells = {path: _headerless_cells(path, reader) for path in paths}

    def form_of(path: Path) -> Table | Reader:
        return tab_reader(path, cells[path]) if cells[path] else open_files.by_ending(path)

    table, _ = open_files.table_of(paths, form_of, "".join(image))
    asked, reader = reader.id, _fitting(reader, table, tell=not any(cells.values()))
    image = tuple(dict.fromkeys(reader.images.values()))
    if image and asked in (*image, IMAGE):  # which records hold images under
        raise UserError(
            f"--id={asked} names the column of images, whose content is no id: leave --id out, and "
            "ids are a file's name and numbers of rows, or name another column."
        )
    texts = [column for each in reader.texts.values() for column in each]
    for name, columns in (("image", image), ("text", texts)):
        check_columns(table, columns, remedy=f"say which one to read with --{name}=COLUMN")
    check_columns(table, list(filter(None, [*reader.titles.values(), reader.id, reader.show])))
    return Records(table, image=image, text="", root=paths[0].parent), reader


def _headerless_cells(path: Path, reader: DocumentReader) -> tuple[str, ...]:
    """Returns the names of the cells of a .tsv file without a header; () for other files.

    Files of MS MARCO are such.
    """
    if path.suffix.lower() != ".tsv" or not reader.own or not reader.texts or reader.id:
        return ()
    cells = [cell.strip() for cell in read_first_line(path).rstrip("\r\n").split("\t")]
    named = {*reader.columns, *IDS, TEXT, reader.show} & set(cells)
    numbered = any(letter.isdigit() for letter in cells[0])  # as ids are, and names are not
    if named or not numbered or len(cells) not in (2, 3):
        return ()
    names = HEADERLESS[: len(cells)]
    log.info(f"{path} has no header line: it is read as {', '.join(names)}")
    return names


def _fitting(reader: DocumentReader, table: Table, *, tell: bool) -> DocumentReader:
    """A reader with the columns of texts and ids that a table has, as far as its first row tells.

    The column of ids is chosen here, because `Records` adds an id to rows without one.

    Args:
      tell: log the column of the text if it is not the reader's.
    """
    try:
        with record_at(table.place(0)):
            known = table.columns or frozenset(table.row(0))
    except Damaged:
        return reader
    name = reader.id or next((name for name in IDS if name in known), "")
    texts = dict(reader.texts)
    if reader.own and len(texts) == 1 and not reader.images:
        ((field, columns),) = texts.items()
        if len(columns) == 1 and columns[0] not in known and TEXT in known:
            if tell:
                log.info(f"{table.name} has no {columns[0]!r}: {TEXT!r} is read")
            texts[field] = (TEXT,)
    images = dict(reader.images)
    if reader.own_image and IMAGE in known and not known & set(images.values()):
        images = dict.fromkeys(images, IMAGE)
    return dataclasses.replace(reader, id=name, texts=texts, images=images)


def read(
    records: Records,
    reader: DocumentReader,
    size: int,
    skipped: SkippedRecords,
    span: range | None = None,
) -> Iterator[list[DocumentRow]]:
    """Reads records in order, `size` at a time; those that cannot be used are left out.

    Args:
      records: documents or queries.
      reader: which columns are read.
      size: records that are read for one list. Which records share a list depends on their numbers
        alone, not on how many of them can be used.
      skipped: counts those that cannot be used.
      span: numbers of the records, from a multiple of `size` on; None: all.

    Raises:
      UserError: none of the first records can be used.
    """
    span = range(len(records)) if span is None else span
    for start in range(span.start, span.stop, size):
        rows: list[DocumentRow] = []
        for index in range(start, min(start + size, span.stop)):
            try:
                with record_at(records.place(index)):
                    rows.append(read_row(records, reader, index))
            except Damaged as problem:
                skipped.add(problem)
                if skipped.count == index + 1 and index + 1 in (TRIES, len(records)):
                    flags = " and ".join(_flags(reader))
                    raise UserError(
                        f"none of the first {index + 1} {reader.what} can be used: name their "
                        f"columns with {flags}, or mend them; the last problem: {problem}"
                    ) from None
        if rows:
            yield rows


def _flags(reader: DocumentReader) -> list[str]:
    """The flags that name columns."""
    known = {"--text": reader.texts, "--title": reader.titles, "--image": reader.images}
    return [flag for flag, columns in known.items() if columns]


def read_row(records: Records, reader: DocumentReader, index: int) -> DocumentRow:
    """The id and the fields of a record.

    Args:
      records: documents or queries.
      reader: which columns are read.
      index: of the record.

    Raises:
      Damaged: it has no id or none of the fields, or cannot be read.
    """
    place, row = records.place(index), records[index]
    name = as_text(row.get(reader.id or "id"))
    if name is None:
        raise Damaged(place, f"there is no id in {reader.id or 'id'!r}")
    values: dict[str, Any] = {}
    first = ""  # of the texts, with its title
    for field, columns in reader.texts.items():
        text = reader.join.join(filter(None, (_text(row, column, place) for column in columns)))
        title = _text(row, reader.titles[field], place) if field in reader.titles else ""
        item = (title, text) if field in reader.titles else text
        values[field] = item if text or title else None
        first = first or f"{title} {text}".strip()
    for field in reader.images:
        values[field] = row.get(IMAGE)
    if all(value is None for value in values.values()):
        known = ", ".join(sorted(records.table.row(index)))
        columns = ", ".join(map(repr, reader.columns))
        raise Damaged(place, f"there is nothing in {columns}; it has {known}")
    show = reader.show or ("" if first else next(iter(reader.images.values()), ""))
    if show:  # as it stands in the file, such as the path of an image
        value = records.table.row(index, (show,)).get(show)
        first = _shown(value) if reader.show or isinstance(value, str) else ""
    return DocumentRow(name, values, " ".join(first.split())[:SHOWN], index)


def _shown(value: Any) -> str:
    """What a column holds, to be read: several texts are separated by semicolons."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return "; ".join(value)
    return as_text(value) or ""


def _text(row: Mapping[str, Any], column: str, place: str) -> str:
    """The text of a column, the first one where it has several; "" where there is none."""
    value = row.get(column)
    return "" if is_absent(value) else as_texts(value, column, place)[0]
