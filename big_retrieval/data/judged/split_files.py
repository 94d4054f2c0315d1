"""The four-way split of a source of judged pairs, and the files that it is written to.

FOLDER/pairs.parquet      ids, score, the pairs' own columns, `split`
       queries.parquet    id, the queries' columns, `part` (training, novel), `use` (dev, test)
       documents.parquet  id, the documents' columns, `part`
       split.json         counts, seed and shares, how to read each split; written last
"""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.config import schema
from big_retrieval.config.graded import Graded
from big_retrieval.data.formats.columns import as_text, scan
from big_retrieval.data.formats.parquet import write_parquet
from big_retrieval.data.formats.prepared import SCHEME
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.judged.four_way import (
    SPLITS,
    FourWaySplit,
    draw,
    normal_text,
    on_both_sides,
    split_of,
)
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.judged.sides import SideRecords
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json

PAIRS, QUERIES, DOCUMENTS = "pairs.parquet", "queries.parquet", "documents.parquet"
SUMMARY = "split.json"
SPLIT, PART, USE = "split", "part", "use"  # the columns that are added
SIDES, USES = ("novel", "training"), ("test", "dev")


@dataclasses.dataclass(frozen=True)
class SplitOptions:
    """How to split.

    Attributes:
      seed: of the draw.
      query_share: of the queries, for training.
      document_share: of the documents, for training.
      dev_share: of the queries of either part, for development.
      group_column: of the documents; those with the same value stay together; "": each is alone.
    """

    seed: int = 0
    query_share: float = 0.8
    document_share: float = 0.5
    dev_share: float = 0.2
    group_column: str = ""


def split_files(
    source: GradedPairs, config: Graded, options: SplitOptions, folder: Path
) -> dict[str, Any]:
    """Draws the four-way split of a source and writes it.

    Args:
      source: what `config` describes.
      config: of the source.
      options: how to split.
      folder: made where it is missing.

    Returns:
      What split.json holds.

    Raises:
      UserError: there is too little to split, no such group column, a column that cannot be
        written, or a query or group of documents on both sides.
    """
    texts = query_keys(source.queries)
    groups = document_keys(source.documents, options.group_column)
    parts = draw(
        texts,
        groups,
        seed=options.seed,
        query_share=options.query_share,
        document_share=options.document_share,
        dev_share=options.dev_share,
    )
    for what, keys, trains in (
        ("query", texts, parts.query_trains),
        ("query", texts, parts.query_is_dev),
        (options.group_column or "document", groups, parts.document_trains),
    ):
        leaks = on_both_sides(keys, trains)
        if leaks:
            raise UserError(
                f"the split leaks: the {what} {leaks[0]!r:.80} is on both sides ({len(leaks):,} "
                "such); nothing was written, please report this."
            )
    folder = folder.absolute()
    durable.make_folder(folder)
    (folder / SUMMARY).unlink(missing_ok=True)
    durable.sync_folder(folder)  # an old summary must not come back for new files
    renamed = _write(source, config, parts, folder)
    summary = {
        **dataclasses.asdict(options),
        "origin": schema.to_plain(config),
        "left_out": list(source.notes),
        "renamed_columns": renamed,
        **count(source, parts),
        "queries_that_share_their_text": len(texts) - len(set(texts)),
        "document_texts_on_both_sides": _shared_texts(source.documents, parts.document_trains),
        "read": {split: schema.to_plain(reading(config, folder, split)) for split in SPLITS},
    }
    for name in (PAIRS, QUERIES, DOCUMENTS):
        durable.sync_file(folder / name)
    durable.write_bytes(folder / SUMMARY, to_json(summary))
    return summary


def query_keys(side: SideRecords) -> list[str]:
    """What makes queries the same: their texts without capitals and white space, else their ids."""
    keys = [_text_of(side, index) for index in range(len(side))]
    return [key or f"id {side.id(index)}" for index, key in enumerate(keys)]


def document_keys(side: SideRecords, group_column: str) -> list[str]:
    """What keeps documents together: the value of a column, else their ids.

    Raises:
      UserError: documents have no such column.
    """
    if not group_column:
        return [side.id(index) for index in range(len(side))]
    values = [as_text(side.value(index, group_column)) for index in range(len(side))]
    return [
        f"id {side.id(index)}" if value is None else f"in {value}"
        for index, value in enumerate(values)
    ]


def count(source: GradedPairs, parts: FourWaySplit) -> dict[str, Any]:
    """How many queries, documents and pairs each part and split has."""
    judged = source.qrels
    split = split_of(judged.query, judged.document, parts)
    splits = {}
    for number, name in enumerate(SPLITS):
        queries, documents = judged.query[split == number], judged.document[split == number]
        known = parts.document_trains == (name in ("in_domain", "novel_query"))
        different = np.unique(queries)
        splits[name] = {
            "pairs": len(queries),
            "queries": len(different),
            "dev_queries": int(parts.query_is_dev[different].sum()),
            "documents": int(known.sum()),
            "judged_documents": len(np.unique(documents)),
        }
    sides = {"queries": parts.query_trains, "documents": parts.document_trains}
    both = {
        name: {"training": int(trains.sum()), "novel": int((~trains).sum())}
        for name, trains in sides.items()
    }
    return {**both, "splits": splits}


