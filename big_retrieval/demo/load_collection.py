"""Opens runs and indexes as a collection of documents and the modes to search it."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from big_retrieval.config import Config
from big_retrieval.data.build import make_source
from big_retrieval.data.judged.graded import GradedPairs
from big_retrieval.data.sources import RecordSource
from big_retrieval.demo.collection import DemoDocuments, SourceRecords, open_image_records
from big_retrieval.demo.options import DemoOptions
from big_retrieval.demo.search_modes import BagMode, Bm25Mode, ModelMode, SearchMode
from big_retrieval.errors import UserError
from big_retrieval.evals.bm25 import Bm25
from big_retrieval.inference import load, saved
from big_retrieval.inference.load import TrainedModel
from big_retrieval.io.manifest import run_folder
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval import open_index
from big_retrieval.retrieval.build_index import write_index
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.encode import document_fields, query_field
from big_retrieval.retrieval.index_options import DocumentColumns, IndexOptions
from big_retrieval.retrieval.index_search import check_model
from big_retrieval.retrieval.index_work import IndexWork, make_work, prepare, reader_for
from big_retrieval.retrieval.inverted import InvertedIndex
from big_retrieval.retrieval.vocabulary import BagOfWordsEncoder

log = logging.getLogger(__name__)
BATCH = 64  # rows encoded at a time while the index is built
MAX_BM25 = 200_000  # maximum number of documents for BM25


@dataclass(frozen=True)
class Demo:
    """Documents, and at least one mode to search them, with unique keys."""

    collection: DemoDocuments
    modes: tuple[SearchMode, ...]


@dataclass(frozen=True)
class _OpenedIndex:
    """Index with its model (None if it does not exist), and the records of its images."""

    name: str
    index: InvertedIndex | DenseIndex
    model: TrainedModel | None
    records: Any


def open_demo(options: DemoOptions, folder: Path) -> Demo:
    """Opens indexes, or encodes documents to indexes in a folder.

    The folder must exist as long as the demo. Raises a UserError if a run or index is missing or
    cannot be used, or if the indexes have different documents.
    """
    _check_flags(options)
    opened = _open_indexes(options) if options.index else _build_indexes(options, folder)
    first = opened[0]
    for other in opened[1:]:
        if list(other.index.ids) != list(first.index.ids):
            raise UserError(
                f"{other.index.folder} and {first.index.folder} have different documents. Use "
                "indexes of the same documents."
            )
    collection = DemoDocuments(first.name, first.index, first.records)
    modes = [mode for x in opened for mode in _modes(x, options.query_field, len(opened) > 1)]
    if collection.has_texts and len(collection) <= MAX_BM25:
        modes += _bm25(collection)
    return Demo(collection, tuple(_with_unique_keys(modes)))


def _check_flags(options: DemoOptions) -> None:
    if not options.run and not options.index:
        raise UserError("--run is missing. Add --run=RUN with a run or checkpoint, or --index.")
    if not options.index:
        return
    if len(options.run) not in (0, len(options.index)):
        raise UserError(
            f"--run has {len(options.run)} folders, but --index has {len(options.index)}. Name one "
            "run for each index, in the same order, or none."
        )
    names = ["data", *(key.name for key in dataclasses.fields(DocumentColumns))]
    if flags := [name for name in names if getattr(options, name)]:
        raise UserError(
            f"--{flags[0]} is for documents that are encoded at the start. Remove it, or --index."
        )


def _open_indexes(options: DemoOptions) -> list[_OpenedIndex]:
    """Opens indexes and their models; pictures come from the first index."""
    out: list[_OpenedIndex] = []
    runs = options.run or ("",) * len(options.index)
    for name, run in zip(options.index, runs, strict=True):
        index = open_index(name)
        path, model = run or index.about.checkpoint, None
        if Path(path).is_dir():
            model = load.load(path, batch_size=BATCH)
            field = query_field(model.config, options.query_field or index.about.query_field)
            check_model(index.about, model, field, index.folder)
        elif run or isinstance(index, DenseIndex):
            raise UserError(f"The model {path} of the index {name} does not exist. Give --run=RUN.")
        else:
            log.info(f"the model {path} of {name} does not exist: searching by bags of words only")
        records = None if out else open_image_records(index)
        out.append(_OpenedIndex(Path(name).name, index, model, records))
    return out


def _build_indexes(options: DemoOptions, folder: Path) -> list[_OpenedIndex]:
    """Encodes the documents of --data, or of the first run's evaluation, by every run."""
    checkpoints = [saved.find(run) for run in options.run]
    configs = [saved.read_config(checkpoint) for checkpoint in checkpoints]
    source, out = _config_source(configs[0], options.data), []
    columns = {key.name: getattr(options, key.name) for key in dataclasses.fields(DocumentColumns)}
    for position, (checkpoint, config) in enumerate(zip(checkpoints, configs, strict=True)):
        target = folder / str(position)
        flags = IndexOptions(
            checkpoint, options.data, target, query_field=options.query_field, batch_size=BATCH,
            **columns,
        )  # fmt: skip
        work = prepare(flags) if source is None else _prepare_source(source, flags, config)
        total = len(work.records)
        if total > options.limit:
            log.info(f"searching the first {options.limit:,} of {total:,} documents; see --limit")
            work = dataclasses.replace(work, span=range(options.limit))
        work = work.with_model()
        partial = folders.begin(target)
        folders.finish(partial, target, write_index(partial, work))
        name = Path(options.data.partition(",")[0]).name if source is None else source.name
        records = work.records if work.reader.images else None
        out.append(_OpenedIndex(name, open_index(target), work.model, records))
    return out


