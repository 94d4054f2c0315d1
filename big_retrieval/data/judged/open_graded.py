"""From the configuration of judged pairs to their source."""

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from big_retrieval.config.graded import Graded
from big_retrieval.data.formats.columns import Scan, check_ids, scan
from big_retrieval.data.formats.open_files import files_of, table_of
from big_retrieval.data.formats.prepared import SCHEME
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table, check_columns, check_known
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.judged.images import Gallery, ImageColumn
from big_retrieval.data.judged.pairing import Known, PairedRows, Pairing, owner
from big_retrieval.data.judged.qrels import DuplicatePolicy
from big_retrieval.data.judged.sides import Names, SideRecords, name_columns
from big_retrieval.data.judged.tables import pairs_table, renamed_part, side_table
from big_retrieval.errors import UserError

log = logging.getLogger(__name__)


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
    table = renamed_part(pairs_table(config), config.rename, "pairs")
    queries = _file(config, config.queries, config.query_key, config.query)
    documents = _file(
        config, config.documents, config.document_key, config.document, config.where_documents
    )
    shared = [] if queries or documents else [x for x in config.text if x not in ids]
    found = _scan(table, ids[:2], ids[2:], shared)
    sides = _sides(config, table, found, queries, documents)
    for note in sides.notes:
        log.warning(f"{table.name}: {note}")
    whose = {x: owner(found.texts[x], sides) for x in shared if x in found.texts}
    names, *own = _names(config, found.columns, queries, documents, whose)

    def side(
        file: _File | None,
        rows: np.ndarray,
        id_column: str,
        columns: Mapping[str, str],
        name: str,
        image: ImageColumn | None = None,
    ) -> SideRecords:
        return SideRecords(
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
        sides.qrels,
        names=names,
        score=config.score,
        name=table.name,
        table=table,
        rows=sides.pairs,
        notes=sides.notes,
    )


def _sides(
    config: Graded, table: Table, found: Scan, queries: _File | None, documents: _File | None
) -> PairedRows:
    """The pairs that count, by number, with their scores."""
    pairing = Pairing(
        found.texts[config.query],
        found.texts[config.document],
        found.numbers[config.score],
        names=(config.query, config.document, config.score),
        place=table.place,
        skip_unknown_ids=config.skip_unknown_ids,
        negative=config.negative,
        duplicates=_duplicates(config),
    )
    pairing.score(config.score_from, config.s_max, config.min_relevance)
    return pairing.sides(queries and queries.known, documents and documents.known)


def _duplicates(config: Graded) -> DuplicatePolicy:
    """Policy for duplicate pairs, inverted for ranks, of which the lower is the better."""
    turned: dict[DuplicatePolicy, DuplicatePolicy] = {"max": "min", "min": "max"}
    policy = config.duplicates
    return turned.get(policy, policy) if config.score_from == "rank" else policy


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
    side = "documents" if id_column == config.document else "queries"
    table = side_table(path, key, where, config.how_to_get, image)
    table = renamed_part(table, config.rename, side)
    found = _scan(table, (key,))
    ids = found.texts[key]
    missing = f"there is no {key!r}; give every row its id"
    check_ids(ids, key, table.place, missing=missing, remedy="keep one of them")
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
