"""From the configuration of judged pairs to their source."""

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from big_retrieval.config.graded import Graded
from big_retrieval.data.formats.arrow import read_csv
from big_retrieval.data.formats.columns import Scan, check_ids, scan
from big_retrieval.data.formats.open_files import file_table, files_of, opened, table_of, terms_of
from big_retrieval.data.formats.prepared import SCHEME, open_prepared
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table, check_columns, check_known
from big_retrieval.data.formats.views import View, renamed, selected
from big_retrieval.data.formats.whole import JUDGED, judged_lines, judged_objects, objects
from big_retrieval.data.judged.graded import GradedPairs, Names, SideRecords
from big_retrieval.data.judged.images import Gallery, ImageColumn
from big_retrieval.data.judged.pairing import JudgedFile, Pairing, owner
from big_retrieval.errors import UserError

log = logging.getLogger(__name__)

ADVICE = "write a file with a row for each"
ADVICE_PAIRS = f"{ADVICE} pair: the ids of query and document, and their score"


def graded(config: Graded) -> GradedPairs:
    """Judged pairs; see `Graded`. What is skipped is counted on standard error.

    Raises:
      UserError: a file is missing or of another kind, or lacks a column; an id is missing, repeated
        or unknown; a score is no number from 0 on; a pair has two scores.
    """
    if config.where_documents and not config.documents:
        raise UserError("where_documents chooses rows of `documents`, which is empty; give it too.")
    ids = (config.query, config.document, config.score)
    table = _open(config, "pairs", config.path)
    queries = _file(config, "queries", config.query_key or config.query, config.query)
    documents = _file(config, "documents", config.document_key or config.document, config.document)
    shared = [] if queries or documents else [x for x in config.text if x not in ids]
    found = _scan(table, ids[:2], ids[2:], shared)
    paired = Pairing(found, config, table.place).resolve(queries, documents)
    for note in paired.notes:
        log.warning(f"{table.name}: {note}")
    whose = {x: owner(found.texts[x], paired) for x in shared if x in found.texts}
    names, *own = _names(config, found.columns, queries, documents, whose)

    def side(
        file: JudgedFile | None,
        what: str,
        rows: np.ndarray,
        id_column: str,
        columns: Mapping[str, str],
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
            name=f"{table.name}, {what}",
        )

    image = _image(config)
    return GradedPairs(
        side(queries, "queries", paired.queries, config.query, own[0]),
        side(documents, "documents", paired.documents, config.document, own[1], image),
        paired.qrels,
        names=names,
        score=config.score,
        name=table.name,
        file=View(table, paired.pairs),
        notes=paired.notes,
    )


def _names(
    config: Graded,
    columns: frozenset[str],
    queries: JudgedFile | None,
    documents: JudgedFile | None,
    whose: Mapping[str, str],
) -> tuple[Names, Mapping[str, str], Mapping[str, str]]:
    """Names of columns in the records of pairs: of all, of the queries' and of the documents'.

    Args:
      config: names the ids, the score, the image and the texts.
      columns: of the pairs' file.
      queries: the file of queries.
      documents: the file of documents.
      whose: column of the pairs' file -> the side that it describes: "query", "document", or ""
        for both.

    Raises:
      UserError: no file has the column of the image or of a text.
    """
    ids, image = {config.query, config.document, config.score}, {config.image} - {""}
    query = queries.columns if queries else frozenset()
    document = documents.columns if documents else frozenset()
    place, found = (documents.table.name, document) if documents else (config.path, columns)
    check_known(place, found, image)
    pair = columns - ids - (frozenset() if documents else image)
    taken, shown = ids | ({IMAGE} if image else set()), document - image
    both = taken | (query & shown)
    names = Names(
        {x: f"pair.{x}" if x in taken | query | shown else x for x in pair},
        {x: f"query.{x}" if x in both else x for x in query},
        {x: f"document.{x}" if x in both else x for x in shown},
    )
    known = {*names.pair.values(), *names.query.values(), *names.document.values(), *ids}
    for text in config.text:
        if text not in known | query | document:
            raise UserError(
                f"the data's text names {text!r}, which neither queries nor documents of "
                f"{config.path} have; they have {', '.join(sorted(known))}."
            )
    for_queries, for_documents = (
        {x: name for x, name in names.pair.items() if whose.get(x) != other and x not in theirs}
        for other, theirs in (("document", document), ("query", query))
    )
    return (
        names,
        names.query if queries else for_queries,
        names.document if documents else for_documents,
    )


