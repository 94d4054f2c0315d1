"""Judged pairs in files, as a source."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from big_retrieval.config.ranges import NotNegative, Range
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_terms, not_empty
from big_retrieval.data.formats.columns import Scan, check_ids, scan
from big_retrieval.data.formats.open_files import by_ending, find_files, table_of, terms_of
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Table, check_columns, check_known
from big_retrieval.data.formats.views import View, renamed, selected
from big_retrieval.data.judged.graded import GradedPairs, Names, SideRecords
from big_retrieval.data.judged.images import images_of, place_of_images
from big_retrieval.data.judged.pairing import JudgedFile, Pairing, owner
from big_retrieval.data.stores.blocks import Reader
from big_retrieval.data.stores.headerless import qrels_reader
from big_retrieval.data.stores.json_files import json_object_reader, json_qrels_reader
from big_retrieval.data.synthetic.graded_scenes import GradedScenes
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

log = logging.getLogger(__name__)

JUDGED = (".qrels", ".qrel", ".trec", ".txt", ".tsv")  # endings of files without a header
ADVICE = "write a file with a row for each"
ADVICE_PAIRS = f"{ADVICE} pair: the ids of query and document, and their score"


@register("source")
@dataclass(frozen=True)
class Graded(Source):
    """Judged pairs of queries and documents, with their scores.

    A record is a pair with the columns of its query and its document. Evaluations rank all
    documents for each query.
    """

    graded: ClassVar[bool] = True
    type: Literal["graded"] = "graded"
    # file of pairs: CSV, TSV, JSONL, Parquet, {query: {document: score}} in JSON, or qrels
    path: str = ""
    query: str = "query_id"  # column of the query's id in the pairs; or of the text itself
    document: str = "document_id"  # column of the document's id in the pairs
    score: str = "score"  # column of the score, rank or clicks
    # content of the column `score`; rank 1 and the most clicks become the score s_max
    score_from: Literal["score", "rank", "clicks"] = "score"
    s_max: Annotated[float, Range(1)] = 100.0  # highest score from ranks and clicks
    where: tuple[str, ...] = ()  # such as "split=train": only pairs with this value
    queries: str = ""  # file with a row per query; empty if the pairs have the queries' columns
    query_key: str = ""  # column of ids in that file; empty for the name in the pairs
    documents: str = ""  # file with a row per document; empty if the pairs have their columns
    document_key: str = ""  # column of ids in that file; empty for the name in the pairs
    where_documents: tuple[str, ...] = ()  # such as "corpus=A": only rank these documents
    text: tuple[str, ...] = ("query", "title")  # columns of texts, of queries and documents
    image: str = ""  # column of the documents' images: a path, bytes, or one or several keys
    images: str = ""  # file (npz, Parquet, ...) of the images with these keys
    image_key: str = "image_id"  # column of keys in that file
    image_value: str = "images"  # column of images in that file
    root: str = ""  # folder that image paths start from; empty for the folder of their file
    # skips pairs without ids or with an unknown query, instead of an error; evaluations always
    # count unknown documents as not found
    skip_unknown_ids: bool = False
    # score of a pair that occurs with different scores; refuse raises an error
    duplicates: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    negative: Literal["refuse", "zero"] = "refuse"  # a score below 0 is an error, or counts as 0
    # pairs with lower scores are skipped; 0 keeps all, 1 keeps relevant pairs for training
    min_relevance: NotNegative = 0.0
    rename: tuple[str, ...] = ()  # renamed columns, such as "queries.text=query", "pairs.pid=id"
    how_to_get: str = ""  # advice in the error message if `path` does not exist

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
            keys = ", ".join(f"{path}.{key} {name!r}" for key, name in names.items())
            yield f"{keys}: query, document and score need three columns."
        for term in self.rename:
            if not re.fullmatch(r"(pairs|queries|documents)\.[^=]+=.+", term, re.DOTALL):
                yield f"{path}.rename has {term!r}; write it like queries.text=query."
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
        for name, field in config.fields.items():
            if field.modality == "image" and not self.image:
                yield (
                    f"config.data.image is empty, but config.fields.{name} reads images; name the "
                    "column of the documents' images."
                )
            elif field.modality == "image" and field.column != "image":
                yield (
                    f"config.fields.{name}.column is {field.column!r}; judged pairs have their "
                    "image in 'image'."
                )

    def build(self) -> GradedPairs:
        ids = (self.query, self.document, self.score)
        table = _open(self, "pairs", self.path)
        queries = _file(self, "queries", self.query_key or self.query, self.query)
        documents = _file(self, "documents", self.document_key or self.document, self.document)
        shared = [] if queries or documents else [x for x in self.text if x not in ids]
        columns = _scan(table, ids[:2], ids[2:], shared)
        paired = Pairing(columns, self, table.place).resolve(queries, documents)
        for note in paired.notes:
            log.warning(f"{table.name}: {note}")
        owners = {x: owner(columns.texts[x], paired) for x in shared if x in columns.texts}
        names, query_names, document_names = _names(
            self, columns.columns, queries, documents, owners
        )

        def side(file: JudgedFile | None, label: str, id_column: str, **more: Any) -> SideRecords:
            return SideRecords(
                file.table if file else table,
                getattr(paired, label),
                key=file.key if file else id_column,
                id_column=id_column,
                texts=self.text,
                name=f"{table.name}, {label}",
                **more,
            )

        return GradedPairs(
            side(queries, "queries", self.query, columns=query_names),
            side(
                documents, "documents", self.document, columns=document_names, image=images_of(self)
            ),
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
    owners: Mapping[str, str],
) -> tuple[Names, Mapping[str, str], Mapping[str, str]]:
    """Returns the column names in the records of pairs, of queries, and of documents.

    Args:
      owners: results of `owner` for columns of the pairs' file.
    """
    ids, image = {config.query, config.document, config.score}, {config.image} - {""}
    query = queries.columns if queries else frozenset()
    document = documents.columns if documents else frozenset()
    if documents:
        check_known(documents.table.name, document, image)
    else:
        check_known(config.path, columns, image)
    pair = columns - ids - (frozenset() if documents else image)
    taken, shown = ids | ({IMAGE} if image else set()), document - image
    both = taken | (query & shown)
    names = Names(
        {x: f"pair.{x}" if x in taken | query | shown else x for x in pair},
        {x: f"query.{x}" if x in both else x for x in query},
        {x: f"document.{x}" if x in both else x for x in shown},
    )
    available = {*names.pair.values(), *names.query.values(), *names.document.values(), *ids}
    for text in config.text:
        if text not in available | query | document:
            raise UserError(
                f"the data's text has {text!r}, which neither queries nor documents of "
                f"{config.path} have; they have {', '.join(sorted(available))}."
            )

    def of_pairs(other: str, other_columns: frozenset[str]) -> Mapping[str, str]:
        return {
            column: name
            for column, name in names.pair.items()
            if owners.get(column) != other and column not in other_columns
        }

    return (
        names,
        names.query if queries else of_pairs("document", document),
        names.document if documents else of_pairs("query", query),
    )


def _file(config: Graded, side: str, key: str, id_column: str) -> JudgedFile | None:
    """Opens the file of queries or documents; returns None without a file."""
    path = getattr(config, side)
    if not path:
        return None
    table = _open(config, side, path, key)
    columns = _scan(table, (key,))
    ids = columns.texts[key]
    check_ids(ids, key, table.place)
    return JudgedFile(table, key, ids, columns.columns - ({key} if key == id_column else set()))


def _open(config: Graded, part: str, path: str, key: str = "") -> Table:
    """Returns the selected rows of one `part`: pairs, queries or documents.

    Args:
      key: column of the ids of a JSON object; empty for pairs.
    """
    prefix = f"{part}."
    names = terms_of([x.removeprefix(prefix) for x in config.rename if x.startswith(prefix)])

    def form_of(file: Path) -> Table | Reader:
        ending, keys = file.suffix.lower(), (config.query, config.document, config.score)
        if ending == ".json":
            return json_object_reader(file, key) if key else json_qrels_reader(file, *keys)
        if key or ending not in JUDGED:
            return by_ending(file)
        return qrels_reader(file, keys)

    advice = ADVICE if key else ADVICE_PAIRS
    has_images = path == place_of_images(config) and not config.root and not config.images
    image = next((old for old, new in names.items() if new == config.image), config.image)
    table, _ = table_of(
        find_files(path, config.how_to_get, advice), form_of, image if has_images else ""
    )
    where_key = {"pairs": "where", "documents": "where_documents"}.get(part, "")
    if where_key and (where := getattr(config, where_key)):
        table = selected(table, terms_of(where), where_key)
    return renamed(table, names)


def _scan(
    table: Table, texts: Sequence[str], numbers: Sequence[str] = (), optional: Sequence[str] = ()
) -> Scan:
    """Reads columns of all rows; `optional` columns of texts may be missing."""
    check_columns(table, (*texts, *numbers))
    more = [x for x in optional if table.columns is None or x in table.columns]
    result = scan(table, (*texts, *more), numbers)
    check_known(table.name, result.columns, (*texts, *numbers))
    present = {x: values for x, values in result.texts.items() if x in result.columns}
    return Scan(present, result.numbers, result.columns)
