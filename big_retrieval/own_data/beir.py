"""Queries, documents and judgements in files of their own: BEIR's folders and MS MARCO's."""

import csv
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from big_retrieval.config.sources import Source
from big_retrieval.data.formats.lines import DelimitedLines
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.whole import judged_lines
from big_retrieval.data.passages.published import Beir, has_titles
from big_retrieval.data.sources import Record, evenly_spaced
from big_retrieval.data.stores.delimited import delimited
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.own_data import machine
from big_retrieval.own_data.columns import look
from big_retrieval.own_data.roles import Roles
from big_retrieval.own_data.rows import read_rows, write_rows
from big_retrieval.own_data.splits import split_word, with_validation
from big_retrieval.own_data.splitting import MOST, SHARE, hash_of
from big_retrieval.own_data.tasks import TrainingTask

log = logging.getLogger(__name__)
COLUMNS = ("query-id", "corpus-id", "score")
RANKED = {True: 5_000, False: 100_000}  # documents of an evaluation: on CPUs alone, and elsewhere


def beir_task(data: str, folder: Path) -> TrainingTask | None:
    """The task of a folder in BEIR's form, or in MS MARCO's, which is written in BEIR's first.

    Args:
      data: a folder.
      folder: where files for the run are written.

    Returns:
      The task; None: the folder has another form.

    Raises:
      UserError: no file of judgements is there, or none is for training.
    """
    given = Path(data).absolute()
    if (given / "collection.tsv").is_file() and any(given.glob("qrels*.tsv")):
        given = _from_marco(given, folder.absolute() / "beir")
    if not is_beir(given):
        return None
    if not any((given / "qrels").glob("*.tsv")):
        raise UserError(
            f"--data: {data} has queries and documents, but no qrels/train.tsv that says which "
            "documents answer which query: add it (query-id, corpus-id and score, by tabs)."
        )
    durable.make_folder(folder)
    splits, documents = _splits(given), file_table(given / "corpus.jsonl")
    told = ", ".join(f"{stem}.tsv for {name}" for name, stem in splits.items())
    log.info(f"data {data}: {len(documents):,} documents, queries and judgements: {told}")
    most = RANKED[machine.here().small]
    sources: dict[str, Source] = {
        name: _source(given, stem, name == "train") for name, stem in splits.items()
    }
    needed = splits if len(splits) == 1 or len(documents) > most else {}
    judged = {name: _judged(given / "qrels" / f"{stem}.tsv") for name, stem in needed.items()}
    train = _source(given, splits["train"], for_training=True).judged_pairs()
    if "validation" not in splits:
        mine, judged["validation"] = _divided(judged["train"], SHARE)
        path = _write_judged(folder / "qrels" / "train.tsv", mine)
        sources["train"] = train = dataclasses.replace(train, path=path)
    for name in judged.keys() - {"train"}:
        sources[name] = _smaller(given, folder.absolute() / name, judged[name], most)
    queries = look(file_table(given / "queries.jsonl"), given)["text"]
    roles = {"query": "query", "document": "text", "title": "title" if has_titles(given) else ""}
    lines = ["queries.jsonl has the queries, corpus.jsonl the documents, qrels which ones fit"]
    columns = {"query": queries, "text": look(documents, given)["text"]}
    records = len(train.build())
    return TrainingTask(Roles("answers", roles, lines), columns, sources, records)


def _splits(given: Path) -> dict[str, str]:
    """Split -> name of the file that has its judgements; "train" is among them."""
    stems = sorted((x.stem for x in (given / "qrels").glob("*.tsv")), key=len, reverse=True)
    found = {split_word(stem): stem for stem in stems}  # of dev.small and dev the shorter one
    if len(stems) == 1:
        return {"train": stems[0]}
    if "train" not in found:
        raise UserError(
            f"--data: {given / 'qrels'} has {', '.join(f'{x}.tsv' for x in sorted(stems))} and "
            "none for training: call the one to train on train.tsv."
        )
    with_validation(found)
    return {name: stem for name, stem in found.items() if name}


def _source(given: Path, stem: str, for_training: bool = False) -> Beir:
    least = 1.0 if for_training else 0.0
    return Beir(
        path=str(given), split=stem, min_relevance=least, duplicates="max", skip_unknown_ids=True
    )


def is_beir(folder: Path) -> bool:
    """Whether a folder has the files of queries and documents of BEIR's data sets."""
    return all((folder / name).is_file() for name in ("corpus.jsonl", "queries.jsonl"))


def _judged(file: Path) -> list[Record]:
    table = judged_lines(file, *COLUMNS) or open_store([file], delimited("\t"))
    return [table.row(index, COLUMNS) for index in range(len(table))]


def _write_judged(file: Path, pairs: Iterable[Record]) -> str:
    durable.make_folder(file.parent)
    with file.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, "excel-tab", lineterminator="\n")
        rows.writerow(COLUMNS)
        rows.writerows([pair[name] for name in COLUMNS] for pair in pairs)
    return str(file.absolute())


def _divided(pairs: list[Record], share: float) -> tuple[list[Record], list[Record]]:
    """The judgements of most queries and of a share of them, by hashes of their ids."""
    order = sorted({pair[COLUMNS[0]] for pair in pairs}, key=lambda x: hash_of(x.encode()))
    held = set(order[: min(MOST, max(1, round(share * len(order))))])
    parts: tuple[list[Record], list[Record]] = ([], [])
    for pair in pairs:
        parts[pair[COLUMNS[0]] in held].append(pair)
    return parts


def _smaller(given: Path, out: Path, pairs: list[Record], most: int) -> Beir:
    """A folder with at most `MOST` queries of some judgements, and `most` documents or the judged.

    Numbers are higher than those of all documents, which is told.
    """
    _, pairs = _divided(pairs, 1.0)
    asked, judged = ({pair[name] for pair in pairs} for name in COLUMNS[:2])
    _write_judged(out / "qrels" / "validation.tsv", pairs)
    documents = file_table(given / "corpus.jsonl")
    others = set(evenly_spaced(len(documents), max(0, most - len(judged))).tolist())
    rows = enumerate(_all(documents))
    kept = (row for at, row in rows if at in others or row.get("_id") in judged)
    ranked = len(file_table(write_rows(out / "corpus", kept, "")))
    queries = _all(file_table(given / "queries.jsonl"))
    write_rows(out / "queries", (row for row in queries if row.get("_id") in asked), "")
    more = "" if ranked == len(documents) else ": numbers are higher than those of all documents"
    log.info(
        f"{out.name}: {len(asked):,} queries, for which {ranked:,} of {len(documents):,} documents "
        f"are ranked{more}"
    )
    return _source(out, "validation")


def _all(table: Table) -> Iterator[Record]:
    return read_rows(table, range(len(table)), "", Path())


def _from_marco(given: Path, out: Path) -> Path:
    """Writes MS MARCO's files, which have no header lines, in BEIR's form; the folder."""
    log.info(f"writes collection.tsv, queries and qrels as JSON lines to {out} ...")
    for file in given.glob("qrels*.tsv"):
        stem = file.stem.removeprefix("qrels").strip(".-_") or "train"
        _write_judged(out / "qrels" / f"{stem}.tsv", _judged(file))
    for name, files in (("corpus", "collection.tsv"), ("queries", "queries*.tsv")):
        tables = [DelimitedLines(file, ("_id", "text")) for file in sorted(given.glob(files))]
        write_rows(out / name, (row for table in tables for row in _all(table)), "")
    return out
