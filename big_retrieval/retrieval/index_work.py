"""Work of `big-retrieval index` before the weights are loaded."""

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
from big_retrieval.retrieval import exports
from big_retrieval.retrieval.documents import DocumentReader, open_records
from big_retrieval.retrieval.encode import IMAGES, TEXTS, document_fields, query_field
from big_retrieval.retrieval.index_options import IndexOptions
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, vocabulary_of


@dataclass(frozen=True)
class IndexWork:
    """Documents to index and the config of their model, without its weights."""

    options: IndexOptions
    checkpoint: Path  # verified
    config: Config
    fields: dict[str, float]  # fields of the documents, with their weights
    reader: DocumentReader
    records: Records  # all documents
    span: range  # indices of the records to index
    tokenizer: FixedLengthTokenizer
    bag_encoder: BagOfWordsEncoder | None  # terms of lexical fields
    model: load.TrainedModel | None = None  # None before it is loaded, and for bags of words

    @property
    def block(self) -> int:
        """Number of records read and encoded at a time."""
        return IMAGES if self.reader.images else TEXTS

    def with_model(self) -> "IndexWork":
        """Returns a copy with the model loaded."""
        weights = saved.restore_weights(self.checkpoint, self.config)
        model = load.put_together(
            self.checkpoint, self.config, self.tokenizer, weights, self.options.batch_size
        )
        return dataclasses.replace(self, model=model)


def prepare(options: IndexOptions) -> IndexWork:
    """Checks the options, and opens the config and the documents without reading weights."""
    checkpoint = saved.find(options.run)
    config = saved.read_config(checkpoint)
    fields = document_fields(config, options.field)
    names, name = ", ".join(fields), next(iter(fields))
    lexical = is_lexical(config, name)
    if options.format != "index":
        exports.check(options.format, names, lexical=lexical)
    if not lexical and (options.binary or options.values != "float32"):
        flag = "--binary" if options.binary else f"--values={options.values}"
        raise UserError(f"{flag} needs a lexical field, but {names} is dense.")
    if options.binary and len(fields) > 1:
        raise UserError(f"--binary needs one field, but documents have {names}. Add --field=NAME.")
    if options.binary and (reads := config.fields[name].modality) != "text":
        raise UserError(f"--binary indexes words, but field {name!r} reads {reads}s.")
    query_field(config, options.query_field)  # raises an error for an unknown field
    records, reader = open_records("data", options.data, reader_for(options, config, fields))
    return make_work(options, checkpoint, config, fields, records, reader)


def make_work(
    options: IndexOptions,
    checkpoint: Path,
    config: Config,
    fields: dict[str, float],
    records: Records,
    reader: DocumentReader,
) -> IndexWork:
    """Adds the tokenizer and the terms to opened documents; indexes all of them."""
    name, tokenizer = next(iter(fields)), FixedLengthTokenizer.load(checkpoint / "tokenizer.json")
    bag_encoder = vocabulary_of(config, tokenizer, name) if is_lexical(config, name) else None
    span = range(len(records))
    return IndexWork(
        options, checkpoint, config, fields, reader, records, span, tokenizer, bag_encoder
    )


def origin(work: IndexWork) -> dict[str, Any]:
    """Returns the model, documents and flags that determine an index (except `span`), for JSON.

    Paths are left out, because they may differ between hosts.
    """
    options = work.options
    flags = dataclasses.asdict(options)
    for name in ("run", "data", "out", "format", "quantise", "memory"):
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
    """Returns the columns to read; raises a UserError for a flag that fits no or several fields."""
    parts: dict[str, Any] = dict(config.fields)
    texts = [name for name in fields if parts[name].modality == "text"]
    images = [name for name in fields if parts[name].modality == "image"]
    for name in sorted(fields.keys() - {*texts, *images}):
        raise UserError(
            f"Field {name!r} has the type {parts[name].type!r}, which cannot be read from files. "
            "Index other fields (--field), or use `load(...).encode` in Python."
        )
    titles = {name: parts[name].title for name in texts if parts[name].title}
    for flag, names in (("text", texts), ("title", list(titles)), ("image", images)):
        if getattr(options, flag) and len(names) != 1:
            raise UserError(
                f"--{flag} needs one field, but {len(names)} of the indexed fields "
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
        from_config=not options.text,
        images_from_config=not options.image,
    )