def _config_source(config: Config, data: str) -> RecordSource | None:
    """Returns the documents of a config's source; None if --data names files."""
    sources = {
        f"evals.{name}": evaluator.data
        for name, evaluator in config.evals.items()
        if evaluator.data
    }
    if not data and not sources:
        raise UserError("--data is missing: the run has no evaluation data. Add --data=FILES.")
    source = config.data if data == "data" else sources.get(data or next(iter(sources)))
    if source is None and data.startswith("evals."):
        raise UserError(f"--data={data}: the run has {', '.join(sources) or 'no evaluation data'}.")
    if source is None:
        return None
    opened = make_source(source)
    return opened.documents if isinstance(opened, GradedPairs) else opened


def _prepare_source(source: RecordSource, options: IndexOptions, config: Config) -> IndexWork:
    """Prepares the index of a config's source, as `prepare` does for files."""
    fields = document_fields(config, "")
    reader = reader_for(options, config, fields)
    texts = [field.column for field in config.encoded.values() if field.modality == "text"]
    shown = "" if reader.texts else next(iter(texts), "")
    reader = dataclasses.replace(reader, id="id", show=options.show or shown)
    records: Any = SourceRecords(source, next(iter(reader.images.values()), ""))
    return make_work(options, options.run, config, fields, records, reader)


def _modes(opened: _OpenedIndex, field: str, several: bool) -> Iterator[SearchMode]:
    """Yields the modes of an index: by its model, and by bags of words if it has terms."""
    index, model = opened.index, opened.model
    suffix = f" · {run_folder(Path(index.about.checkpoint)).name}" if several else ""
    lexical = isinstance(index, InvertedIndex)
    if model is not None:
        encoded = model.config.encoded
        text = query_field(model.config, field or index.about.query_field)
        images = [name for name, x in encoded.items() if x.modality == "image"]
        yield ModelMode(
            "sparse" if lexical else "dense",
            f"{'Sparse' if lexical else 'Dense'}{suffix}",
            "terms that the model weighs" if lexical else "embeddings of the model",
            index, model,
            text if encoded[text].modality == "text" else "",
            images[0] if images else "",
            tuple(document_fields(model.config, index.about.field)),
        )  # fmt: skip
    if lexical and index.about.query_length:
        bags = BagOfWordsEncoder.load(index.folder)
        yield BagMode("bag", f"Bag of words{suffix}", "the words of the query alone", index, bags)


def _bm25(collection: DemoDocuments) -> Iterator[SearchMode]:
    """Yields BM25 over the texts if the library is installed."""
    try:
        index = Bm25([collection.text(document) for document in range(len(collection))])
    except UserError as error:
        log.info(f"no BM25: {error}")
        return
    yield Bm25Mode("bm25", "BM25", "words that query and document share", index)


def _with_unique_keys(modes: Sequence[SearchMode]) -> Iterator[SearchMode]:
    """Appends -2, -3, ... to the second and further modes with the same key."""
    for index, mode in enumerate(modes):
        before = sum(other.key == mode.key for other in modes[:index])
        yield dataclasses.replace(mode, key=f"{mode.key}-{before + 1}") if before else mode
