"""Retrieval with positive pairs of Crisscrossed Captions in addition to the original pairs."""

import csv
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import scipy.sparse

from big_retrieval.config import Config, register
from big_retrieval.config.evals import once
from big_retrieval.data.formats.open_files import expand
from big_retrieval.data.sources import is_absent, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals.caption_ndcg import check_one_text
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.evals.groups import FieldItems
from big_retrieval.evals.retrieval import Retrieval
from big_retrieval.io.regular import read_text

log = logging.getLogger(__name__)
COLUMNS = ("caption", "image", "agg_score")


@register("evaluator")
@dataclass(frozen=True)
class CrisscrossedCaptions(Retrieval):
    """`Retrieval` with more positives: pairs of captions and images that people rated as similar.

    Parekh et al., "Crisscrossed Captions" (2021). A caption's original image remains a positive.
    """

    type: Literal["crisscrossed"] = "crisscrossed"  # type: ignore[assignment]
    # files or patterns, such as sits_test.csv, with the columns caption, image and agg_score
    files: tuple[str, ...] = ()
    min_score: float = 3.0  # minimum score of positive pairs, from 0 to 5
    # columns of the records: the image file, and a list of caption ids
    image_column: str = "filename"
    caption_column: str = "sentids"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.files:
            yield f"{path}.files is empty; name the files of pairs, such as sits_test.csv."
        yield from check_one_text(config, path, self.query, self.document)

    def check_data(self, context: EvaluatorContext) -> None:
        super().check_data(context)
        self.pairs(context)

    @once
    def pairs(self, context: EvaluatorContext) -> list[tuple[int, int, int]]:
        """Reads the positive pairs: record and index of the caption, record of the image."""
        images, captions = self._ids(context)
        paths = [path for pattern in self.files for path in _files(pattern)]
        rows = [row for path in paths for row in read_pairs(path)]
        positives = [(caption, image) for caption, image, x in rows if x >= self.min_score]
        present = [pair for pair in positives if pair[0] in captions and pair[1] in images]
        missing = len(positives) - len(present)
        if positives and not present:
            caption, image = positives[0]
            raise UserError(
                f"{', '.join(self.files)}: no pair is in {context.source.name}, such as the "
                f"caption {caption!r} and the image {image!r}. Give the files of this split, or "
                "name the columns of the ids in caption_column and image_column."
            )
        log.info(
            f"{len(present):,} of {len(rows):,} pairs have a score of {self.min_score:g} or more"
            + (f"; {missing:,} more are not in the data" if missing else "")
        )
        return [(*captions[caption], images[image]) for caption, image in present]

    def _ids(self, context: EvaluatorContext) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Returns the records of images, and the records and indices of captions, by their ids."""
        source, images, captions = context.source, dict[str, int](), dict[str, tuple[int, int]]()
        readers = [context.readers[name] for name in (self.query, self.document)]
        text = next(reader for reader in readers if reader.field.modality == "text")
        for index in range(len(source)):
            ids = value_of(source, index, self.caption_column)
            count = text.count(source, index)
            if is_absent(ids) or isinstance(ids, str) or len(ids) != count:
                raise UserError(
                    f"{source.place(index)}: {self.caption_column!r} is {ids!r:.60}; it must "
                    f"hold an id for each of the {count} captions. Name another column in "
                    f"{context.path}.caption_column."
                )
            image = str(value_of(source, index, self.image_column))
            images[PurePosixPath(image).name] = index
            captions |= {str(x): (index, position) for position, x in enumerate(ids)}
        return images, captions

    def encode(self, context: EvaluatorContext, weights: Any) -> dict[str, FieldItems]:
        fields = super().encode(context, weights)
        names = self.query, self.document
        text, image = sorted(names, key=lambda x: fields[x].reader.field.modality != "text")
        captions, pictures = (
            {tuple(item): row for row, item in enumerate(fields[name].items.tolist())}
            for name in (text, image)
        )
        rows = [
            (captions[record, index], pictures[image_record, 0])
            for record, index, image_record in self.pairs(context)
            if (record, index) in captions and (image_record, 0) in pictures
        ]
        positives = np.array(rows, np.int64).reshape(-1, 2)
        matrix = scipy.sparse.csr_array(
            (np.ones(len(rows)), positives.T), shape=(len(captions), len(pictures))
        )
        further = {text: matrix, image: scipy.sparse.csr_array(matrix.T)}
        return {name: replace(side, further=further[name]) for name, side in fields.items()}


def _files(pattern: str) -> list[Path]:
    paths, missing = expand(pattern)
    if missing:
        raise UserError(
            f"No file of pairs {missing[0]}. Name the files of Crisscrossed Captions in "
            "config.evals.<name>.files."
        )
    return paths


def read_pairs(path: Path) -> Sequence[tuple[str, str, float]]:
    """Reads the pairs of a file: caption id, image id and score.

    "COCO_val2014:sentid:626312" is the caption 626312. The id of an image is its file name.
    """
    try:
        rows = csv.DictReader(io.StringIO(read_text(path, "utf-8-sig", "replace")))
        if not set(COLUMNS) <= set(rows.fieldnames or ()):
            raise UserError(
                f"{path} has the columns {', '.join(rows.fieldnames or ()) or 'none'}; files of "
                f"pairs have {', '.join(COLUMNS)}. Give a file such as sits_test.csv."
            )
        return [_pair(row, f"{path}, line {rows.line_num}") for row in rows]
    except csv.Error as error:
        raise UserError(f"Cannot read {path} as CSV: {error}.") from None


def _pair(row: dict[str, str], location: str) -> tuple[str, str, float]:
    caption, image, text = (row[name] or "" for name in COLUMNS)
    try:
        score = float(text)
    except ValueError:
        score = np.nan
    if not np.isfinite(score):
        raise UserError(f"{location}: agg_score is {text!r:.40}, not a number.")
    return caption.rpartition(":")[2], PurePosixPath(image).name, score
