"""Retrieval with the positive pairs of Crisscrossed Captions, in addition to the original ones."""

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

    Parekh et al., "Crisscrossed Captions" (2021). A caption's own image remains a positive. R@k is
    1 if at least one positive is among the first k; R-precision is the share of positives among the
    first P.
    """

    type: Literal["crisscrossed"] = "crisscrossed"  # type: ignore[assignment]
    # sits_test.csv and so on, of the columns caption, image and agg_score; patterns, too
    files: tuple[str, ...] = ()
    min_score: float = 3.0  # minimum score of positive pairs, from 0 to 5
    # columns of the records: the file of the image, and a list of the ids of the captions
    image_column: str = "filename"
    caption_column: str = "sentids"

    def check(self, config: Config, path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if not self.files:
            yield f"{path}.files is empty; name the files of pairs, such as sits_test.csv."
        yield from check_one_text(config, path, self.query, self.document)

    def check_data(self, context: EvaluatorContext) -> None:
        """Reads the first record, and the pairs of the files.

        Raises:
          UserError: a file cannot be read, no pair is in the data, or a field or column does not
            fit the records.
        """
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
                f"caption {caption!r} and the image {image!r}: give the files of this split, or "
                "name the columns of the ids in caption_column and image_column."
            )
        log.info(
            f"{len(present):,} of {len(rows):,} pairs have a score of {self.min_score:g} or more"
            + (f"; {missing:,} others name what the data lack" if missing else "")
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
                    f"hold an id for each of the {count} captions: name their column in "
                    f"{context.path}.caption_column."
                )
            images[_name(str(value_of(source, index, self.image_column)))] = index
            captions |= {str(x): (index, position) for position, x in enumerate(ids)}
        return images, captions

    def encode(self, context: EvaluatorContext, weights: Any) -> dict[str, FieldItems]:
        """Encodes both fields of all records, each with its further positives."""
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
    found, missing = expand(pattern)
    if missing:
        raise UserError(
            f"the file of pairs {missing[0]} is not on this machine: name those of Crisscrossed "
            "Captions in config.evals.<name>.files."
        )
    return found


def read_pairs(path: Path) -> Sequence[tuple[str, str, float]]:
    """Reads the pairs of a file: ids of caption and image, and their score.

    "COCO_val2014:sentid:626312" is the caption 626312. The id of an image is its file name.

    Raises:
      UserError: the file is not such a CSV file.
    """
    try:
        rows = csv.DictReader(io.StringIO(read_text(path, "utf-8-sig", "replace")))
        if not set(COLUMNS) <= set(rows.fieldnames or ()):
            raise UserError(
                f"{path} has the columns {', '.join(rows.fieldnames or ()) or 'none'}; files of "
                f"pairs of captions and images have {', '.join(COLUMNS)}: give a file sits_*.csv."
            )
        return [_pair(row, f"{path}, line {rows.line_num}") for row in rows]
    except csv.Error as problem:
        raise UserError(f"{path} is no CSV file ({problem}).") from None


def _pair(row: dict[str, str], location: str) -> tuple[str, str, float]:
    caption, image, score = (row[name] or "" for name in COLUMNS)
    try:
        number = float(score)
    except ValueError:
        number = np.nan
    if not np.isfinite(number):
        raise UserError(f"{location}: agg_score is {score!r:.40}, not a number.")
    return caption.rpartition(":")[2], _name(image), number


def _name(image: str) -> str:
    return PurePosixPath(image).name
