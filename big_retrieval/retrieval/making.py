"""From a checkpoint and files of documents to an index, or to the files of another tool."""

import dataclasses
import logging
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config import Config, is_lexical
from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.records import Records
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference import load
from big_retrieval.inference.fingerprint import params_sha256
from big_retrieval.retrieval import dense, exports, folder, inverted
from big_retrieval.retrieval.documents import DocumentReader, DocumentRow, open_records
from big_retrieval.retrieval.encode import (
    IMAGES,
    TEXTS,
    document_fields,
    encode_rows,
    encoded,
    query_field,
)
from big_retrieval.retrieval.files import StoredTexts, TextsWriter
from big_retrieval.retrieval.folder import DENSE, INVERTED, About
from big_retrieval.retrieval.vocabulary import (
    BagOfWordsEncoder,
    normalises,
    vocabulary_of,
)

log = logging.getLogger(__name__)
OWN_IDS = "give each its own, or name another column with --id"


@dataclass(frozen=True)
class IndexOptions:
    """The flags of `big-retrieval index`.

    Attributes:
      checkpoint: a run or checkpoint folder.
      documents: files, separated by commas.
      out: the folder to write.
      field: of the model, see `encode.document_fields`.
      query_field: the field that will encode queries; "": see `encode.query_field`.
      text: columns of the text, which are joined; (): the column that the field has in training.
      title: column of the titles; "": the column that the field has in training, if any.
      join: what stands between the joined columns.
      image: column of the image; "": the column that the field has in training.
      show: column that is kept to be shown with results; "": the text.
      id: column of the ids.
      binary: index bags of words, without running the model.
      values: "float32" or "float16".
      format: "index", or one of `exports.FORMATS`.
      quantise: as `exports.lucene.write`; for the format "lucene".
      memory: bytes that building an inverted index works with.
      batch_size: rows encoded at a time.
    """

    checkpoint: Path
    documents: str
    out: Path
    field: str = ""
    query_field: str = ""
    text: tuple[str, ...] = ()
    title: str = ""
    join: str = " "
    image: str = ""
    show: str = ""
    id: str = ""
    binary: bool = False
    values: str = "float32"
    format: str = "index"
    quantise: float | None = None
    memory: int = inverted.MEMORY
    batch_size: int = 64


@dataclass(frozen=True)
class _Work:
    """The options with everything that is built from them."""

    options: IndexOptions
    checkpoint: Path
    config: Config
    fields: dict[str, float]
    reader: DocumentReader
    records: Records
    words: BagOfWordsEncoder | None
    model: "load.TrainedModel | None"


def make(options: IndexOptions) -> Path:
    """Encodes documents and writes what is asked for.

    Returns:
      The folder.

    Raises:
      UserError: no usable checkpoint or documents, fields that do not fit, a folder that is there
        already, or two documents with the same id.
    """
    work = _prepare(options)
    partial = folder.begin(options.out)
    try:
        about = (_write_index if options.format == "index" else _export)(partial, work)
    except BaseException:
        shutil.rmtree(partial)
        raise
    folder.finish(partial, options.out, about)
    if about is None:
        log.info(f"written to {options.out / exports.FORMATS[options.format].file}")
    else:
        size = sum(path.stat().st_size for path in options.out.iterdir())
        entries = f", {about.entries / about.documents:.1f} values each" if about.terms else ""
        log.info(
            f"{about.documents:,} documents{entries}, {size / 2**20:,.1f} MiB in {options.out}"
        )
        log.info(f"to search: big-retrieval search --index={options.out}")
    return options.out


def _prepare(options: IndexOptions) -> _Work:
    """Opens the checkpoint and the documents; cheap checks come first."""
    found = load.find(options.checkpoint)
    config = load.read_config(found)
    fields = document_fields(config, options.field)
    lexical = is_lexical(config, next(iter(fields)))
    if options.format != "index":
        exports.check(options.format, ", ".join(fields), lexical=lexical)
    if not lexical and (options.binary or options.values != "float32"):
        what = "--binary" if options.binary else f"--values={options.values}"
        raise UserError(f"{what} is for lexical fields, and {', '.join(fields)} is dense.")
    if options.binary and len(fields) > 1:
        raise UserError(
            f"--binary indexes the words of one field, and documents have {', '.join(fields)}: "
            "name one with --field."
        )
    name = next(iter(fields))
    if options.binary and (reads := config.fields[name].modality) != "text":
        raise UserError(f"--binary indexes words, and field {name!r} reads {reads}s.")
    records, reader = open_records("data", options.documents, _reader(options, config, fields))
    tokenizer = FixedLengthTokenizer.load(found / "tokenizer.json")
    words = vocabulary_of(config, tokenizer, next(iter(fields))) if lexical else None
    model = None
    if not options.binary:
        weights = load.restore_weights(found, config)
        model = load.put_together(found, config, tokenizer, weights, options.batch_size)
    return _Work(options, found, config, fields, reader, records, words, model)