def reading(config: Graded, folder: Path, split: str) -> Graded:
    """The configuration that reads one split of the files that were written."""
    part = SIDES[split in ("in_domain", "novel_query")]
    where = config.images or config.documents or config.path
    in_files = config.image and not where.startswith(SCHEME)
    root = config.root or (str(Path(where).parent.absolute()) if in_files else "")
    return dataclasses.replace(
        config,
        path=str(folder / PAIRS),
        score_from="score",
        where=(f"{SPLIT}={split}",),
        queries=str(folder / QUERIES),
        query_key="",
        documents=str(folder / DOCUMENTS),
        document_key="",
        where_documents=(f"{PART}={part}",),
        duplicates="refuse",
        negative="refuse",
        min_relevance=0.0,
        rename=(),
        root=root,
    )


def _write(
    source: GradedPairs, config: Graded, parts: FourWaySplit, folder: Path
) -> dict[str, str]:
    """Writes the three Parquet files; returns the columns that had to be renamed."""
    queries, documents, judged = source.queries, source.documents, source.qrels
    query_ids, document_ids = _ids(queries), _ids(documents)
    of_query, of_document = pa.array(judged.query), pa.array(judged.document)
    split = split_of(judged.query, judged.document, parts)
    for_queries = _own_columns(queries, documents, bool(config.queries))
    for_documents = _own_columns(documents, queries, bool(config.documents))
    moved = [x for x in for_queries if not config.queries and _same(source, queries, of_query, x)]
    moved += [
        x
        for x in for_documents
        if not config.documents and _same(source, documents, of_document, x)
    ]
    renamed: dict[str, str] = {}

    def write(name: str, table: Table | None, columns: Collection[str], **added: pa.Array) -> None:
        names = _names(columns, added)
        renamed.update({f"{name}: {old}": new for old, new in names.items() if old != new})
        write_parquet(folder / name, table, names, added)

    ids = {config.query: query_ids.take(of_query), config.document: document_ids.take(of_document)}
    ids[config.score] = pa.array(judged.score)
    write(
        PAIRS,
        source.file(),
        [x for x in source.names.pair if x not in moved],
        **ids,
        **{SPLIT: _chosen(SPLITS, split)},
    )
    added = {PART: _chosen(SIDES, parts.query_trains), USE: _chosen(USES, parts.query_is_dev)}
    write(QUERIES, queries.file(), for_queries, **{config.query: query_ids}, **added)
    added = {PART: _chosen(SIDES, parts.document_trains)}
    image = [config.image] if config.image else []
    write(
        DOCUMENTS,
        documents.file(),
        [*for_documents, *image],
        **{config.document: document_ids},
        **added,
    )
    return renamed


def _own_columns(side: SideRecords, other: SideRecords, has_file: bool) -> list[str]:
    """The columns that go into the file of one side."""
    if has_file:
        return list(side.columns)
    own = set(side.columns) & set(side.text_columns)  # all else of the pairs' file stays there
    return sorted(own - set(other.columns))


def _same(source: GradedPairs, side: SideRecords, numbers: pa.Array, column: str) -> bool:
    """Whether a column of the pairs' file says of every pair what it says of its query (document).

    Args:
      source: the pairs.
      side: made from the same file.
      numbers: of the pairs' queries (documents), [n].
      column: the file's.
    """
    table = source.file()
    if table is None:
        return True
    own = scan(side.file(), (column,)).texts[column].fill_null("").take(numbers)
    return own.equals(scan(table, (column,)).texts[column].fill_null(""))


def _names(columns: Collection[str], added: Collection[str]) -> dict[str, str]:
    """Columns of a file -> their names beside those that are added."""
    names = {}
    for column in columns:
        name = column
        while name in added or (name != column and name in columns):
            name += "_before"
        names[column] = name
    return names


def _ids(side: SideRecords) -> pa.Array:
    return pa.array([side.id(index) for index in range(len(side))], pa.large_string())


def _chosen(words: Sequence[str], numbers: np.ndarray) -> pa.Array:
    return pa.array(words).take(pa.array(numbers.astype(np.int8)))


def _text_of(side: SideRecords, index: int) -> str:
    """All texts of a record in their normal form; "" where it has none."""
    found = []
    for column in side.text_columns:
        try:
            found += side.texts(index, column)
        except Damaged:
            continue
    return "\n".join(normal_text(text) for text in found)


def _shared_texts(side: SideRecords, trains: np.ndarray) -> int:
    """How many texts of documents are both for training and not."""
    found = {side_of: set() for side_of in (False, True)}
    for index, training in enumerate(trains):
        found[bool(training)].add(_text_of(side, index))
    return len((found[False] & found[True]) - {""})
