"""Writes the four-way split of judged pairs.

    FOLDER/pairs.parquet      ids, score, the pairs' columns, `split`
           queries.parquet    id, the queries' columns, `part` (training, novel), `use` (dev, test)
           documents.parquet  id, the documents' columns, `part`
           split.json         counts, seed, shares, and the config of each split; written last

If a column has the name of a new column, `_before` is appended to its name.
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
    draw_split,
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
SPLIT, PART, USE = "split", "part", "use"  # new columns
SIDES, USES = ("novel", "training"), ("test", "dev")


def split_files(
    source: GradedPairs, config: Graded, options: SplitOptions, folder: Path
) -> dict[str, Any]:
    """Draws the four-way split of a source and writes it.

    Returns:
      Content of split.json.
    """
    ids = {"query": source.queries.ids(), "document": source.documents.ids()}
    texts = [_text_of(source.queries, index) for index in range(len(source.queries))]
    queries = [x or f"id {key}" for x, key in zip(texts, ids["query"].to_pylist(), strict=True)]
    documents = _groups(source.documents, ids["document"].to_pylist(), options.group_column)
    parts = draw_split(queries, documents, options)
    for label, keys, trains in (
        ("query", queries, parts.query_trains),
        ("query", queries, parts.query_is_dev),
        (options.group_column or "document", documents, parts.document_trains),
    ):
        leaks = on_both_sides(keys, trains)
        if leaks:
            raise UserError(
                f"the split leaks: the {label} {leaks[0]!r:.80} is on both sides ({len(leaks):,} "
                "such). Nothing was written. Report this as a bug."
            )
    folder = folder.absolute()
    durable.make_folder(folder)
    (folder / SUMMARY).unlink(missing_ok=True)
    durable.sync_folder(folder)  # else, a crash could leave an old summary next to new files
    renamed = _write_files(source, config, parts, ids, folder)
    document_texts = [_text_of(source.documents, index) for index in range(len(source.documents))]
    summary = {
        **dataclasses.asdict(options),
        "origin": schema.to_plain(config),
        "skipped": list(source.notes),
        "renamed_columns": renamed,
        **count(source, parts),
        "queries_that_share_their_text": len(queries) - len(set(queries)),
        "document_texts_on_both_sides": len(
            set(on_both_sides(document_texts, parts.document_trains)) - {""}
        ),
        "read": {split: schema.to_plain(reading(config, folder, split)) for split in SPLITS},
    }
    for name in (PAIRS, QUERIES, DOCUMENTS):
        durable.sync_file(folder / name)
    durable.write_bytes(folder / SUMMARY, to_json(summary))
    return summary


def _text_of(side: SideRecords, index: int) -> str:
    texts = []
    for column in side.text_columns:
        with contextlib.suppress(Damaged):
            texts += side.texts(index, column)
    return "\n".join(normalize_text(text, ignore_case=True) for text in texts)


def _groups(documents: SideRecords, ids: list[str], column: str) -> list[str]:
    """Returns each document's key: a value of `column`, else the id. Equal keys stay together."""
    if not column:
        return ids
    values = [as_text(documents.value(index, column)) for index in range(len(documents))]
    pairs = zip(values, ids, strict=True)
    return [f"id {key}" if value is None else f"in {value}" for value, key in pairs]


def count(source: GradedPairs, parts: FourWaySplit) -> dict[str, Any]:
    """Counts the queries, documents and pairs of each part and split."""
    judged = source.qrels
    split = split_of(judged.query, judged.document, parts)
    splits = {}
    for index, name in enumerate(SPLITS):
        queries = np.unique(judged.query[split == index])
        in_part = parts.document_trains == (name in ("in_domain", "novel_query"))
        splits[name] = {
            "pairs": int((split == index).sum()),
            "queries": len(queries),
            "dev_queries": int(parts.query_is_dev[queries].sum()),
            "documents": int(in_part.sum()),
            "judged_documents": len(np.unique(judged.document[split == index])),
        }
    sides = {"queries": parts.query_trains, "documents": parts.document_trains}
    counts = {
        name: {"training": int(trains.sum()), "novel": int((~trains).sum())}
        for name, trains in sides.items()
    }
    return {**counts, "splits": splits}


def reading(config: Graded, folder: Path, split: str) -> Graded:
    """Returns the config that reads one split of the written files."""
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


