"""Images with several captions each: Karpathy's split files, and what VSRN and SCAN publish."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.config.data import Karpathy, Precomputed
from big_retrieval.data.fields.stores import open_store
from big_retrieval.data.formats.open_files import files_of
from big_retrieval.data.formats.records import EachCaption, Records
from big_retrieval.data.formats.regions import WithRegions, find_rows
from big_retrieval.data.formats.tables import Rows, Table
from big_retrieval.data.formats.views import View
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.errors import UserError
from big_retrieval.io.regular import read_text

log = logging.getLogger(__name__)


def karpathy(config: Karpathy) -> RecordSource:
    """Flickr30k or COCO with their Karpathy splits; see `Karpathy`.

    Raises:
      UserError: the file is missing or another one, or has no image of the split; images or their
        regions are missing.
    """
    path = files_of(config.path, config.how_to_get)[0]
    wanted = set(config.split.split("+"))
    try:
        images = json.loads(read_text(path))["images"]
        splits = sorted({image["split"] for image in images})
        chosen = [image for image in images if image["split"] in wanted]
        rows = [_row(image, config.captions) for image in chosen]
        names = [_names(image) for image in chosen]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path} is no Karpathy split file: it needs images with filename, split, sentences."
        ) from None
    if not rows or not wanted <= set(splits):
        raise UserError(f"{path} has no split {config.split!r}; it has {', '.join(splits)}.")
    if "train" in wanted and "restval" in set(splits) - wanted:
        log.warning(
            f"{path} has a split restval, on which published models are trained, too: "
            "split='train+restval' reads both"
        )
    reads_images = bool(config.images) or not config.regions
    root, missing = Path(config.images or path.parent), np.zeros(len(rows), bool)
    if reads_images:
        root = root if config.images else _folder_of(root, rows[0]["image"])
        missing |= _no_file(root, [row["image"] for row in rows])
        _check(missing, [row["image"] for row in rows], str(root), config.skip_missing)
    else:
        rows = [{key: row[key] for key in row if key != "image"} for row in rows]
    table: Table = Rows(rows, f"{path.stem}-{config.split}")
    if config.regions:
        at, files = find_rows(Path(config.regions), names)
        _check(at < 0, [x[0] for x in names], config.regions, config.skip_missing)
        table, missing = WithRegions(table, at, files), missing | (at < 0)
    if missing.any():
        log.warning(f"{path}: {missing.sum():,} of {len(rows):,} images are missing and left out")
        table = View(table, np.flatnonzero(~missing))
    records = Records(table, image=("image",) if reads_images else (), root=root)
    return EachCaption(records) if config.each == "captions" else records


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


def precomputed(config: Precomputed) -> RecordSource:
    """Regions and captions as VSRN and SCAN publish them; see `Precomputed`.

    Raises:
      UserError: a file is missing or damaged, or the numbers of rows and captions do not fit.
    """
    folder, count = files_of(config.path, config.how_to_get)[0], config.captions
    images, texts = folder / f"{config.split}_ims.npy", folder / f"{config.split}_caps.txt"
    try:
        lines = [line.strip() for line in read_text(texts).rstrip("\n").split("\n")]
    except (OSError, UnicodeDecodeError) as problem:
        raise UserError(f"the captions {texts} cannot be read ({problem}).") from None
    store, length = open_store(str(images), again=True), len(lines) // count
    if len(lines) % count or len(store) not in (length, len(lines)):
        raise UserError(
            f"{images} has {len(store):,} rows for {len(lines):,} captions of {texts}: wanted is a "
            f"row for each caption, or one for each {count} of them (`captions` of the data)."
        )
    rows = [
        {"captions": lines[n * count : (n + 1) * count], "id": f"{config.split}-{n}"}
        for n in range(length)
    ]
    at = np.arange(length, dtype=np.int64) * (len(store) // length)
    table = WithRegions(Rows(rows, f"{folder.name}-{config.split}"), at, {"regions": str(images)})
    records = Records(table, image=())
    return EachCaption(records) if config.each == "captions" else records
