"""From a checkpoint and files of documents to an index, or to the files of another tool."""

import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import registry, schema
from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.open_files import split_paths
from big_retrieval.data.stores.writer import StoreWriter
from big_retrieval.errors import UserError
from big_retrieval.inference import load, saved
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.io import manifest
from big_retrieval.retrieval import dense, exports, folder, inverted
from big_retrieval.retrieval.documents import DocumentRow
from big_retrieval.retrieval.encode import encode_rows, encoded, query_field
from big_retrieval.retrieval.files import StoredTexts, TextsWriter
from big_retrieval.retrieval.folder import DENSE, INVERTED, ORIGIN, About
from big_retrieval.retrieval.preparing import IndexOptions, IndexWork, block, origin, prepare
from big_retrieval.retrieval.vocabulary import normalises
from big_retrieval.runtime import building

log = logging.getLogger(__name__)
OWN_IDS = "give each its own, or name another column with --id"


def make(options: IndexOptions) -> Path:
    """Encodes documents and writes what is asked for.

    Returns:
      The folder.

    Raises:
      UserError: no usable checkpoint or documents, fields that do not fit, a folder that is there
        already, or two documents with the same id.
    """
    about = write(prepare(options), options.out)
    if about is None:
        log.info(f"written to {options.out / exports.FORMATS[options.format].file}")
    else:
        tell(options.out, about)
    return options.out


def tell(out: Path, about: About) -> None:
    """Says what an index has."""
    size = sum(path.stat().st_size for path in out.iterdir())
    entries = f", {about.entries / about.documents:.1f} values each" if about.terms else ""
    log.info(f"{about.documents:,} documents{entries}, {size / 2**20:,.1f} MiB in {out}")
    log.info(f"to search: big-retrieval search --index={out}{registry.plugin_flags()}")


def write(work: IndexWork, out: Path) -> About | None:
    """Encodes documents and writes a folder.

    Args:
      work: what `prepare` gave.
      out: the folder, which is not there or empty.

    Returns:
      What the index is; None where other files than those of an index are asked for.
    """
    building.check_free(out)
    options = work.options
    if not options.binary:
        weights = saved.restore_weights(work.checkpoint, work.config)
        model = load.put_together(
            work.checkpoint, work.config, work.tokenizer, weights, options.batch_size
        )
        work = dataclasses.replace(work, model=model)
    partial = folder.begin(out)
    try:
        if options.format == "index":
            (partial / ORIGIN).write_bytes(manifest.to_json(origin(work)))
            about = write_index(partial, work)
        else:
            about = _export(partial, work)
    except BaseException:
        shutil.rmtree(partial)
        raise
    folder.finish(partial, out, about)
    return about


def _encoded(work: IndexWork) -> Iterator[tuple[list[str], list[DocumentRow], Any]]:
    """Yields, for some documents at a time, their ids and their encoded rows or bags of words."""

    def encode(rows: Sequence[DocumentRow]) -> Any:
        if work.model is not None:
            return encode_rows(work.model, rows, work.fields)
        assert work.words is not None  # bags are of lexical fields
        (name,) = work.fields
        part, normalise = work.config.fields[name], normalises(work.config, name)
        with record_at(f"document {rows[0].id}"):
            return work.words.bag(
                [row.values[name] for row in rows], part.length, normalise=normalise
            )

    for rows, found in encoded(work.records, work.reader, block(work), encode, work.span):
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids):  # at once, so that a wrong column does not show at the end
            name = next(name for place, name in enumerate(ids) if name in ids[:place])
            raise UserError(f"two documents have the id {name!r}: {OWN_IDS}.")
        yield ids, rows, found


def write_index(partial: Path, work: IndexWork) -> About:
    """Encodes documents and writes the files of an index, but for what `folder.finish` adds.

    Args:
      partial: what `folder.begin` gave.
      work: with its model.

    Returns:
      What the index is.
    """
    hashes: list[np.ndarray] = []

    about = _about(work)
    with (
        TextsWriter(partial, "ids") as ids,
        TextsWriter(partial, "texts") as shown,
        StoreWriter(partial, "document") as store,
    ):

        def batches() -> Iterator[Any]:
            for names, rows, found in _encoded(work):
                ids.append(names)
                shown.append(row.shown for row in rows)
                store.append(row.stored() for row in rows)
                hashes.append(hashes_of(names))
                yield found

        if work.words is None:
            about = dense.build(partial, batches(), about)
        else:
            work.words.save(partial)
            memory = work.options.memory
            about = inverted.build(partial, batches(), about, memory=memory)
    check_ids(StoredTexts(partial, "ids"), np.concatenate(hashes))
    return about


def _export(partial: Path, work: IndexWork) -> None:
    """Writes the files of another tool."""
    batches = ((ids, [row.shown for row in rows], found) for ids, rows, found in _encoded(work))
    words = () if work.words is None else work.words.words
    topology = schema.to_plain(work.config.topology)
    export = exports.ExportedDocuments(batches, words, topology, work.options.quantise)
    exports.write(work.options.format, partial, export)


def _about(work: IndexWork) -> About:
    """The description of the index before documents are added."""
    config, options = work.config, work.options
    asked = query_field(config, options.query_field)
    field, files = config.fields[asked], options.documents
    about = About(
        kind=DENSE if work.words is None else INVERTED,
        topology=schema.to_plain(config.topology),
        field=",".join(f"{name}={weight:g}" for name, weight in work.fields.items())
        if len(work.fields) > 1
        else next(iter(work.fields)),
        query_field=asked,
        query_column=field.column,
        query_length=field.length if field.modality == "text" else 0,
        checkpoint=str(work.checkpoint.absolute()),
        params_sha256="" if work.model is None else params_sha256(work.model.weights),
        files=",".join(str(Path(each).absolute()) for each in split_paths(files) if each),
    )
    if work.words is None:
        return about
    normed = normalises(config, next(iter(work.fields)))  # then not all values are 1
    return dataclasses.replace(
        about,
        values=inverted.BINARY if options.binary and not normed else options.values,
        bags=options.binary,
        terms=len(work.words),
        terms_sha256=work.words.fingerprint(),
    )


def hashes_of(ids: Sequence[str]) -> np.ndarray:
    """A hash of each id, int64 [n], the same in this process only."""
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def check_ids(ids: StoredTexts, hashes: np.ndarray) -> None:
    """Raises a UserError if two documents have the same id.

    Args:
      ids: of all documents.
      hashes: of the ids, int64 [D]; only the hashes are in memory, not the ids.
    """
    order = np.argsort(hashes, kind="stable")
    same = np.flatnonzero(hashes[order][1:] == hashes[order][:-1])
    for place in same.tolist():
        first, second = order[place : place + 2].tolist()
        if ids[first] == ids[second]:
            raise UserError(
                f"the documents {first} and {second} have the id {ids[first]!r}: {OWN_IDS}."
            )
