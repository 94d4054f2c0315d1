"""nDCG of image search by captions, with relevance from ROUGE-L or from files."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from big_retrieval.config import AtLeast1, Config, Scenes, Source, register
from big_retrieval.config.evals import Evaluator
from big_retrieval.data.fields.reader import counts
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.graded import graded_metrics
from big_retrieval.evals.groups import FieldItems, encode_items
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.evals.rouge import RougeL
from big_retrieval.io.handles import MappedFile
from big_retrieval.io.regular import check_regular
from big_retrieval.io.space import reason

log = logging.getLogger(__name__)
ROUGE = "rougeL"  # relevance without a file
BLOCK = 256  # captions at a time whose relevance of all images is in memory
Relevance = Callable[[int, int], np.ndarray]  # (start, stop) of captions -> [stop - start, N]


@register("evaluator")
@dataclass(frozen=True)
class CaptionNdcg(Evaluator):
    """nDCG of image search for each caption, with the similarity of captions as relevance.

    Gains are 2^relevance - 1. The sum of gain / log2(r + 1) over ranks r is divided by its value
    for the best order of all images; it is 0 if all images have relevance 0. Among equal scores,
    the less relevant image comes first.
    """

    replaced: ClassVar[bool] = True
    type: Literal["caption_ndcg"] = "caption_ndcg"
    data: Source = field(default_factory=lambda: Scenes(split="test"))
    query: str = "text"
    document: str = "image"
    # relevance of the images: "rougeL" is computed from the captions; "NAME=FILE.npy" is a file of
    # float32 [captions, images], such as TERN's spice=coco-test-spice.npy
    relevance: tuple[str, ...] = (ROUGE,)
    depth: AtLeast1 = 25  # number of first ranks that count
    chunk: AtLeast1 = 1024  # captions scored at a time
    rankings: bool = False  # at the end, write each caption's metrics to rankings/
    every: int | None = 0  # None for `eval_every`; 0 evaluates only at the end

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from check_one_text(config, path, self.query, self.document)
        text = config.fields.get(self.query)
        if text is not None and text.modality != "text":
            yield f"{path}.query is {self.query!r}; it must be the field of the captions."
        files = self.files()
        if not files or len(files) < len(self.relevance):
            yield f"{path}.relevance is {self.relevance}; name at least one, and each once."
        for name, file in files.items():
            if not name or (not file and name != ROUGE):
                yield f"{path}.relevance has {name!r}; write {ROUGE!r}, or 'spice=FILE.npy'."

    def files(self) -> dict[str, str]:
        """File of each relevance, by its name; empty if the relevance is computed."""
        return {name: file for name, _, file in (x.partition("=") for x in self.relevance)}

    def reads(self) -> Mapping[str, str]:
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: Config) -> Sequence[str]:
        return [f"{name}/nDCG@{self.depth}" for name in self.files()]

    def check_data(self, context: EvaluatorContext) -> None:
        context.try_fields(self.document, self.query)
        captions = int(counts(context.readers[self.query], context.source).sum())
        for file in filter(None, self.files().values()):
            open_relevance(file, (captions, len(context.source)))

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        encoder = context.source_encoder(weights)
        texts, images = (
            encode_items(encoder, context.source, name, context.readers[name])
            for name in (self.query, self.document)
        )
        log.info(f"{len(texts.items):,} of {texts.field} against {len(images.items):,} images")
        options: Any = {"score": context.topology.score, "encoder": context.encoder}
        scorer = DocumentScorer(images.embeddings, chunk=self.chunk, **options)
        values = {}
        for name, file in self.files().items():
            relevance = relevance_of(file, texts)
            values[f"{name}/nDCG@{self.depth}"] = self._by_query(scorer, texts, images, relevance)
        if context.rankings is not None:
            write_values(context.rankings, texts.names(), values, context.extras)
        return {name: float(np.mean(ndcg)) for name, ndcg in values.items()}

    def _by_query(
        self, scorer: DocumentScorer, texts: FieldItems, images: FieldItems, relevance: Relevance
    ) -> np.ndarray:
        """Computes the nDCG of every caption, float64 [captions]."""
        metric, records, out = f"nDCG@{self.depth}", images.items[:, 0], []
        for start in range(0, len(texts.items), BLOCK):
            block = relevance(start, min(start + BLOCK, len(texts.items)))  # [b, N]
            if not ((block >= 0) & (block < np.inf)).all():
                raise UserError(
                    "config.evals.<name>.relevance: a relevance of the captions "
                    f"{start:,} to {start + len(block) - 1:,} is negative or not finite. "
                    "Recreate the file."
                )
            gains = np.exp2(np.asarray(block, np.float64)) - 1  # [b, N]
            encoded = gains[:, records]  # [b, encoded images]
            hits, _ = scorer.best(
                texts.embeddings[start : start + len(block)],
                self.depth,
                lambda query: encoded[query],  # noqa: B023
            )
            ranked = np.take_along_axis(encoded, hits, axis=1)  # [b, depth]
            out.append(graded_metrics(ranked, gains, (metric,))[metric])
        return np.concatenate(out)


def check_one_text(config: Config, path: str, *names: str) -> Iterator[str]:
    """Yields an error message unless exactly one of the two fields is a text field."""
    fields = [config.fields[name].modality for name in names if name in config.fields]
    if len(fields) == 2 and fields.count("text") != 1:
        query, document = map(repr, names)
        yield f"{path}: exactly one of query={query} and document={document} must be a text field."


def relevance_of(file: str, texts: FieldItems) -> Relevance:
    """Makes the function that returns the relevance of all images for captions."""
    source = texts.source
    if file:
        mapped, table = MappedFile(file), open_relevance(file, (len(texts.items), len(source)))

        def read(start: int, stop: int) -> np.ndarray:
            mapped.check()
            return table[start:stop]

        return read
    captions = [_captions(texts, index) for index in range(len(source))]
    rouge, items = RougeL(captions), texts.items.tolist()

    def compute(start: int, stop: int) -> np.ndarray:
        return rouge.relevance([captions[record][n] for record, n in items[start:stop]])

    return compute


def _captions(texts: FieldItems, index: int) -> Sequence[str]:
    """Reads the captions of a record with their titles; empty for a damaged record."""
    try:
        captions = source_texts(texts.source, index, texts.reader)
    except Damaged:
        return ()
    return [text if isinstance(text, str) else " ".join(text) for text in captions]


def open_relevance(file: str, shape: tuple[int, int]) -> np.ndarray:
    """Maps a file of relevance into memory, float32 [captions, images].

    TERN's files have only the values, row by row, despite their suffix .npy; files of `numpy.save`
    work, too.
    """
    try:
        check_regular(file)
        with Path(file).open("rb") as opened:
            has_header = opened.read(6) == b"\x93NUMPY"
        if has_header:
            table = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            table = np.memmap(file, np.float32, mode="r")
            table = table.reshape(shape) if table.size == math.prod(shape) else table
    except (OSError, ValueError, EOFError) as error:
        raise UserError(
            f"Cannot read the relevance {file}: {reason(error)}. Name another file in "
            f"config.evals.<name>.relevance, or {ROUGE!r}."
        ) from None
    if table.shape != shape or table.dtype.kind != "f":
        raise UserError(
            f"The relevance {file} is {table.dtype} {list(table.shape)}, but the data have "
            f"{shape[0]:,} captions and {shape[1]:,} images. Give the file of this split."
        )
    return table