def _reader(options: IndexOptions, config: Config, fields: dict[str, float]) -> DocumentReader:
    """Which columns the fields are read from."""
    parts: dict[str, Any] = dict(config.fields)
    texts = [name for name in fields if parts[name].modality == "text"]
    images = [name for name in fields if parts[name].modality == "image"]
    for name in sorted(fields.keys() - {*texts, *images}):
        raise UserError(
            f"field {name!r} is of the type {parts[name].type!r}, which this command cannot read "
            "from files; index other fields (--field), or what `load(...).encode` gives, in Python."
        )
    titles = {name: parts[name].title for name in texts if parts[name].title}
    for flag, given, names in (
        ("text", options.text, texts),
        ("title", options.title, list(titles)),
        ("image", options.image, images),
    ):
        if given and len(names) != 1:
            raise UserError(
                f"--{flag} names the column of one field, but {len(names)} of the indexed fields "
                f"({', '.join(fields)}) have such a column."
            )
    return DocumentReader(
        "documents",
        texts={name: options.text or (config.fields[name].column,) for name in texts},
        titles={name: options.title or column for name, column in titles.items()},
        images={name: options.image or config.fields[name].column for name in images},
        show=options.show,
        id=options.id,
        join=options.join,
        own=not options.text,
    )


def _encoded(work: _Work) -> Iterator[tuple[list[str], list[DocumentRow], Any]]:
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

    size = IMAGES if work.reader.images else TEXTS
    for rows, found in encoded(work.records, work.reader, size, encode):
        ids = [row.id for row in rows]
        if len(set(ids)) < len(ids):  # at once, so that a wrong column does not show at the end
            name = next(name for place, name in enumerate(ids) if name in ids[:place])
            raise UserError(f"two documents have the id {name!r}: {OWN_IDS}.")
        yield ids, rows, found


def _write_index(partial: Path, work: _Work) -> About:
    """Writes the files of an index."""
    hashes: list[np.ndarray] = []

    def batches(ids: TextsWriter, shown: TextsWriter) -> Iterator[Any]:
        for names, rows, found in _encoded(work):
            ids.append(names)
            shown.append(row.shown for row in rows)
            hashes.append(np.fromiter(map(hash, names), np.int64, len(names)))
            yield found

    about = _about(work)
    with TextsWriter(partial, "ids") as ids, TextsWriter(partial, "texts") as shown:
        if work.words is None:
            about = dense.build(partial, batches(ids, shown), about)
        else:
            work.words.save(partial)
            memory = work.options.memory
            about = inverted.build(partial, batches(ids, shown), about, memory=memory)
    check_ids(StoredTexts(partial, "ids"), np.concatenate(hashes))
    return about


def _export(partial: Path, work: _Work) -> None:
    """Writes the files of another tool."""
    batches = ((ids, [row.shown for row in rows], found) for ids, rows, found in _encoded(work))
    words = () if work.words is None else work.words.words
    export = exports.ExportedDocuments(batches, words, work.config.topology, work.options.quantise)
    exports.write(work.options.format, partial, export)


def _about(work: _Work) -> About:
    """The description of the index before documents are added."""
    config, options = work.config, work.options
    asked = query_field(config, options.query_field)
    field = config.fields[asked]
    about = About(
        kind=DENSE if work.words is None else INVERTED,
        topology=config.topology,
        field=",".join(f"{name}={weight:g}" for name, weight in work.fields.items())
        if len(work.fields) > 1
        else next(iter(work.fields)),
        query_field=asked,
        query_column=field.column,
        query_length=field.length if field.modality == "text" else 0,
        checkpoint=str(work.checkpoint.absolute()),
        params_sha256="" if work.model is None else params_sha256(work.model.weights),
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
