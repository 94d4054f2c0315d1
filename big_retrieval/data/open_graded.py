"""From the configuration of judged pairs to their source."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config_data import Graded
from big_retrieval.data.files.arrow import Csv
from big_retrieval.data.files.columns import Scan, check_ids, scan
from big_retrieval.data.files.picked import Selected
from big_retrieval.data.files.prepared import SCHEME, open_prepared
from big_retrieval.data.files.tables import Table, check_columns, check_known
from big_retrieval.data.files.whole import JUDGED, judged_lines, judged_objects, objects
from big_retrieval.data.graded import GradedPairs
from big_retrieval.data.graded_images import Gallery, ImageColumn
from big_retrieval.data.graded_sides import Names, Side, name_columns
from big_retrieval.data.open_files import file_table, files_of, table_of, term_of, warn
from big_retrieval.data.pairing import Known, Pairing, Sides, owner
from big_retrieval.data.records import IMAGE
from big_retrieval.errors import UserError

ADVICE = "write a file with a row for each pair: the ids of query and document, and their score"


@dataclass(frozen=True)
class _File:
    """A file of queries or documents, and what was read of it.

    Attributes:
      table: a row for each.
      key: its column of ids.
      known: the ids.
      columns: its columns besides that of the ids, where records call it the same.
    """

    table: Table
    key: str
    known: Known
    columns: frozenset[str]


def graded(config: Graded) -> GradedPairs:
    """Judged pairs; see `Graded`. What is left out is counted on standard error.

    Raises:
      UserError: files that are missing or of another kind, columns that they lack, an id that is
        missing, there twice or unknown, a score that is no number from 0 on, a pair with two.
    """
    if config.where_documents and not config.documents:
        raise UserError("where_documents chooses rows of `documents`, which is empty; give it too.")
    ids = (config.query, config.document, config.score)
    table = pairs_table(config)
    queries = _file(config, config.queries, config.query_key, config.query)
    documents = _file(
        config, config.documents, config.document_key, config.document, config.where_documents
    )
    shared = [] if queries or documents else [x for x in config.text if x not in ids]
    found = _scan(table, ids[:2], ids[2:], shared)
    sides = _sides(config, table, found, queries, documents)
    for note in sides.notes:
        warn(f"{table.name}: {note}")
    whose = {x: owner(found.texts[x], sides) for x in shared if x in found.texts}
    names, *own = _names(config, found.columns, queries, documents, whose)

    def side(
        file: _File | None,
        rows: np.ndarray,
        id_column: str,
        columns: Mapping[str, str],
        name: str,
        image: ImageColumn | None = None,
    ) -> Side:
        return Side(
            file.table if file else table,
            rows,
            key=file.key if file else id_column,
            id_column=id_column,
            columns=columns,
            texts=config.text,
            image=image,
            name=f"{table.name}, {name}",
        )

    return GradedPairs(
        side(queries, sides.queries, config.query, own[0], "queries"),
        side(documents, sides.documents, config.document, own[1], "documents", _image(config)),
        sides.judgements,
        names=names,
        score=config.score,
        name=table.name,
        table=table,
        rows=sides.pairs,
        notes=sides.notes,
    )


def _sides(
    config: Graded, table: Table, found: Scan, queries: _File | None, documents: _File | None
) -> Sides:
    """The pairs that count, by number, with their scores."""
    pairing = Pairing(
        found.texts[config.query],
        found.texts[config.document],
        found.numbers[config.score],
        names=(config.query, config.document, config.score),
        place=table.place,
        drop=config.drop,
    )
    pairing.score(config.score_from, config.s_max)
    return pairing.sides(queries and queries.known, documents and documents.known)


def _names(
    config: Graded,
    columns: frozenset[str],
    queries: _File | None,
    documents: _File | None,
    whose: Mapping[str, str],
) -> tuple[Names, Mapping[str, str], Mapping[str, str]]:
    """What columns are called in records of pairs: all, those of queries, those of documents.

    Args:
      config: names the ids, the score, the image and the texts.
      columns: of the pairs' file.
      queries: the file of queries.
      documents: the file of documents.
      whose: of columns that the pairs' file alone has: "query", "document", or "" for both.

    Raises:
      UserError: the image's column or one of texts is nowhere.
    """
    ids = {config.query, config.document, config.score}
    query = queries.columns if queries else frozenset()
    document = documents.columns if documents else frozenset()
    image = {config.image} - {""}
    place, there = (documents.table.name, document) if documents else (config.path, columns)
    check_known(place, there, image)
    pair = columns - ids - (frozenset() if documents else image)
    names = name_columns(pair, query, document - image, ids | ({IMAGE} if image else set()))
    known = {*names.pair.values(), *names.query.values(), *names.document.values(), *ids}
    for text in config.text:
        if text not in known | query | document:
            raise UserError(
                f"the data's text names {text!r}, which neither queries nor documents of "
                f"{config.path} have; they have {', '.join(sorted(known))}."
            )
    for_queries = {x: name for x, name in names.pair.items() if whose.get(x) != "document"}
    for_documents = {x: name for x, name in names.pair.items() if whose.get(x) != "query"}
    return (
        names,
        names.query if queries else {x: y for x, y in for_queries.items() if x not in document},
        names.document if documents else {x: y for x, y in for_documents.items() if x not in query},
    )


def pairs_table(config: Graded) -> Table:
    """The rows of the pairs that `where` chooses; of files without columns' names under ours.

    Raises:
      UserError: the file is missing or of another kind, or no row is chosen.
    """
    names = (config.query, config.document, config.score)

    if config.path.startswith(SCHEME):
        image = "" if config.documents or config.images else config.image
        return _chosen(_prepared(config.path, image, config.how_to_get), config.where, "where")

    def open_file(path: Path) -> Table:
        ending = path.suffix.lower()
        if ending == ".json":
            return _opened(path, judged_objects, *names)
        lines = _opened(path, judged_lines, *names) if ending in JUDGED else None
        if lines is None and ending in JUDGED and ending != ".tsv":
            return _opened(path, Csv, "\t")
        return file_table(path) if lines is None else lines

    table, _ = table_of(files_of(config.path, config.how_to_get or ADVICE), open_file)
    return _chosen(table, config.where, "where")


def side_table(
    path: str, key: str, where: Sequence[str] = (), how_to_get: str = "", image: str = ""
) -> Table:
    """The rows of a file of queries or documents.

    Args:
      path: a file or a pattern.
      key: the column that the ids of a JSON object get.
      where: conditions on its rows.
      how_to_get: said where it is missing.
      image: the feature of a prepared data set that holds images; "": none.

    Raises:
      UserError: the file is missing or of another kind, or no row is chosen.
    """

    if path.startswith(SCHEME):
        return _chosen(_prepared(path, image, how_to_get), where, "where_documents")

    def open_file(path: Path) -> Table:
        json = path.suffix.lower() == ".json"
        return _opened(path, objects, key) if json else file_table(path)

    table, _ = table_of(files_of(path, how_to_get or "write a file with a row for each"), open_file)
    return _chosen(table, where, "where_documents")


def _chosen(table: Table, where: Sequence[str], key: str) -> Table:
    """The rows that meet the conditions of a key of the configuration."""
    return Selected(table, dict(term_of(term) for term in where), key) if where else table


def _prepared(path: str, image: str, how_to_get: str) -> Table:
    """A split of a prepared data set."""
    try:
        return open_prepared(path, image)
    except UserError as problem:
        hint = f"; {how_to_get}" if how_to_get else ""
        raise UserError(f"{str(problem).rstrip('.')}{hint}.") from None


def _file(
    config: Graded, path: str, key: str, id_column: str, where: Sequence[str] = ()
) -> _File | None:
    """Opens a file of queries or documents; None: there is none.

    Raises:
      UserError: a row without an id, or two with the same.
    """
    if not path:
        return None
    key = key or id_column
    image = "" if config.images or path != config.documents else config.image
    table = side_table(path, key, where, config.how_to_get, image)
    found = _scan(table, (key,))
    ids = found.texts[key]
    missing = f"there is no {key!r}; give every row its id"
    check_ids(ids, key, table.place, missing=missing, twice="keep one of them")
    own = found.columns - ({key} if key == id_column else set())
    return _File(table, key, Known(ids, table.name), own)


def _scan(
    table: Table, texts: Sequence[str], numbers: Sequence[str] = (), perhaps: Sequence[str] = ()
) -> Scan:
    """Columns of all rows; those in `perhaps` where the table has them.

    Raises:
      UserError: the table lacks a column of `texts` or `numbers`.
    """
    check_columns(table, (*texts, *numbers))
    more = [x for x in perhaps if table.columns is None or x in table.columns]
    found = scan(table, (*texts, *more), numbers)
    check_known(table.name, found.columns, (*texts, *numbers))
    here = {x: values for x, values in found.texts.items() if x in found.columns}
    return Scan(here, found.numbers, found.columns)


def _image(config: Graded) -> ImageColumn | None:
    """The images of the documents, wherever they are."""
    if not config.image:
        return None
    where = config.images or config.documents or config.path
    if config.root or where.startswith(SCHEME):  # a prepared data set holds its images
        root = Path(config.root)
    else:
        root = files_of(where, config.how_to_get)[0].parent
    if not config.images:
        return ImageColumn(config.image, root)
    table = table_of(files_of(config.images, config.how_to_get))[0]
    gallery = _gallery(table, config.image_key, config.image_value, root)
    return ImageColumn(config.image, root, gallery)


@functools.lru_cache(maxsize=4)
def _gallery(table: Table, key: str, value: str, root: Path) -> Gallery:
    return Gallery(table, key, value, root)


def _opened(path: Path, read: Callable[..., Any], *args: str) -> Any:
    """What a function reads of a file, once however many sources read from it."""
    found = path.stat()
    return _read(path, found.st_size, found.st_mtime_ns, read, *args)


@functools.lru_cache(maxsize=16)
def _read(path: Path, size: int, changed: int, read: Callable[..., Any], *args: str) -> Any:
    return read(path, *args)
