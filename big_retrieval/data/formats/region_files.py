"""Published files of regions, and how they become a folder of memory-mapped ones (regions.py).

Bottom-up attention's TSV, a line for each image, without a header:
    image_id  image_w  image_h  num_boxes  boxes  features
where boxes (float32 [n, 4], x1 y1 x2 y2 in pixels) and features (float32 [n, F]) are base64.

TERN's folders, a file for each image of COCO, named by its number:
    cocobu_att/<id>.npz with "feat" [n, F], cocobu_box/<id>.npy [n, 4] in pixels
with the images' sizes in COCO's files of captions or instances.
"""

import base64
import binascii
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from big_retrieval.data.formats.regions import BOXES, FEATURES, INDEX
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.npy import ArrayWriter, read_npz
from big_retrieval.io.regular import check_regular, read_text
from big_retrieval.runtime.progress import progress_bar

CELLS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")


@dataclass(frozen=True)
class Regions:
    """The regions of one image.

    Attributes:
      id: of the image.
      features: float32 [R, F].
      boxes: float32 [R, 4], x1 y1 x2 y2 in pixels.
      size: width and height of the image.
      place: where they stand, for messages.
    """

    id: str
    features: np.ndarray
    boxes: np.ndarray
    size: tuple[float, float]
    place: str


def tsv_regions(path: Path) -> Iterator[Regions]:
    """The images of a TSV file of bottom-up attention.

    Raises:
      UserError: the file cannot be read, or a line is another; it names the line.
    """
    check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place, cells = f"{path}, line {number}", line.rstrip(b"\r\n").split(b"\t")
            if len(cells) != len(CELLS):
                raise UserError(
                    f"{place} has {len(cells)} cells instead of {', '.join(CELLS)}: the line is "
                    "cut short, or the file is another one."
                )
            try:
                width, height, count = (int(cell) for cell in cells[1:4])
            except ValueError:
                raise UserError(f"{place}: its sizes are no whole numbers.") from None
            arrays = [
                _decoded(cell, count, f"{place}: its {name}")
                for name, cell in zip(CELLS[4:], cells[4:], strict=True)
            ]
            name = cells[0].decode("utf-8", "replace")
            yield Regions(name, arrays[1], arrays[0], (width, height), place)


def _decoded(cell: bytes, count: int, what: str) -> np.ndarray:
    """float32 [count, n] of a cell in base64.

    Raises:
      UserError: it is cut short, or something else.
    """
    try:
        data = base64.b64decode(cell, validate=True)
    except binascii.Error as problem:
        raise UserError(f"{what} are no base64 or cut short ({problem}).") from None
    if count < 1 or not data or len(data) % (4 * count):
        raise UserError(
            f"{what} are {len(data):,} bytes, which is no float32 array of {count} rows: the line "
            "is cut short or damaged."
        )
    return np.frombuffer(data, "<f4").reshape(count, -1)


def folder_regions(features: Path, boxes: Path, sizes: Sequence[Path]) -> Iterator[Regions]:
    """The images of TERN's folders, in the order of their numbers.

    Args:
      features: the folder of <id>.npz.
      boxes: the folder of <id>.npy.
      sizes: COCO's files with the width and height of each image.

    Raises:
      UserError: a file is missing or damaged, or an image has no size.
    """
    known: dict[str, tuple[float, float]] = {}
    for path in sizes:
        try:
            images = json.loads(read_text(path))["images"]
            known |= {str(each["id"]): (each["width"], each["height"]) for each in images}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{path} is no file of COCO: it needs images with id, width and height."
            ) from None
    for path in sorted(features.glob("*.npz"), key=lambda each: (len(each.stem), each.stem)):
        if path.stem not in known:
            raise UserError(f"{path}: no file of --sizes has an image {path.stem}.")
        found = _loaded(path, "feat"), _loaded(boxes / f"{path.stem}.npy")
        yield Regions(path.stem, *found, known[path.stem], str(path))


def _loaded(path: Path, key: str = "") -> np.ndarray:
    try:
        check_regular(path)
        found: Any = read_npz(path)[key] if key else np.load(path, allow_pickle=False)
        return np.asarray(found, np.float32)
    except (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError) as problem:
        raise UserError(f"{path} is missing or damaged ({problem}).") from None


def write_folder(found: Iterable[Regions], folder: Path, about: int) -> tuple[int, int]:
    """Writes a folder of regions, as `regions.find_rows` reads it; the index comes last.

    Args:
      found: the images. Of several with one id the first one counts.
      folder: which is made.
      about: how many images there may be, for the display of progress.

    Returns:
      How many images were written, and how many had an id for the second time.

    Raises:
      UserError: no image, one of another shape than the first one, or with values that are not
        finite or boxes outside of the image; it names the image's place.
    """
    durable.make_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    ids: dict[str, None] = {}
    again, progress = 0, progress_bar("images", about)
    with contextlib.ExitStack() as stack:
        files: list[ArrayWriter] = []
        for each in found:
            if each.id in ids:
                again += 1
                continue
            boxes = _relative(each)
            if not files:
                files += [
                    stack.enter_context(_published(folder / name, array))
                    for name, array in ((FEATURES, each.features), (BOXES, boxes))
                ]
            _append(files[0], each.features, "features", each.place)
            _append(files[1], boxes, "boxes", each.place)
            ids[each.id] = None
            progress.update(1)
    progress.close()
    if not ids:
        raise UserError("there are no regions in --data: name a TSV file or folder that has some.")
    durable.write_bytes(folder / INDEX, json.dumps({"ids": list(ids)}).encode())
    return len(ids), again


def _relative(regions: Regions) -> np.ndarray:
    """Boxes [R, 4] divided by the width and the height of the image.

    Raises:
      UserError: values that are not finite, or boxes outside of the image.
    """
    if not np.isfinite(regions.features).all() or not np.isfinite(regions.boxes).all():
        raise UserError(f"{regions.place} holds a number that is not finite.")
    if regions.boxes.shape != (len(regions.features), 4):
        raise UserError(
            f"{regions.place} has boxes {list(regions.boxes.shape)} for {len(regions.features)} "
            "regions."
        )
    width, height = regions.size
    if min(width, height) <= 0:
        raise UserError(f"{regions.place}: its image is {width} x {height} pixels.")
    found = regions.boxes / np.array([width, height] * 2, np.float32)
    # Detectors give the last pixel or the edge behind it, so that a box may be a pixel too large.
    if found.min() < -1 / min(width, height) or found.max() > 1 + 1 / min(width, height):
        raise UserError(
            f"{regions.place} has boxes outside of its image of {width} x {height} pixels."
        )
    return np.clip(found, 0, 1)


@contextlib.contextmanager
def _published(path: Path, first: np.ndarray) -> Iterator[ArrayWriter]:
    """A file of rows of the shape of `first`, which gets its name when all are there."""
    partial = path.with_name(path.name + ".partial")
    try:
        with ArrayWriter(partial, "<f4", first.shape) as writer:
            yield writer
    except BaseException:
        partial.unlink()
        raise
    durable.publish(partial, path)


def _append(file: ArrayWriter, row: np.ndarray, what: str, place: str) -> None:
    """Writes a row.

    Raises:
      UserError: it has another shape than the first one.
    """
    if row.shape != file.shape:
        raise UserError(
            f"{place} has {list(row.shape)} numbers for {what}, but the first image has "
            f"{list(file.shape)}: all images need as many regions."
        )
    file.append(row[None])
