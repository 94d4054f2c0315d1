"""nDCG of the images that are found for captions, by ROUGE-L or by relevance files."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.config.topologies import Topology
from big_retrieval.data.batches import try_record
from big_retrieval.data.fields.reader import FieldReader, counts
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import RecordSource
from big_retrieval.errors import Damaged, UserError
from big_retrieval.evals import examples
from big_retrieval.evals.graded import graded_metrics
from big_retrieval.evals.groups import FieldItems, encode_items
from big_retrieval.evals.rankings import write_values
from big_retrieval.evals.ranks import DocumentScorer
from big_retrieval.evals.rouge import RougeL
from big_retrieval.inference.encoder import Encoder
from big_retrieval.io.handles import MappedFile
from big_retrieval.io.regular import check_regular
from big_retrieval.runtime.extras import Extras

log = logging.getLogger(__name__)
BLOCK = 256  # captions whose relevance with all images is held at a time
Relevance = Callable[[int, int], np.ndarray]  # of captions start .. stop - 1: [stop - start, N]


@dataclass(frozen=True)
class CaptionNdcgEvaluator:
    """nDCG@k of every caption, of all images; gains are 2^relevance - 1.

    An image of rank r counts its gain / log2(r + 1); the sum is divided by that of the best order
    of all images, and is 0 where no image has any relevance. Of images with equal scores the less
    relevant one comes first.

    Attributes:
      config: the evaluator's configuration.
      source: the records, an image with its captions each.
      readers: field name -> how it is read.
      topology: scores embeddings.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """

    config: configs.CaptionNdcg
    source: RecordSource
    readers: dict[str, FieldReader]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None

    def check(self) -> None:
        """Reads the first record, and opens the files of relevance.

        Raises:
          UserError: a field does not fit the records, or a file the captions and images.
        """
        names = self.config.document, self.config.query
        try_record(self.source, {name: self.readers[name] for name in names})
        shape = int(counts(self.readers[self.config.query], self.source).sum()), len(self.source)
        for file in filter(None, self.config.files().values()):
            open_relevance(file, shape)

    def run(
        self,
        weights: Any,
        show: examples.Show | None = None,
        rankings: Path | None = None,
        extras: Extras | None = None,
    ) -> dict[str, float]:
        """Encodes all captions and images, and ranks the images for each caption.

        Args:
          weights: the parameters.
          show: not called: examples are those of `Retrieval`.
          rankings: the folder for each caption's values; None: they are not written.
          extras: says that the values cannot be written; None: that is an error.

        Returns:
          `rougeL/nDCG@25` and so on.
        """
        texts, images = (
            self._encode(weights, x) for x in (self.config.query, self.config.document)
        )
        log.info(f"{len(texts.items):,} of {texts.field} against {len(images.items):,} images")
        how: Any = {"score": self.topology.score, "encoder": self.encoder}
        scorer = DocumentScorer(images.embeddings, chunk=self.config.chunk, **how)
        shape = len(texts.items), len(self.source)
        values = {
            f"{name}/nDCG@{self.config.depth}": self._by_query(
                scorer, texts, images, self._relevance(file, shape, texts)
            )
            for name, file in self.config.files().items()
        }
        if rankings is not None:
            write_values(rankings, texts.names(), values, extras)
        return {name: float(np.mean(each)) for name, each in values.items()}

    def _encode(self, weights: Any, name: str) -> FieldItems:
        reader, reading = self.readers[name], self.reading
        return encode_items(
            self.encoder, weights, self.source, name, reader, groups=None, reading=reading
        )

    def _by_query(
        self, scorer: DocumentScorer, texts: FieldItems, images: FieldItems, relevance: Relevance
    ) -> np.ndarray:
        """nDCG of every caption, float64 [captions]."""
        metric, records, out = f"nDCG@{self.config.depth}", images.items[:, 0], []
        for start in range(0, len(texts.items), BLOCK):
            block = relevance(start, min(start + BLOCK, len(texts.items)))  # [b, N]
            if not ((block >= 0) & (block < np.inf)).all():
                raise UserError(
                    "config.evals.<name>.relevance: captions from number "
                    f"{start:,} on have relevance that is negative or not finite; compute it anew."
                )
            gains = np.exp2(np.asarray(block, np.float64)) - 1  # [b, N]
            of_found = gains[:, records]  # [b, images that were encoded]
            found, _ = scorer.best(
                texts.embeddings[start : start + len(block)],
                self.config.depth,
                lambda query: of_found[query],  # noqa: B023
            )
            ranked = np.take_along_axis(of_found, found, axis=1)  # [b, depth]
            out.append(graded_metrics(ranked, gains, (metric,))[metric])
        return np.concatenate(out)

    def _relevance(self, file: str, shape: tuple[int, int], texts: FieldItems) -> Relevance:
        """What gives the relevance of all images for some captions."""
        if file:
            mapped, table = MappedFile(file), open_relevance(file, shape)

            def of_file(start: int, stop: int) -> np.ndarray:
                mapped.check()
                return table[start:stop]

            return of_file
        captions = [self._captions(index) for index in range(len(self.source))]
        rouge, items = RougeL(captions), texts.items.tolist()

        def of_words(start: int, stop: int) -> np.ndarray:
            return rouge.relevance([captions[record][n] for record, n in items[start:stop]])

        return of_words

    def _captions(self, index: int) -> Sequence[str]:
        """The captions of a record with their titles, if any; none of a damaged one."""
        try:
            found = source_texts(self.source, index, self.readers[self.config.query])
        except Damaged:
            return ()
        return [text if isinstance(text, str) else " ".join(text) for text in found]


def open_relevance(file: str, shape: tuple[int, int]) -> np.ndarray:
    """A memory-mapped file of relevance, float32 [captions, images].

    TERN's files hold the numbers alone, row by row, whatever their name ends with; files of
    `numpy.save` are taken, too.

    Args:
      file: the path.
      shape: captions and images of the data.

    Raises:
      UserError: it is missing, or holds another number of captions or images.
    """
    wanted = f"{shape[0]:,} captions and {shape[1]:,} images"
    try:
        check_regular(file)
        with Path(file).open("rb") as opened:
            headed = opened.read(6) == b"\x93NUMPY"
        if headed:
            found = np.load(file, mmap_mode="r", allow_pickle=False)
        else:
            size = Path(file).stat().st_size
            if size != 4 * math.prod(shape):
                raise UserError(
                    f"the file of relevance {file} holds {size // 4:,} numbers of float32, but the "
                    f"data have {wanted}: give the file of this split."
                )
            found = np.memmap(file, np.float32, mode="r", shape=shape)
    except OSError as problem:
        raise UserError(
            f"the file of relevance {file} cannot be read ({problem.strerror or problem}). Name "
            "another in config.evals.<name>.relevance, or 'rougeL', which is computed."
        ) from None
    except (ValueError, EOFError) as problem:
        raise UserError(f"the file of relevance {file} is no .npy file ({problem}).") from None
    if found.shape != shape or found.dtype.kind != "f":
        raise UserError(
            f"the file of relevance {file} holds {found.dtype} {list(found.shape)}, but the data "
            f"have {wanted}: give the file of this split."
        )
    return found
