"""From runs and indexes to a collection and the ways to search in it."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.config import Config, is_lexical
from big_retrieval.data.build import make_source
from big_retrieval.data.judged.qrels import JudgedSource
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.stores.store import Store
from big_retrieval.data.text.tokenizers import FixedLengthTokenizer
from big_retrieval.demo.collection import DemoDocuments, SourceRecords
from big_retrieval.demo.documents import open_documents
from big_retrieval.demo.ways import BagWay, Bm25Way, ModelWay, Way
from big_retrieval.errors import UserError
from big_retrieval.evals.bm25 import Bm25
from big_retrieval.inference import load, saved
from big_retrieval.inference.load import TrainedModel
from big_retrieval.io.manifest import run_folder
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.encode import document_fields, query_field
from big_retrieval.retrieval.files import StoredTexts
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.making import write_index
from big_retrieval.retrieval.preparing import (
    DocumentColumns,
    IndexOptions,
    IndexWork,
    prepare,
    reader_for,
)
from big_retrieval.retrieval.searching import check_model
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder, vocabulary_of

log = logging.getLogger(__name__)
ENCODING = 64  # rows that are encoded at a time while documents are encoded
MOST_BM25 = 200_000  # documents up to which BM25 is offered


@dataclass(frozen=True)
class DemoOptions(DocumentColumns):
    """What `big-retrieval demo` is asked for.

    Attributes:
      runs: run or checkpoint folders; where indexes are given, (): those that the indexes name.
      indexes: of the same documents; (): documents are encoded at the start.
      data: files of documents as `big-retrieval index` takes them; "evals.NAME" or "data": a source
        of the run's config; "": the first evaluation's. Indexes have their own documents.
      query_field: reads texts; "": see `encode.query_field`.
      limit: documents that are encoded at the start, at most.
    """

    runs: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    data: str = ""
    query_field: str = ""
    limit: int = 10_000


@dataclass(frozen=True)
class Demo:
    """What is searched, and how.

    Attributes:
      collection: the documents.
      ways: at least one; keys differ.
    """

    collection: DemoDocuments
    ways: tuple[Way, ...]


def open_demo(options: DemoOptions, folder: Path) -> Demo:
    """Opens indexes, or encodes documents first.

    Args:
      options: the flags.
      folder: for the files of what is encoded; it has to stay while the demo is used.

    Raises:
      UserError: there is neither run nor index, one of them cannot be used, or indexes differ in
        their documents.
    """
    if not options.runs and not options.indexes:
        raise UserError(
            "--run is missing: a run or checkpoint folder; or give an index with --index."
        )
    if options.indexes and len(options.runs) not in (0, len(options.indexes)):
        raise UserError(
            f"--run has {len(options.runs)} folders and --index {len(options.indexes)}: name a run "
            "for each index, in the same order, or none."
        )
    if options.indexes and (flags := _document_flags(options)):
        raise UserError(
            f"--{flags[0]} is for documents that are encoded at the start, and --index has its "
            "own: leave one of them out."
        )
    opened = _indexes(options) if options.indexes else _encoded(options, folder)
    first = opened[0]
    for other in opened[1:]:
        if list(other.index.ids) != list(first.index.ids):
            raise UserError(
                f"{other.index.folder} and {first.index.folder} are not of the same documents."
            )
    shown = StoredTexts(first.index.store, "shown")
    collection = DemoDocuments(first.name, first.index.ids, shown, first.store, first.records)
    ways = [way for each in opened for way in _ways(each, options.query_field, len(opened) > 1)]
    if collection.has_texts and len(collection) <= MOST_BM25:
        ways += _bm25(collection)
    return Demo(collection, tuple(_apart(ways)))


@dataclass(frozen=True)
class _Opened:
    """An index with its model, None: it is not there; and its `open_documents`."""

    name: str
    index: InvertedIndex | DenseIndex
    model: TrainedModel | None
    store: Store | None
    records: Any


def _indexes(options: DemoOptions) -> list[_Opened]:
    """Opens indexes and their models; documents are shown from the first."""
    out: list[_Opened] = []
    runs = options.runs or ("",) * len(options.indexes)
    for name, run in zip(options.indexes, runs, strict=True):
        index = open_index(name)
        path = run or index.about.checkpoint
        model = None
        if Path(path).is_dir():
            model = load.load(path, batch_size=ENCODING)
            asked = query_field(model.config, options.query_field or index.about.query_field)
            check_model(index.about, model, asked, index.folder)
        elif run or isinstance(index, DenseIndex):
            raise UserError(f"the model {path} of the index {name} is not there: give --run=RUN.")
        else:
            log.info(f"the model {path} of {name} is not there: searching by bags of words alone")
        store, records = (None, None) if out else open_documents(index)
        out.append(_Opened(Path(name).name, index, model, store, records))
    return out


def _encoded(options: DemoOptions, folder: Path) -> list[_Opened]:
    """Encodes the documents of --data, or of the first run's evaluation, by every run."""
    found = [saved.find(run) for run in options.runs]
    configs = [saved.read_config(each) for each in found]
    source, out = _source(configs[0], options.data), []
    for place, (checkpoint, config) in enumerate(zip(found, configs, strict=True)):
        target = folder / str(place)
        wanted = _index_options(options, checkpoint, target)
        if source is None:
            work = prepare(wanted)
        else:
            work = _work_of_source(source, wanted, checkpoint, config)
        total = len(work.records)
        if total > options.limit:
            log.info(
                f"the first {options.limit:,} of {total:,} documents are searched; see --limit"
            )
            work = dataclasses.replace(work, span=range(options.limit))
        weights = saved.restore_weights(checkpoint, config)
        model = load.put_together(checkpoint, config, work.tokenizer, weights, ENCODING)
        partial = folders.begin(target)
        about = write_index(partial, dataclasses.replace(work, model=model))
        folders.finish(partial, target, about)
        name = Path(options.data.partition(",")[0]).name if source is None else source.name
        pictures = work.records if work.reader.images else None
        opened = open_index(target)
        out.append(_Opened(name, opened, model, opened.store, pictures))
    return out


