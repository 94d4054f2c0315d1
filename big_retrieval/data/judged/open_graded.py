"""Judged pairs in files, as a source."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from big_retrieval.config.ranges import NotNegative, Range
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_terms, not_empty
from big_retrieval.data.formats.columns import Scan, check_ids, scan
from big_retrieval.data.formats.open_files import by_ending, files_of, table_of, terms_of
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table, check_columns, check_known
from big_retrieval.data.formats.views import View, renamed, selected
from big_retrieval.data.judged.graded import GradedPairs, Names, SideRecords
from big_retrieval.data.judged.images import ImageColumn, images_of, place_of_images
from big_retrieval.data.judged.pairing import JudgedFile, Pairing, owner
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.headerless import qrels_reader
from big_retrieval.data.stores.json_files import json_object_reader, json_qrels_reader
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

log = logging.getLogger(__name__)

JUDGED = (".qrels", ".qrel", ".trec", ".txt", ".tsv")  # endings of files that may lack a header
ADVICE = "write a file with a row for each"
ADVICE_PAIRS = f"{ADVICE} pair: the ids of query and document, and their score"


@register("source")
@dataclass(frozen=True)
class Graded(Source):
    """Judged pairs of queries and documents, with how well they fit.

    A record is a pair with the columns of its query and its document; evaluations rank all
    documents for each query.
    """

    graded: ClassVar[bool] = True
    type: Literal["graded"] = "graded"
    # the pairs: CSV, TSV, JSONL, Parquet, {query: {document: score}} in JSON, or qrels
    path: str = ""
    query: str = "query_id"  # column of the query's id in the pairs; or of the text itself
    document: str = "document_id"  # column of the document's id in the pairs
    score: str = "score"  # column of the score, rank or clicks
    # what that column holds; the best rank, 1, is a score of s_max, as are the most clicks
    score_from: Literal["score", "rank", "clicks"] = "score"
    s_max: Annotated[float, Range(1)] = 100.0  # of scores from ranks and clicks
    where: tuple[str, ...] = ()  # such as "split=train": only pairs with this value
    queries: str = ""  # file with a row a query; empty: its columns are those of the pairs
    query_key: str = ""  # column of ids in that file; empty: named as in the pairs
    documents: str = ""  # file with a row a document; empty: its columns are those of the pairs
    document_key: str = ""  # column of ids in that file; empty: named as in the pairs
    where_documents: tuple[str, ...] = ()  # such as "corpus=A": the documents that are ranked
    text: tuple[str, ...] = ("query", "title")  # columns of texts, of queries and documents
    image: str = ""  # column of the documents' images: a path, bytes, or one or several keys
    images: str = ""  # file (npz, Parquet, ...) of the images with these keys
    image_key: str = "image_id"  # column of keys in that file
    image_value: str = "images"  # column of images in that file
    root: str = ""  # folder that image paths start from; empty: that of the documents' file
    # pairs without ids, or with a query that no file has, are skipped and counted instead of an
    # error; documents that no file has are counted as not found in any case
    skip_unknown_ids: bool = False
    # of a pair that is there with different scores: an error, or which one counts
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    negative: Literal["refuse", "zero"] = "refuse"  # what a score below 0 is: an error, or 0
    # pairs of lower scores are skipped; 0 keeps all, 1 keeps what fits, to train on
    min_relevance: NotNegative = 0.0
    rename: tuple[str, ...] = ()  # columns, before all else: "queries.text=query", "pairs.pid=id"
    how_to_get: str = ""  # said when `path` does not exist

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with your judged pairs")
        yield from self.check_columns(path)

    def check_columns(self, path: str) -> Iterator[str]:
        """Yields an error message for every bad key except `path`."""
        names = {key: getattr(self, key) for key in ("query", "document", "score")}
        for key, name in names.items():
            if not name:
                yield f"{path}.{key} is empty; name the column of the pairs."
        if len(set(names.values())) < len(names):
            said = ", ".join(f"{path}.{key} {name!r}" for key, name in names.items())
            yield f"{said}: query, document and score need three columns."
        for term in self.rename:
            part, _, rest = term.partition(".")
            column, _, name = rest.partition("=")
            if part not in ("pairs", "queries", "documents") or not column or not name:
                yield f"{path}.rename has {term!r}; write such as queries.text=query."
        if not self.text:
            yield f"{path}.text is empty; name the columns of texts, such as ('query', 'title')."
        yield from check_terms(self, path, "where", "where_documents")
        for key, needs in (
            ("query_key", "queries"),
            ("document_key", "documents"),
            ("where_documents", "documents"),
            ("images", "image"),
        ):
            if getattr(self, key) and not getattr(self, needs):
                yield f"{path}.{key} is set, but {path}.{needs} is empty; give both or neither."
        for key in ("image_key", "image_value"):
            if self.images and not getattr(self, key):
                yield f"{path}.{key} is empty; name the column of {path}.images."

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, each in config.fields.items():
            if each.modality == "image" and not self.image:
                yield (
                    f"config.data.image is empty, but config.fields.{name} reads images; name the "
                    "column of the documents' images."
                )
            elif each.modality == "image" and each.column != "image":
                yield (
                    f"config.fields.{name}.column is {each.column!r}; judged pairs have their "
                    "image in 'image'."
                )

    def build(self) -> GradedPairs:
        ids = (self.query, self.document, self.score)
        table = _open(self, "pairs", self.path)
        queries = _file(self, "queries", self.query_key or self.query, self.query)
        documents = _file(self, "documents", self.document_key or self.document, self.document)
        shared = [] if queries or documents else [x for x in self.text if x not in ids]
        found = _scan(table, ids[:2], ids[2:], shared)
        paired = Pairing(found, self, table.place).resolve(queries, documents)
        for note in paired.notes:
            log.warning(f"{table.name}: {note}")
        whose = {x: owner(found.texts[x], paired) for x in shared if x in found.texts}
        names, *own = _names(self, found.columns, queries, documents, whose)

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
                texts=self.text,
                image=image,
                name=f"{table.name}, {what}",
            )

        image = images_of(self)
        return GradedPairs(
            side(queries, "queries", paired.queries, self.query, own[0]),
            side(documents, "documents", paired.documents, self.document, own[1], image),
            paired.qrels,
            names=names,
            score=self.score,
            name=table.name,
            file=View(table, paired.pairs),
            notes=paired.notes,
        )

    def runlocal(self) -> GradedScenes:
        return GradedScenes()


def _names(
    config: Graded,
    columns: frozenset[str],
    queries: JudgedFile | None,
    documents: JudgedFile | None,
    whose: Mapping[str, str],
) -> tuple[Names, Mapping[str, str], Mapping[str, str]]:
    """Names of columns in the records of pairs: of all, of the queries' and of the documents'.

    Args:
      whose: column of the pairs' file -> the side that it describes: "query", "document", or ""
        for both.
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
    """Opens the file of queries or documents; None: there is none."""
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
      part: "pairs", "queries" or "documents".
      key: the column that the ids of a JSON object get; pairs have theirs under `config`'s names.
    """
    mine = [x.removeprefix(f"{part}.") for x in config.rename if x.startswith(f"{part}.")]
    names = terms_of(mine)

    def form_of(file: Path) -> Table | Reader:
        ending, keys = file.suffix.lower(), (config.query, config.document, config.score)
        if ending == ".json":
            return json_object_reader(file, key) if key else json_qrels_reader(file, *keys)
        if key or ending not in JUDGED:
            return by_ending(file)
        return qrels_reader(file, keys)

    advice = config.how_to_get or (ADVICE if key else ADVICE_PAIRS)
    here = path == place_of_images(config) and not config.root and not config.images
    image = next((own for own, new in names.items() if new == config.image), config.image)
    table, _ = table_of(files_of(path, advice), form_of, image if here else "")
    wheres = {"pairs": "where", "documents": "where_documents"}
    if part in wheres and (where := getattr(config, wheres[part])):
        table = selected(table, terms_of(where), wheres[part])
    return renamed(table, names)


def _scan(
    table: Table, texts: Sequence[str], numbers: Sequence[str] = (), perhaps: Sequence[str] = ()
) -> Scan:
    """Columns of all rows; those in `perhaps` where the table has them."""
    check_columns(table, (*texts, *numbers))
    more = [x for x in perhaps if table.columns is None or x in table.columns]
    found = scan(table, (*texts, *more), numbers)
    check_known(table.name, found.columns, (*texts, *numbers))
    here = {x: values for x, values in found.texts.items() if x in found.columns}
    return Scan(here, found.numbers, found.columns)
