"""The four-way split of a source of judged pairs, and the files that it is written to.

FOLDER/pairs.parquet      ids, score, the pairs' own columns, `split`
       queries.parquet    id, the queries' columns, `part` (training, novel), `use` (dev, test)
       documents.parquet  id, the documents' columns, `part`
       split.json         counts, seed and shares, how to read each split; written last
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from big_retrieval.config import schema
from big_retrieval.data.formats.columns import as_text, scan
from big_retrieval.data.formats.parquet import write_parquet
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.judged.four_way import (
    SPLITS,
    FourWaySplit,
    SplitOptions,
    draw,
    on_both_sides,
    split_of,
)
from big_retrieval.data.judged.graded import GradedPairs, SideRecords
from big_retrieval.data.judged.open_graded import Graded
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io import durable
from big_retrieval.io.manifest import to_json

PAIRS, QUERIES, DOCUMENTS = "pairs.parquet", "queries.parquet", "documents.parquet"
SUMMARY = "split.json"
SPLIT, PART, USE = "split", "part", "use"  # the columns that are added
SIDES, USES = ("novel", "training"), ("test", "dev")


def split_files(
    source: GradedPairs, config: Graded, options: SplitOptions, folder: Path
) -> dict[str, Any]:
    """Draws the four-way split of a source and writes it.

    Returns:
      What split.json holds.

    Raises:
      UserError: there is too little to split, no such group column, a column that cannot be
        written, or a query or group of documents on both sides.
    """
    ids = {"query": source.queries.ids(), "document": source.documents.ids()}
    texts = [_text_of(source.queries, index) for index in range(len(source.queries))]
    queries = [x or f"id {key}" for x, key in zip(texts, ids["query"].to_pylist(), strict=True)]
    documents = _groups(source.documents, ids["document"].to_pylist(), options.group_column)
    parts = draw(queries, documents, options)
    for what, keys, trains in (
        ("query", queries, parts.query_trains),
        ("query", queries, parts.query_is_dev),
        (options.group_column or "document", documents, parts.document_trains),
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
    renamed = _write(source, config, parts, ids, folder)
    shown = [_text_of(source.documents, index) for index in range(len(source.documents))]
    summary = {
        **dataclasses.asdict(options),
        "origin": schema.to_plain(config),
        "skipped": list(source.notes),
        "renamed_columns": renamed,
        **count(source, parts),
        "queries_that_share_their_text": len(queries) - len(set(queries)),
        "document_texts_on_both_sides": len(
            set(on_both_sides(shown, parts.document_trains)) - {""}
        ),
        "read": {split: schema.to_plain(reading(config, folder, split)) for split in SPLITS},
    }
    for name in (PAIRS, QUERIES, DOCUMENTS):
        durable.sync_file(folder / name)
    durable.write_bytes(folder / SUMMARY, to_json(summary))
    return summary


def _text_of(side: SideRecords, index: int) -> str:
    """All texts of a record without capitals and white space that says nothing; "": it has none."""
    found = []
    for column in side.text_columns:
        with contextlib.suppress(Damaged):
            found += side.texts(index, column)
    return "\n".join(normalize_text(text, ignore_case=True) for text in found)


def _groups(documents: SideRecords, ids: list[str], column: str) -> list[str]:
    """What keeps documents together: the value of a column, else their ids."""
    if not column:
        return ids
    values = [as_text(documents.value(index, column)) for index in range(len(documents))]
    pairs = zip(values, ids, strict=True)
    return [f"id {key}" if value is None else f"in {value}" for value, key in pairs]


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
    root = config.root or (str(Path(where).parent.absolute()) if config.image else "")
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
    source: GradedPairs, config: Graded, parts: FourWaySplit, ids: dict[str, pa.Array], folder: Path
) -> dict[str, str]:
    """Writes the three Parquet files; returns the columns that had to be renamed."""
    judged, renamed = source.qrels, {}
    numbers = {"query": pa.array(judged.query), "document": pa.array(judged.document)}
    queries, documents = source.queries, source.documents
    of_queries = _own_columns(queries, documents, bool(config.queries))
    of_documents = _own_columns(documents, queries, bool(config.documents))
    moved = set()  # columns of the pairs' file that say of every pair what its query's file says
    if not config.queries:
        moved |= {x for x in of_queries if _same(source, queries, numbers["query"], x)}
    if not config.documents:
        moved |= {x for x in of_documents if _same(source, documents, numbers["document"], x)}

    def write(name: str, table: Table | None, columns: Sequence[str], **added: pa.Array) -> None:
        names = {}
        for column in columns:
            new = column
            while new in added or (new != column and new in columns):
                new += "_before"
            names[column] = new
        renamed.update({f"{name}: {old}": new for old, new in names.items() if old != new})
        write_parquet(folder / name, table, names, added)

    split = split_of(judged.query, judged.document, parts)
    write(
        PAIRS,
        source.file,
        [x for x in source.names.pair if x not in moved],
        **{
            config.query: ids["query"].take(numbers["query"]),
            config.document: ids["document"].take(numbers["document"]),
            config.score: pa.array(judged.score),
            SPLIT: _chosen(SPLITS, split),
        },
    )
    part, use = _chosen(SIDES, parts.query_trains), _chosen(USES, parts.query_is_dev)
    write(QUERIES, queries.file, of_queries, **{config.query: ids["query"], PART: part, USE: use})
    part = _chosen(SIDES, parts.document_trains)
    shown = [*of_documents, *([config.image] if config.image else [])]
    write(DOCUMENTS, documents.file, shown, **{config.document: ids["document"], PART: part})
    return renamed


def _own_columns(side: SideRecords, other: SideRecords, has_file: bool) -> list[str]:
    """The columns that go into the file of one side; of the pairs' file its texts alone."""
    if has_file:
        return list(side.columns)
    return sorted(set(side.columns) & set(side.text_columns) - set(other.columns))


