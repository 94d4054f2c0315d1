"""Options of `big-retrieval index`, and its work before a model runs."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.config import Config, is_lexical
from big_retrieval.data.formats.records import Records
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.errors import UserError
from big_retrieval.inference import load, saved
from big_retrieval.io import manifest
from big_retrieval.retrieval import exports, inverted
from big_retrieval.retrieval.documents import DocumentReader, open_records
from big_retrieval.retrieval.encode import IMAGES, TEXTS, document_fields
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, vocabulary_of


@dataclass(frozen=True, kw_only=True)
class DocumentColumns:
    """Flags that name columns of documents.

    Attributes:
      text: columns of the text, which are joined; empty for the field's column in training.
      title: column of the titles; empty for the field's column in training, if any.
      image: column of the image; empty for the field's column in training.
      show: column that results show; empty for the text.
      id: column of the ids.
    """

    text: tuple[str, ...] = ()
    title: str = ""
    image: str = ""
    show: str = ""
    id: str = ""


@dataclass(frozen=True)
class IndexOptions(DocumentColumns):
    """Flags of `big-retrieval index`.

    Attributes:
      checkpoint: a run or checkpoint folder.
      documents: files, separated by commas.
      out: the folder to write.
      field: fields of the model, as in `encode.document_fields`.
      query_field: field that will encode queries, as in `encode.query_field`.
      join: separator of the joined columns.
      binary: True to index bags of words, without running the model.
      values: "float32" or "float16".
      format: "index", or one of `exports.FORMATS`.
      quantise: factor of the weights of the format "lucene".
      memory: bytes for building an inverted index.
      batch_size: maximum number of rows encoded at a time; CPUs use fewer for long texts.
    """

    checkpoint: Path
    documents: str
    out: Path
    field: str = ""
    query_field: str = ""
    join: str = " "
    binary: bool = False
    values: str = "float32"
    format: str = "index"
    quantise: float | None = None
    memory: int = inverted.MEMORY
    batch_size: int = 64


@dataclass(frozen=True)
class IndexWork:
    """The options, and what is built from them without the weights of the model.

    Attributes:
      checkpoint: the verified folder of the model.
      fields: fields of the documents, with their weights.
      reader: columns to read.
      records: all documents.
      span: indices of the records to index.
      words: terms of lexical fields, else None.
      model: None if it is not loaded yet, or not needed.
    """

    options: IndexOptions
    checkpoint: Path
    config: Config
    fields: dict[str, float]
    reader: DocumentReader
    records: Records
    span: range
    tokenizer: FixedLengthTokenizer
    words: BagOfWordsEncoder | None
    model: load.TrainedModel | None = None


def prepare(options: IndexOptions) -> IndexWork:
    """Opens the checkpoint and the documents without reading weights, after cheap checks."""
    checkpoint = saved.find(options.checkpoint)
    config = saved.read_config(checkpoint)
    fields = document_fields(config, options.field)
    name = next(iter(fields))
    lexical = is_lexical(config, name)
    if options.format != "index":
        exports.check(options.format, ", ".join(fields), lexical=lexical)
    if not lexical and (options.binary or options.values != "float32"):
        flag = "--binary" if options.binary else f"--values={options.values}"
        raise UserError(f"{flag} is for lexical fields, and {', '.join(fields)} is dense.")
    if options.binary and len(fields) > 1:
        raise UserError(
            f"--binary indexes the words of one field, and documents have {', '.join(fields)}: "
            "name one with --field."
        )
    if options.binary and (reads := config.fields[name].modality) != "text":
        raise UserError(f"--binary indexes words, and field {name!r} reads {reads}s.")
    records, reader = open_records("data", options.documents, reader_for(options, config, fields))
    tokenizer = FixedLengthTokenizer.load(checkpoint / "tokenizer.json")
    words = vocabulary_of(config, tokenizer, name) if lexical else None
    span = range(len(records))
    return IndexWork(options, checkpoint, config, fields, reader, records, span, tokenizer, words)


def block(work: IndexWork) -> int:
    """Returns the number of records read and encoded at a time."""
    return IMAGES if work.reader.images else TEXTS


def origin(work: IndexWork) -> dict[str, Any]:
    """Returns what determines an index, except for `span`: model, documents and flags, for JSON.

    Paths are left out, as hosts may have different ones.
    """
    options = work.options
    flags = dataclasses.asdict(options)
    for name in ("checkpoint", "documents", "out", "format", "quantise", "memory"):
        del flags[name]
    return {
        "model": manifest.sha256_file(work.checkpoint / manifest.MANIFEST),
        "documents": {
            "records": len(work.records),
            "fingerprint": work.records.fingerprint,
            "image": next(iter(work.reader.images.values()), ""),
        },
        **{
            name: list(value) if isinstance(value, tuple) else value
            for name, value in flags.items()
        },
    }


def reader_for(options: IndexOptions, config: Config, fields: dict[str, float]) -> DocumentReader:
    """Returns the columns of the fields of documents.

    Raises:
      UserError: a field cannot be read from files, or a flag is for none or several of the fields.
    """
    parts: dict[str, Any] = dict(config.fields)
    texts = [name for name in fields if parts[name].modality == "text"]
    images = [name for name in fields if parts[name].modality == "image"]
    for name in sorted(fields.keys() - {*texts, *images}):
        raise UserError(
            f"field {name!r} has the type {parts[name].type!r}, which cannot be read from files. "
            "Index other fields (--field), or use `load(...).encode` in Python."
        )
    titles = {name: parts[name].title for name in texts if parts[name].title}
    for flag, given, names in (
        ("text", options.text, texts),
        ("title", options.title, list(titles)),
        ("image", options.image, images),
    ):
        if given and len(names) != 1:
            raise UserError(
                f"--{flag} is for one field, but {len(names)} of the indexed fields "
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
        own_image=not options.image,
    )
