"""Images with several captions each: Karpathy's split files, and the files of VSRN and SCAN."""

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
from big_retrieval.data.formats.open_files import find_files
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
    """Flickr30k or COCO: a Karpathy split file, and a folder of images, of regions, or both.

    With `regions`, records have the columns `regions` [R, F] and `boxes` [R, 4] (`RegionField`).
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["karpathy"] = "karpathy"
    path: str = ""  # dataset_flickr30k.json or dataset_coco.json
    # folder of images; empty for the file's folder or a folder in it, or for no images if `regions`
    images: str = ""
    regions: str = ""  # folder that `examples/convert_regions.py` wrote; empty for no regions
    split: str = "train"  # or several, such as "train+restval", the usual training data of COCO
    captions: int = 5  # maximum number of captions per image; 0 for all
    each: Each = "images"
    skip_missing: bool = False  # skips missing images instead of an error
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "split file")

    def build(self) -> RecordSource:
        path = find_files(self.path, self.how_to_get)[0]
        requested = set(self.split.split("+"))
        try:
            images = json.loads(read_text(path))["images"]
            splits = sorted({image["split"] for image in images})
            images = [image for image in images if image["split"] in requested]
            rows = [_row(image, self.captions) for image in images]
            names = [_region_names(image) for image in images]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"{path} is not a Karpathy split file: it needs images with filename, split and "
                "sentences."
            ) from None
        if not rows or not requested <= set(splits):
            raise UserError(f"{path} has no split {self.split!r}; it has {', '.join(splits)}.")
        if "train" in requested and "restval" in set(splits) - requested:
            log.warning(
                f"{path} also has the split restval, which published models train on: "
                "split='train+restval' reads both"
            )
        reads_images = bool(self.images) or not self.regions
        root, missing = Path(self.images or path.parent), np.zeros(len(rows), bool)
        if reads_images:
            paths = [row["image"] for row in rows]
            root = root if self.images else _find_root(root, paths[0])
            missing |= _is_missing(root, paths)
            _check(missing, paths, str(root), self.skip_missing)
        else:
            for row in rows:
                del row["image"]
        table: Table = Rows(rows, f"{path.stem}-{self.split}")
        if self.regions:
            region_rows, files = find_rows(Path(self.regions), names)
            _check(region_rows < 0, [x[0] for x in names], self.regions, self.skip_missing)
            table, missing = WithRegions(table, region_rows, files), missing | (region_rows < 0)
        if missing.any():
            log.warning(f"{path}: skips {missing.sum():,} of {len(rows):,} images: missing")
            table = View(table, np.flatnonzero(~missing))
        records = Records(table, image=("image",) if reads_images else (), root=root)
        return EachCaption(records) if self.each == "captions" else records


@register("source")
@dataclass(frozen=True)
class Precomputed(Source):
    """Regions and captions in the files of VSRN and SCAN.

    For each split, the folder contains `<split>_ims.npy` [images or captions, R, F] and
    `<split>_caps.txt`, a caption per line, ordered by image. Records have the columns `captions`
    and `regions` (`RegionField`), without boxes.
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["precomputed"] = "precomputed"
    path: str = ""  # folder, such as f30k_precomp
    split: str = "train"  # or dev, test, testall
    captions: AtLeast1 = 5  # number of captions per image
    each: Each = "images"
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with <split>_ims.npy and <split>_caps.txt")

    def build(self) -> RecordSource:
        folder, count = find_files(self.path, self.how_to_get)[0], self.captions
        images, texts = folder / f"{self.split}_ims.npy", folder / f"{self.split}_caps.txt"
        try:
            captions = [line.strip() for line in read_text(texts).rstrip("\n").split("\n")]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"Cannot read the captions {texts} ({error}).") from None
        store, length = open_store(str(images), again=True), len(captions) // count
        if len(captions) % count or len(store) not in (length, len(captions)):
            raise UserError(
                f"{images} has {len(store):,} rows for {len(captions):,} captions of {texts}: it "
                f"needs a row per caption, or a row per {count} captions (`captions` of the data)."
            )
        rows = [
            {"captions": captions[n * count : (n + 1) * count], "id": f"{self.split}-{n}"}
            for n in range(length)
        ]
        region_rows = np.arange(length, dtype=np.int64) * (len(store) // length)
        table: Table = Rows(rows, f"{folder.name}-{self.split}")
        records = Records(WithRegions(table, region_rows, {"regions": str(images)}), image=())
        return EachCaption(records) if self.each == "captions" else records


def _row(image: dict[str, Any], captions: int) -> Record:
    texts = [sentence["raw"] for sentence in image["sentences"]]
    image_id = image.get("cocoid", image.get("imgid", image["filename"]))
    return {
        "image": str(Path(image.get("filepath", ""), image["filename"])),
        "captions": texts[: captions or None],
        "id": str(image_id),
        "filename": image["filename"],
        "sentids": [sentence.get("sentid") for sentence in image["sentences"]][: captions or None],
    }


def _region_names(image: dict[str, Any]) -> list[str]:
    """Returns possible names of an image in a folder of regions: its id in COCO, or its file."""
    ids = [str(image["cocoid"])] if "cocoid" in image else []
    return [*ids, Path(image["filename"]).stem, image["filename"]]


def _find_root(root: Path, first: str) -> Path:
    """Returns the split file's folder, or the folder in it that contains the first image."""
    if (root / first).is_file():
        return root
    return next((path for path in sorted(root.iterdir()) if (path / first).is_file()), root)


def _is_missing(root: Path, paths: Sequence[str]) -> np.ndarray:
    """Returns True for paths without a file, bool [n]; lists each folder once."""
    folders = {Path(path).parent for path in paths}
    files = {
        folder / entry.name
        for folder in folders
        if (root / folder).is_dir()
        for entry in (root / folder).iterdir()
    }
    return np.array([Path(path) not in files for path in paths], bool)


def _check(missing: np.ndarray, names: Sequence[str], where: str, skip: bool) -> None:
    """Raises a UserError if images are missing that may not be skipped, or if all are missing."""
    if missing.any() and (not skip or missing.all()):
        raise UserError(
            f"{missing.sum():,} of {len(missing):,} images of the split are missing in {where}, "
            f"the first one is {names[int(missing.argmax())]}: complete the folder, or set "
            "skip_missing=True in the data to leave them out."
        )
