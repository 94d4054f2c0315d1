"""Builds an index, or the files of another tool, from a checkpoint and files of documents."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import registry, schema
from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.open_files import split_paths
from big_retrieval.data.stores.store import Store
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.io import manifest
from big_retrieval.retrieval import dense, exports, folder, inverted
from big_retrieval.retrieval.documents import DocumentRow
from big_retrieval.retrieval.encode import encode_rows, encoded, query_field
from big_retrieval.retrieval.files import StoredTexts
from big_retrieval.retrieval.folder import DENSE, INVERTED, ORIGIN, About
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.retrieval.index_work import IndexWork, origin, prepare
from big_retrieval.retrieval.vocabulary import normalises
from big_retrieval.runtime import atomic_folder
from big_retrieval.runtime.messages import count_of

log = logging.getLogger(__name__)
UNIQUE = "Give each document its own id, or name another column with --id"


def make(options: IndexOptions) -> Path:
    """Encodes documents and writes an index or an export; returns the folder."""
    about = write_index_or_export(prepare(options), options.out)
    if about is None:
        log.info(f"written to {options.out / exports.FORMATS[options.format].file}")
    else:
        log_index(options.out, about)
    return options.out


def log_index(out: Path, about: About) -> None:
    """Logs the size of an index, and the command that searches it."""
    size = sum(path.stat().st_size for path in out.iterdir())
    entries = f", {about.entries / about.documents:.1f} values each" if about.terms else ""
    log.info(f"{count_of(about.documents, 'document')}{entries}, {size / 2**20:,.1f} MiB in {out}")
    log.info(f"to search: big-retrieval search --index={out}{registry.plugin_flags()}")


def write_index_or_export(work: IndexWork, out: Path) -> About | None:
    """Encodes documents and writes a folder; returns the index description (None for an export)."""
    atomic_folder.check_free(out)
    if not work.options.binary:
        work = work.with_model()
    with folder.begin_safely(out) as partial:
        if work.options.format == "index":
            (partial / ORIGIN).write_bytes(manifest.to_json(origin(work)))
            about = write_index(partial, work)
        else:
            about = _export(partial, work)
    folder.finish(partial, out, about)
    return about


def _encoded(work: IndexWork) -> Iterator[tuple[list[str], list[DocumentRow], Any]]:
    """Yields ids, rows and embeddings (or bags of words), block by block."""

    def encode(rows: Sequence[DocumentRow]) -> Any:
        if work.model is not None:
            return encode_rows(work.model, rows, work.fields)
        assert work.bag_encoder is not None  # `prepare` accepts --binary for lexical fields only
        (name,) = work.fields
        length, normalise = work.config.fields[name].length, normalises(work.config, name)
        with record_at(f"document {rows[0].id}"):
            return work.bag_encoder.bag(
                [row.values[name] for row in rows], length, normalise=normalise
            )

    for rows, embeddings in encoded(work.records, work.reader, work.block, encode, work.span):
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids):  # before the rest of the documents is encoded
            name = next(name for index, name in enumerate(ids) if name in ids[:index])
            raise UserError(f"Duplicate document id {name!r}. {UNIQUE}.")
        yield ids, rows, embeddings


def write_index(partial: Path, work: IndexWork) -> About:
    """Writes the files of an index to a folder from `folder.begin`; `finish` adds the others."""
    about = _about(work)
    with StoreWriter(partial, "document") as store:

        def batches() -> Iterator[Any]:
            for _, rows, embeddings in _encoded(work):
                store.append(row.stored() for row in rows)
                yield embeddings

        if work.bag_encoder is None:
            about = dense.build(partial, batches(), about)
        else:
            work.bag_encoder.save(partial)
            memory = int(work.options.memory * 2**20)
            about = inverted.build(partial, batches(), about, memory=memory)
    check_ids(StoredTexts(Store(partial), "id"))
    return about


def _export(partial: Path, work: IndexWork) -> None:
    batches = (
        (ids, [row.shown for row in rows], embeddings) for ids, rows, embeddings in _encoded(work)
    )
    terms = () if work.bag_encoder is None else work.bag_encoder.words
    topology = schema.to_plain(work.config.topology)
    export = exports.ExportedDocuments(batches, terms, topology, work.options.quantise)
    exports.write_export(work.options.format, partial, export)


def _about(work: IndexWork) -> About:
    """Returns the description of the index before documents are added."""
    config, options, (first, *other_fields) = work.config, work.options, work.fields
    query = query_field(config, options.query_field)
    field = config.fields[query]
    weighted = ",".join(f"{name}={weight:g}" for name, weight in work.fields.items())
    about = About(
        kind=DENSE if work.bag_encoder is None else INVERTED,
        topology=schema.to_plain(config.topology),
        field=weighted if other_fields else first,
        query_field=query,
        query_column=field.column,
        query_length=field.length if field.modality == "text" else 0,
        checkpoint=str(work.checkpoint.absolute()),
        params_sha256="" if work.model is None else params_sha256(work.model.weights),
        files=",".join(str(Path(x).absolute()) for x in split_paths(options.data) if x),
    )
    if work.bag_encoder is None:
        return about
    all_ones = options.binary and not normalises(config, first)
    return dataclasses.replace(
        about,
        values=inverted.BINARY if all_ones else options.values,
        bags=options.binary,
        terms=len(work.bag_encoder),
        terms_sha256=work.bag_encoder.fingerprint(),
    )


def check_ids(ids: StoredTexts) -> None:
    """Raises a UserError if two documents have the same id; keeps only hashes in memory."""
    hashes = np.fromiter(map(hash, ids), np.int64, len(ids))
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    for position in same.tolist():
        first, second = order[position : position + 2].tolist()
        if ids[first] == ids[second]:
            raise UserError(f"Documents {first} and {second} have the id {ids[first]!r}. {UNIQUE}.")