def _write_files(
    source: GradedPairs, config: Graded, parts: FourWaySplit, ids: dict[str, pa.Array], folder: Path
) -> dict[str, str]:
    """Writes the three Parquet files; returns the renamed columns."""
    judged, renamed = source.qrels, {}
    query, document = pa.array(judged.query), pa.array(judged.document)
    queries, documents = source.queries, source.documents
    query_columns = _side_columns(queries, documents, bool(config.queries))
    document_columns = _side_columns(documents, queries, bool(config.documents))
    moved = set()  # columns that move from the pairs' file to the file of one side
    if not config.queries:
        moved |= {x for x in query_columns if _is_constant(source, queries, query, x)}
    if not config.documents:
        moved |= {x for x in document_columns if _is_constant(source, documents, document, x)}

    def write_table(
        name: str, table: Table | None, columns: Sequence[str], **added: pa.Array
    ) -> None:
        names = {}
        for column in columns:
            new = column
            while new in added or (new != column and new in columns):
                new += "_before"
            names[column] = new
        renamed.update({f"{name}: {old}": new for old, new in names.items() if old != new})
        write_parquet(folder / name, table, names, added)

    split = split_of(judged.query, judged.document, parts)
    write_table(
        PAIRS,
        source.file,
        [x for x in source.names.pair if x not in moved],
        **{
            config.query: ids["query"].take(query),
            config.document: ids["document"].take(document),
            config.score: pa.array(judged.score),
            SPLIT: _labels(SPLITS, split),
        },
    )
    added = {
        config.query: ids["query"],
        PART: _labels(SIDES, parts.query_trains),
        USE: _labels(USES, parts.query_is_dev),
    }
    write_table(QUERIES, queries.file, query_columns, **added)
    document_columns += [config.image] if config.image else []
    added = {config.document: ids["document"], PART: _labels(SIDES, parts.document_trains)}
    write_table(DOCUMENTS, documents.file, document_columns, **added)
    return renamed


def _side_columns(side: SideRecords, other: SideRecords, has_file: bool) -> list[str]:
    """Returns the columns for the file of one side; from the pairs' file, only texts."""
    if has_file:
        return list(side.columns)
    return sorted(set(side.columns) & set(side.text_columns) - set(other.columns))


def _is_constant(source: GradedPairs, side: SideRecords, indices: pa.Array, column: str) -> bool:
    """Returns True if a column has one value for all pairs of each query, or of each document."""
    if source.file is None:
        return True
    files = (side.file, source.file)
    side_texts, texts = (scan(x, (column,)).texts[column].fill_null("") for x in files)
    return side_texts.take(indices).equals(texts)


def _labels(names: Sequence[str], indices: np.ndarray) -> pa.Array:
    return pa.array(names).take(pa.array(indices.astype(np.int8)))


def format_summary(summary: dict[str, Any]) -> list[str]:
    """Formats the result of `split_files` as lines."""
    lines = [
        f"{name:15} {counts['training']:>10,} for training, {counts['novel']:,} novel"
        for name, counts in ((name, summary[name]) for name in ("queries", "documents"))
    ]
    for name, counts in summary["splits"].items():
        lines.append(
            f"{name:15} {counts['pairs']:>10,} pairs, {counts['queries']:,} queries "
            f"({counts['dev_queries']:,} dev), {counts['documents']:,} documents "
            f"({counts['judged_documents']:,} judged)"
        )
    lines += [f"skipped         {note}" for note in summary["skipped"]]
    lines += [f"renamed         {old} is {new}" for old, new in summary["renamed_columns"].items()]
    group = summary["group_column"]
    lines.append(
        f"leaks           none: no query text and no {group or 'document'} is on both sides"
    )
    shared = summary["queries_that_share_their_text"]
    texts = summary["document_texts_on_both_sides"]
    if shared:
        lines.append(f"                {shared:,} queries have the text of another query")
    if texts:
        lines.append(
            f"                {texts:,} texts of documents are on both sides under different ids; "
            "--group_column keeps documents together"
        )
    keys = _changed(summary["read"]["in_domain"])
    lines.append("to train on it  --config.data.type=graded " + " ".join(keys))
    return lines


def _changed(read: dict[str, Any]) -> list[str]:
    """Returns flags for the keys of a source that differ from the defaults."""
    default, flags = Graded(), []
    for name, value in read.items():
        value = tuple(value) if isinstance(value, list) else value
        if value == getattr(default, name):
            continue
        if isinstance(value, tuple):
            value = "'" + repr(value).replace("'", '"') + "'"
        flags.append(f"--config.data.{name}={value}")
    return flags