def _document_flags(options: DemoOptions) -> list[str]:
    """Returns the flags about documents that are given."""
    names = ["data", *(key.name for key in dataclasses.fields(DocumentColumns))]
    return [name for name in names if getattr(options, name)]


def _index_options(options: DemoOptions, checkpoint: Path, out: Path) -> IndexOptions:
    """The flags as those of `big-retrieval index`."""
    same = {key.name: getattr(options, key.name) for key in dataclasses.fields(DocumentColumns)}
    return IndexOptions(
        checkpoint, options.data, out, query_field=options.query_field, batch_size=ENCODING, **same
    )


def _source(config: Config, data: str) -> RecordSource | None:
    """The documents of a source of the config; None: --data names files.

    Raises:
      UserError: the config has no evaluation with data, or no such one.
    """
    known = {f"evals.{name}": each.data for name, each in config.evals.items() if each.data}
    if not data and not known:
        raise UserError("--data is missing: files of documents, as the run has no evaluation data.")
    found = known.get(data or next(iter(known))) if data != "data" else config.data
    if found is None and data.startswith("evals."):
        raise UserError(f"--data={data}: the run has {', '.join(known) or 'no evaluation data'}.")
    if found is None:
        return None
    source = make_source(found)
    return source.documents if isinstance(source, JudgedSource) else source


def _work_of_source(
    source: RecordSource, options: IndexOptions, checkpoint: Path, config: Config
) -> IndexWork:
    """As `prepare`, of records of a config's source."""
    fields = document_fields(config, "")
    reader = reader_for(options, config, fields)
    texts = [f.column for f in config.encoded.values() if f.modality == "text"]
    image = next(iter(reader.images.values()), "")
    shown = "" if reader.texts else next(iter(texts), "")
    records: Any = SourceRecords(source, image)
    reader = dataclasses.replace(reader, id="id", show=options.show or shown)
    tokenizer = FixedLengthTokenizer.load(checkpoint / "tokenizer.json")
    lexical = is_lexical(config, next(iter(fields)))
    words = vocabulary_of(config, tokenizer, next(iter(fields))) if lexical else None
    span = range(len(records))
    return IndexWork(options, checkpoint, config, fields, reader, records, span, tokenizer, words)


def _ways(opened: _Opened, wanted: str, several: bool) -> Iterator[Way]:
    """The ways to search in an index: by its model, and by bags of words where it has terms."""
    index, model = opened.index, opened.model
    of = f" · {run_folder(Path(index.about.checkpoint)).name}" if several else ""
    if model is not None:
        encoded = model.config.encoded
        text = query_field(model.config, wanted or index.about.query_field)
        images = [name for name, field in encoded.items() if field.modality == "image"]
        fields = tuple(document_fields(model.config, index.about.field))
        lexical = isinstance(index, InvertedIndex)
        yield ModelWay(
            "sparse" if lexical else "dense",
            f"{'Sparse' if lexical else 'Dense'}{of}",
            "terms that the model weighs" if lexical else "embeddings of the model",
            index, model,
            text if encoded[text].modality == "text" else "",
            images[0] if images else "",
            fields,
        )  # fmt: skip
    if isinstance(index, InvertedIndex) and index.about.query_length:
        bags = BagOfWordsEncoder.load(index.folder)
        note = "the words of the query alone"
        yield BagWay("bag", f"Bag of words{of}", note, index, bags, tuple(bags.words))


def _bm25(collection: DemoDocuments) -> Iterator[Way]:
    """BM25 over the texts, if the library is there."""
    try:
        index = Bm25([collection.text(number) for number in range(len(collection))])
    except UserError as problem:
        log.info(f"no BM25 beside the model: {problem}")
        return
    yield Bm25Way("bm25", "BM25", "words that query and document share", index)


def _apart(ways: Sequence[Way]) -> Iterator[Way]:
    """The same ways with keys that differ."""
    for place, way in enumerate(ways):
        before = sum(each.key == way.key for each in ways[:place])
        yield dataclasses.replace(way, key=f"{way.key}-{before + 1}") if before else way
