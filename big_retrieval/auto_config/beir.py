"""Folders with queries, documents and judgments in separate files: BEIR's and MS MARCO's forms."""

import contextlib
import csv
import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from big_retrieval.auto_config import machine
from big_retrieval.auto_config.columns import Roles
from big_retrieval.auto_config.find import split_word
from big_retrieval.auto_config.records import MOST, SAMPLED, SHARE, RecordSample, hash_of, read_keys
from big_retrieval.auto_config.tasks import TrainingTask
from big_retrieval.config.sources import Source
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.passages.published import Beir, has_titles
from big_retrieval.data.sources import Record, evenly_spaced
from big_retrieval.data.stores.headerless import read_tabs
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.trec import read_qrels
from big_retrieval.io import durable
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
RANKED = {True: 5_000, False: 100_000}  # maximum number of ranked documents: on CPUs, else
Judgments = Mapping[str, Mapping[str, float]]  # query -> document -> relevance


def is_beir(folder: Path) -> bool:
    """Returns True for a folder with BEIR's files of queries and documents."""
    return all((folder / name).is_file() for name in ("corpus.jsonl", "queries.jsonl"))


def beir_task(data: str, folder: Path) -> TrainingTask | None:
    """Returns the task of a folder in BEIR's or MS MARCO's form, or None for another form."""
    root, folder = Path(data).absolute(), folder.absolute()
    if (root / "collection.tsv").is_file() and any(root.glob("qrels*.tsv")):
        root = _from_marco(root, folder / "beir")
    if not is_beir(root):
        return None
    splits = _splits(root)
    documents, queries = (file_table(root / f"{x}.jsonl") for x in ("corpus", "queries"))
    names = ", ".join(f"{stem}.tsv for {name}" for name, stem in splits.items())
    log.info(f"data {data}: {count_of(len(documents), 'document')}, judgments {names}")
    durable.make_folder(folder)
    train = Beir(
        path=str(root), split=splits["train"], min_relevance=1.0, duplicates="max",
        skip_unknown_ids=True,
    )  # fmt: skip
    sources: dict[str, Source] = {"train": train}
    ranked = dataclasses.replace(train, min_relevance=0.0)

    def judgments(split: str, share: float) -> tuple[Judgments, Judgments]:
        return _divided(read_qrels(root / "qrels" / f"{splits[split]}.tsv", "max"), share)

    if "validation" not in splits:
        held_out, remaining = judgments("train", SHARE)
        path = _write_judgments(folder / "train.tsv", remaining)
        sources["train"] = dataclasses.replace(train.judged_pairs(), path=path, how_to_get="")
        sources["validation"] = _ranked(ranked, documents, folder, "validation", held_out)
    for name, stem in splits.items():
        if name != "train":
            sources[name] = dataclasses.replace(ranked, split=stem)
            if len(documents) > RANKED[machine.here().is_small]:
                limited, _ = judgments(name, 1.0)
                sources[name] = _ranked(ranked, documents, folder, name, limited)
    word_counts = {"query": _words(queries), "text": _words(documents)}
    title = "title" if has_titles(root) else ""
    columns = {"query": "query", "document": "text", "title": title}
    messages = ["queries.jsonl has the queries, corpus.jsonl the documents, qrels the judgments"]
    records = len(sources["train"].build())
    return TrainingTask(
        Roles("answers", columns, messages), RecordSample(word_counts), sources, records
    )


def _words(table: Table) -> list[int]:
    source, rows = Records(table, image=(), text="text"), evenly_spaced(len(table), SAMPLED)
    return read_keys(source, rows.tolist(), False, ["text"]).sample.words.get("text", [])


def _splits(root: Path) -> dict[str, str]:
    """Returns split -> stem of its file of judgments; raises a UserError without "train"."""
    stems = sorted((x.stem for x in (root / "qrels").glob("*.tsv")), key=len, reverse=True)
    splits = {split_word(stem): stem for stem in stems}  # the shortest name wins: dev, not dev.x
    if len(stems) == 1:
        return {"train": stems[0]}
    if "train" not in splits:
        raise UserError(
            f"--data: {root} has no qrels/train.tsv ({len(stems)} other files of judgments). Give "
            "it the judgments for training: query-id, corpus-id and score, separated by tabs."
        )
    return {name: stem for name, stem in splits.items() if name}


def _divided(judgments: Judgments, share: float) -> tuple[Judgments, Judgments]:
    """Divides judgments by query: a share of at most `MOST` queries, and the others."""
    order = sorted(judgments, key=lambda query: hash_of(query.encode()))
    count = min(MOST, max(1, round(share * len(order))))
    return {x: judgments[x] for x in order[:count]}, {x: judgments[x] for x in order[count:]}


def _write_judgments(path: Path, judgments: Judgments) -> str:
    with path.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, "excel-tab", lineterminator="\n")
        rows.writerow(("query-id", "corpus-id", "score"))
        for query, documents in judgments.items():
            rows.writerows((query, document, f"{x:g}") for document, x in documents.items())
    return str(path)


def _ranked(
    source: Beir, documents: Table, folder: Path, name: str, judgments: Judgments
) -> Source:
    """Returns the source of an evaluation with some judgments and at most `RANKED` documents."""
    limit = RANKED[machine.here().is_small]
    path = _write_judgments(folder / f"{name}.tsv", judgments)
    pairs = dataclasses.replace(source.judged_pairs(), path=path, how_to_get="")
    if len(documents) <= limit:
        return pairs
    judged = {document for scores in judgments.values() for document in scores}
    sampled = set(evenly_spaced(len(documents), max(0, limit - len(judged))).tolist())
    out, ranked = folder / f"{name}_corpus.jsonl", 0
    with out.open("w", encoding="utf-8", errors="replace") as file:
        for index in range(len(documents)):
            with contextlib.suppress(Damaged):
                row = documents.row(index)
                if index in sampled or str(row.get("_id")) in judged:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                    ranked += 1
    log.info(
        f"{name}: {len(judgments):,} queries rank {ranked:,} of {len(documents):,} documents, so "
        "metrics are higher than with all documents"
    )
    return dataclasses.replace(pairs, documents=str(out))


def _from_marco(root: Path, out: Path) -> Path:
    """Writes MS MARCO's files, which have no header lines, in BEIR's form; returns the folder."""
    log.info(f"writing collection.tsv, queries and qrels as JSON lines to {out} ...")
    durable.make_folder(out / "qrels")
    for file in root.glob("qrels*.tsv"):
        stem = file.stem.removeprefix("qrels").strip(".-_") or "train"
        _write_judgments(out / "qrels" / f"{stem}.tsv", read_qrels(file, "max"))
    for name, pattern in (("corpus", "collection.tsv"), ("queries", "queries*.tsv")):
        with (out / f"{name}.jsonl").open("w", encoding="utf-8") as written:
            for row in itertools.chain.from_iterable(map(_marco_rows, sorted(root.glob(pattern)))):
                written.write(json.dumps(row, ensure_ascii=False) + "\n")
    return out


def _marco_rows(file: Path) -> Iterator[Record]:
    for block in read_tabs(file, ("_id", "text"), 2):
        for line, reason in zip(block.places, block.reasons, strict=True):
            if reason:
                raise UserError(f"--data: {file}, line {line}: {reason}. Correct the line.")
        for note in block.notes:
            log.warning(note)
        columns = (block.columns.get(name, ()) for name in ("_id", "text"))
        yield from ({"_id": key, "text": text} for key, text in zip(*columns, strict=True))
