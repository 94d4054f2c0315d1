"""Retrieval with the positive pairs of Crisscrossed Captions, beside the original ones."""

import csv
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.data.formats.open_files import expand
from big_retrieval.data.sources import is_absent, place_of, value_of
from big_retrieval.errors import UserError
from big_retrieval.evals.groups import FieldItems
from big_retrieval.evals.retrieval import RetrievalEvaluator
from big_retrieval.io.regular import check_regular

log = logging.getLogger(__name__)
COLUMNS = ("caption", "image", "agg_score")


@dataclass(frozen=True)
class CrisscrossedEvaluator(RetrievalEvaluator):
    """As `RetrievalEvaluator`; the pairs of the files are right answers, too."""

    config: configs.CrisscrossedCaptions

    def check(self) -> None:
        """Reads the files and finds their pairs in the data, and the first record.

        Raises:
          UserError: a file is missing or no such file, no pair is in the data, or a field or column
            does not fit the records.
        """
        super().check()
        assert self.pairs is not None

    @cached_property
    def pairs(self) -> list[tuple[int, int, int]]:
        """The pairs of the files that are right: record of the caption, its number, image."""
        c = self.config
        images, captions = self._ids()
        rows = [row for pattern in c.files for path in _files(pattern) for row in read_pairs(path)]
        right = [row for row in rows if row[2] >= c.min_score]
        known = [(caption, image) for caption, image, _ in right]
        known = [pair for pair in known if pair[0] in captions and pair[1] in images]
        unknown = len(right) - len(known)
        if right and not known:
            caption, image, _ = right[0]
            raise UserError(
                f"{', '.join(c.files)}: no pair is in {self.source.name}, such as the caption "
                f"{caption!r} and the image {image!r}: give the files of this split, or name the "
                "columns of the ids in caption_column and image_column."
            )
        log.info(
            f"{len(known):,} of {len(rows):,} pairs have a score of {c.min_score:g} or more"
            + (f"; {unknown:,} others name what the data lack" if unknown else "")
        )
        return [(*captions[caption], images[image]) for caption, image in known]

    def _ids(self) -> tuple[dict[str, int], dict[str, tuple[int, int]]]:
        """Id of an image -> its record; id of a caption -> record and number of the caption."""
        c, images, captions = self.config, dict[str, int](), dict[str, tuple[int, int]]()
        text = next(n for n in (c.query, c.document) if self.readers[n].field.modality == "text")
        for index in range(len(self.source)):
            ids = value_of(self.source, index, c.caption_column)
            count = self.readers[text].count(self.source, index)
            if is_absent(ids) or isinstance(ids, str) or len(ids) != count:
                raise UserError(
                    f"{place_of(self.source, index)}: {c.caption_column!r} is {ids!r:.60}; it must "
                    f"hold an id for each of the {count} captions: name their column in "
                    "config.evals.<name>.caption_column."
                )
            images[_name(str(value_of(self.source, index, c.image_column)))] = index
            captions |= {str(each): (index, number) for number, each in enumerate(ids)}
        return images, captions

    def encode(self, weights: Any) -> dict[str, FieldItems]:
        """Both fields of all records, each with its further right answers."""
        fields = super().encode(weights)
        names = self.config.query, self.config.document
        text, image = sorted(names, key=lambda x: fields[x].reader.field.modality != "text")
        rows = [{(r, n): i for i, (r, n) in enumerate(fields[x].items.tolist())}
                for x in (text, image)]  # fmt: skip
        lists = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
        for record, number, other in self.pairs:
            caption, picture = rows[0].get((record, number)), rows[1].get((other, 0))
            if caption is not None and picture is not None:
                lists[0][caption].append(picture)
                lists[1][picture].append(caption)
        return {
            name: replace(fields[name], further=_filled(of, len(fields[name].items)))
            for name, of in zip((text, image), lists, strict=True)
        }


def _filled(lists: dict[int, list[int]], rows: int) -> np.ndarray:
    """Lists of some rows as int64 [rows, E], filled up with -1."""
    out = np.full((rows, max(map(len, lists.values()), default=0)), -1, np.int64)
    for row, found in lists.items():
        out[row, : len(found)] = found
    return out


def _files(pattern: str) -> list[Path]:
    found, missing = expand(pattern)
    if missing:
        raise UserError(
            f"the file of pairs {missing[0]} is not on this machine: name those of Crisscrossed "
            "Captions in config.evals.<name>.files."
        )
    return found


def read_pairs(path: Path) -> Sequence[tuple[str, str, float]]:
    """The pairs of a file: ids of caption and image, and their score.

    "COCO_val2014:sentid:626312" is the caption 626312, and of an image's path its name is the id.

    Raises:
      UserError: it is no such file.
    """
    try:
        return list(_rows(path))
    except csv.Error as problem:
        raise UserError(f"{path} is no CSV file ({problem}).") from None


def _rows(path: Path) -> Iterator[tuple[str, str, float]]:
    check_regular(path)
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as file:
        rows = csv.DictReader(file)
        if not set(COLUMNS) <= set(rows.fieldnames or ()):
            raise UserError(
                f"{path} has the columns {', '.join(rows.fieldnames or ()) or 'none'}; files of "
                f"pairs of captions and images have {', '.join(COLUMNS)}: give a file sits_*.csv."
            )
        for row in rows:
            caption, image, score = (row[name] or "" for name in COLUMNS)
            try:
                number = float(score)
            except ValueError:
                number = np.nan
            if not np.isfinite(number):
                raise UserError(
                    f"{path}, line {rows.line_num}: agg_score is {score!r:.40}, not a number."
                )
            yield caption.rpartition(":")[2], _name(image), number


def _name(image: str) -> str:
    return PurePosixPath(image).name
