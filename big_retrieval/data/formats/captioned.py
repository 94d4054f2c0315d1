"""Images with several captions each: Karpathy's split files, and what VSRN and SCAN publish."""

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, not_empty
from big_retrieval.data.fields.stores import open_store
from big_retrieval.data.formats.open_files import files_of
from big_retrieval.data.formats.records import Each, EachCaption, Records
from big_retrieval.data.formats.regions import WithRegions, find_rows
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_text

log = logging.getLogger(__name__)


@register("source")
@dataclass(frozen=True)
class Karpathy(Source):
    """Flickr30k or COCO by a Karpathy split file and a folder of images, of their regions, or both.

    With `regions`, records have the columns `regions` [R, F] and `boxes` [R, 4] (`RegionField`).
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["karpathy"] = "karpathy"
    path: str = ""  # dataset_flickr30k.json or dataset_coco.json
    # folder; empty: that of the file, or one in it; with `regions`: no images
    images: str = ""
    regions: str = ""  # folder that `examples/convert_regions.py` wrote; empty: no regions
    split: str = "train"  # several: "train+restval", as published models for COCO are trained
    captions: int = 5  # of an image, at most; 0: all
    each: Each = "images"
    skip_missing: bool = False  # leave images out that are missing, instead of an error
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "split file")

    def build(self) -> RecordSource:
        path = files_of(self.path, self.how_to_get)[0]
        wanted = set(self.split.split("+"))
        try:
            images = json.loads(read_text(path))["images"]
            splits = sorted({image["split"] for image in images})
            chosen = [image for image in images if image["split"] in wanted]
            rows = [_row(image, self.captions) for image in chosen]
            names = [_names(image) for image in chosen]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path} is no Karpathy split file: it needs images with filename, split, "
                "sentences."
            ) from None
        if not rows or not wanted <= set(splits):
            raise UserError(f"{path} has no split {self.split!r}; it has {', '.join(splits)}.")
        if "train" in wanted and "restval" in set(splits) - wanted:
            log.warning(
                f"{path} has a split restval, on which published models are trained, too: "
                "split='train+restval' reads both"
            )
        reads_images = bool(self.images) or not self.regions
        root, missing = Path(self.images or path.parent), np.zeros(len(rows), bool)
        if reads_images:
            root = root if self.images else _folder_of(root, rows[0]["image"])
            missing |= _no_file(root, [row["image"] for row in rows])
            _check(missing, [row["image"] for row in rows], str(root), self.skip_missing)
        else:
            rows = [{key: row[key] for key in row if key != "image"} for row in rows]
        table: Table = Rows(rows, f"{path.stem}-{self.split}")
        if self.regions:
            at, files = find_rows(Path(self.regions), names)
            _check(at < 0, [x[0] for x in names], self.regions, self.skip_missing)
            table, missing = WithRegions(table, at, files), missing | (at < 0)
        if missing.any():
            log.warning(
                f"{path}: {missing.sum():,} of {len(rows):,} images are missing and left out"
            )
            table = View(table, np.flatnonzero(~missing))
        records = Records(table, image=("image",) if reads_images else (), root=root)
        return EachCaption(records) if self.each == "captions" else records


@register("source")
@dataclass(frozen=True)
class Precomputed(Source):
    """Regions and captions in the files that VSRN and SCAN publish.

    The folder holds for each split `<split>_ims.npy` [images or captions, R, F] and
    `<split>_caps.txt`, a caption a line, those of an image one behind the other. Records have
    `captions`, the column `regions` (`RegionField`) and no boxes.
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["precomputed"] = "precomputed"
    path: str = ""  # the folder, such as f30k_precomp
    split: str = "train"  # or dev, test, testall
    captions: AtLeast1 = 5  # of an image
    each: Each = "images"
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with <split>_ims.npy and <split>_caps.txt")

    def build(self) -> RecordSource:
        folder, count = files_of(self.path, self.how_to_get)[0], self.captions
        images, texts = folder / f"{self.split}_ims.npy", folder / f"{self.split}_caps.txt"
        try:
            lines = [line.strip() for line in read_text(texts).rstrip("\n").split("\n")]
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"the captions {texts} cannot be read ({problem}).") from None
        store, length = open_store(str(images), again=True), len(lines) // count
        if len(lines) % count or len(store) not in (length, len(lines)):
            raise UserError(
                f"{images} has {len(store):,} rows for {len(lines):,} captions of {texts}: wanted "
                f"is a row for each caption, or one for each {count} of them (`captions` of the "
                "data)."
            )
        rows = [
            {"captions": lines[n * count : (n + 1) * count], "id": f"{self.split}-{n}"}
            for n in range(length)
        ]
        at = np.arange(length, dtype=np.int64) * (len(store) // length)
        table = WithRegions(Rows(rows, f"{folder.name}-{self.split}"), at, {"regions": str(images)})
        records = Records(table, image=())
        return EachCaption(records) if self.each == "captions" else records


def _row(image: dict[str, Any], captions: int) -> Record:
    texts = [sentence["raw"] for sentence in image["sentences"]]
    number = image.get("cocoid", image.get("imgid", image["filename"]))
    return {
        "image": str(Path(image.get("filepath", ""), image["filename"])),
        "captions": texts[: captions or None],
        "id": str(number),
        "filename": image["filename"],
        "sentids": [sentence.get("sentid") for sentence in image["sentences"]][: captions or None],
    }


def _names(image: dict[str, Any]) -> list[str]:
    """What an image may be called in a folder of regions: its number in COCO, or its file."""
    number = [str(image["cocoid"])] if "cocoid" in image else []
    return [*number, Path(image["filename"]).stem, image["filename"]]


def _folder_of(root: Path, first: str) -> Path:
    """The folder that image paths start from: that of the split file, or the one in that folder
    which has the first image, as Flickr30k's archive makes it."""
    inside = (each for each in sorted(root.iterdir()) if (each / first).is_file())
    return root if (root / first).is_file() else next(inside, root)


def _no_file(root: Path, paths: Sequence[str]) -> np.ndarray:
    """Which paths lead to no file: bool [n]. Each folder is listed once."""
    folders = {Path(path).parent for path in paths}
    found = {
        each / entry.name
        for each in folders
        if (root / each).is_dir()
        for entry in (root / each).iterdir()
    }
    return np.array([Path(path) not in found for path in paths], bool)


def _check(missing: np.ndarray, names: Sequence[str], where: str, skip: bool) -> None:
    """Raises a UserError where images are missing that may not be left out, or all of them."""
    if missing.any() and (not skip or missing.all()):
        raise UserError(
            f"{missing.sum():,} of {len(missing):,} images of the split are missing in {where}, "
            f"the first one is {names[int(missing.argmax())]}: complete the folder, or set "
            "skip_missing=True in the data to leave them out."
        )