def _file(config: Graded, part: str, key: str, id_column: str) -> JudgedFile | None:
    """Opens the file of queries or documents; None: there is none.

    Raises:
      UserError: a row without an id, or two with the same.
    """
    path = getattr(config, part)
    if not path:
        return None
    table = _open(config, part, path, key)
    found = _scan(table, (key,))
    ids = found.texts[key]
    check_ids(ids, key, table.place)
    own = found.columns - ({key} if key == id_column else set())
    return JudgedFile(table, key, ids, own)


def _open(config: Graded, part: str, path: str, key: str = "") -> Table:
    """The rows of the files of pairs, queries or documents that the configuration chooses.

    Args:
      config: names the files, the rows to keep and the columns.
      part: "pairs", "queries" or "documents".
      path: a file, a pattern, or a split of a prepared data set.
      key: the column that the ids of a JSON object get; pairs have theirs under `config`'s names.

    Raises:
      UserError: a file is missing or of another kind, no row is chosen, or a column to rename is
        missing.
    """
    mine = [x.removeprefix(f"{part}.") for x in config.rename if x.startswith(f"{part}.")]
    names = terms_of(mine, "rename", "queries.text=query")

    def open_file(file: Path) -> Table:
        ending, keys = file.suffix.lower(), (config.query, config.document, config.score)
        if ending == ".json":
            return opened(file, objects, key) if key else opened(file, judged_objects, *keys)
        if key or ending not in JUDGED:
            return file_table(file)
        return opened(file, judged_lines, *keys) or opened(file, read_csv, "\t")

    if path.startswith(SCHEME):
        image = config.image if path == _place_of_images(config) else ""
        try:
            table: Table = open_prepared(path, image)
        except UserError as problem:
            hint = f"; {config.how_to_get}" if config.how_to_get else ""
            raise UserError(f"{str(problem).rstrip('.')}{hint}.") from None
    else:
        advice = config.how_to_get or (ADVICE if key else ADVICE_PAIRS)
        here = path == _place_of_images(config) and not config.root and not config.images
        image = next((own for own, new in names.items() if new == config.image), config.image)
        table, _ = table_of(files_of(path, advice), open_file, image if here else "")
    wheres = {"pairs": "where", "documents": "where_documents"}
    if part in wheres and (where := getattr(config, wheres[part])):
        table = selected(table, terms_of(where, wheres[part]), wheres[part])
    return renamed(table, names)


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


def _place_of_images(config: Graded) -> str:
    return config.images or config.documents or config.path


def _image(config: Graded) -> ImageColumn | None:
    """The images of the documents, wherever they are."""
    if not config.image:
        return None
    where = _place_of_images(config)
    if config.root or where.startswith(SCHEME):  # a prepared data set holds its images
        root = Path(config.root)
    else:
        root = files_of(where, config.how_to_get)[0].parent
    if not config.images:
        return ImageColumn(config.image, root)
    value = "" if config.root else config.image_value
    table = table_of(files_of(config.images, config.how_to_get), image=value)[0]
    gallery = _gallery(table, config.image_key, config.image_value, root)
    return ImageColumn(config.image, root, gallery)


@functools.lru_cache(maxsize=4)
def _gallery(table: Table, key: str, value: str, root: Path) -> Gallery:
    return Gallery(table, key, value, root)
