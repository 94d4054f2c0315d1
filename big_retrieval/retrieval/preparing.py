"""What `big-retrieval index` is asked for, and all that is known before a model runs."""

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
    """The flags that name columns of documents.

    Attributes:
      text: columns of the text, which are joined; (): the column that the field has in training.
      title: column of the titles; "": the column that the field has in training, if any.
      image: column of the image; "": the column that the field has in training.
      show: column that is kept to be shown with results; "": the text.
      id: column of the ids.
    """

    text: tuple[str, ...] = ()
    title: str = ""
    image: str = ""
    show: str = ""
    id: str = ""


@dataclass(frozen=True)
class IndexOptions(DocumentColumns):
    """The flags of `big-retrieval index`.

    Attributes:
      checkpoint: a run or checkpoint folder.
      documents: files, separated by commas.
      out: the folder to write.
      field: of the model, see `encode.document_fields`.
      query_field: the field that will encode queries; "": see `encode.query_field`.
      join: what stands between the joined columns.
      binary: index bags of words, without running the model.
      values: "float32" or "float16".
      format: "index", or one of `exports.FORMATS`.
      quantise: as `exports.lucene.write`; for the format "lucene".
      memory: bytes that building an inverted index works with.
      batch_size: rows encoded at a time at most; CPUs take fewer of long texts.
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
    """The options with everything that is built from them, but for the weights of the model.

    Attributes:
      options: the flags.
      checkpoint: the folder of the model, verified.
      config: of the model.
      fields: of the documents, with their weights.
      reader: which columns are read.
      records: all documents.
      span: numbers of the records that are indexed.
      tokenizer: of the model.
      words: of lexical fields.
      model: None: it is not loaded, or not needed.
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
    """Opens the checkpoint and the documents; cheap checks come first, and no weights are read."""
    found = saved.find(options.checkpoint)
    config = saved.read_config(found)
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
    records, reader = open_records("data", options.documents, reader_for(options, config, fields))
    tokenizer = FixedLengthTokenizer.load(found / "tokenizer.json")
    words = vocabulary_of(config, tokenizer, next(iter(fields))) if lexical else None
    span = range(len(records))
    return IndexWork(options, found, config, fields, reader, records, span, tokenizer, words)


def block(work: IndexWork) -> int:
    """How many records are read and encoded at a time."""
    return IMAGES if work.reader.images else TEXTS


def origin(work: IndexWork) -> dict[str, Any]:
    """What determines an index but for `span`, for JSON; paths do not, as hosts may differ in them.

    Returns:
      "model" and "documents": what tells them from others; and each flag that changes an index.
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
    """Which columns the fields are read from.

    Args:
      options: the flags.
      config: of the model.
      fields: of the documents.

    Raises:
      UserError: a field that cannot be read from files, or a column for none or several of them.
    """
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
        own_image=not options.image,
    )