def _same(source: GradedPairs, side: SideRecords, numbers: pa.Array, column: str) -> bool:
    """Returns True if a column has one value for all pairs of each query, or of each document."""
    if source.file is None:
        return True
    own, whole = (scan(x, (column,)).texts[column].fill_null("") for x in (side.file, source.file))
    return own.take(numbers).equals(whole)


def _chosen(words: Sequence[str], numbers: np.ndarray) -> pa.Array:
    return pa.array(words).take(pa.array(numbers.astype(np.int8)))


def describe(summary: dict[str, Any]) -> list[str]:
    """The lines that tell a user what `split_files` wrote; takes what it returns."""
    lines = [
        f"{what:15} {found['training']:>10,} for training, {found['novel']:,} novel"
        for what, found in ((what, summary[what]) for what in ("queries", "documents"))
    ]
    for name, found in summary["splits"].items():
        lines.append(
            f"{name:15} {found['pairs']:>10,} pairs, {found['queries']:,} queries "
            f"({found['dev_queries']:,} dev), {found['documents']:,} documents "
            f"({found['judged_documents']:,} judged)"
        )
    lines += [f"skipped         {note}" for note in summary["skipped"]]
    lines += [f"renamed         {old} is {new}" for old, new in summary["renamed_columns"].items()]
    group = summary["group_column"]
    lines.append(
        f"leaks           none: no query text and no {group or 'document'} is on both sides"
    )
    same, texts = summary["queries_that_share_their_text"], summary["document_texts_on_both_sides"]
    if same:
        lines.append(f"                {same:,} queries have the text of another one")
    if texts:
        lines.append(
            f"                {texts:,} texts of documents are on both sides under different ids; "
            "--group_column keeps documents together"
        )
    keys = _changed(summary["read"]["in_domain"])
    lines.append("to train on it  --config.data.type=graded " + " ".join(keys))
    return lines


def _changed(read: dict[str, Any]) -> list[str]:
    """The keys of a source that differ from the default, as the command line takes them."""
    default, out = Graded(), []
    for name, value in read.items():
        value = tuple(value) if isinstance(value, list) else value
        if value == getattr(default, name):
            continue
        if isinstance(value, tuple):
            value = "'" + repr(value).replace("'", '"') + "'"
        out.append(f"--config.data.{name}={value}")
    return out
