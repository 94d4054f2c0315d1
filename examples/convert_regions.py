"""Converts published features of image regions into files that `config.Karpathy` reads.

    python examples/convert_regions.py --data=FILE.tsv,FILE.tsv --out=FOLDER
    python examples/convert_regions.py --data=FOLDER --boxes=FOLDER --sizes=FILE,FILE --out=FOLDER

The first form reads bottom-up attention's TSV files, a line per image, without a header:
    image_id  image_w  image_h  num_boxes  boxes  features
where boxes (float32 [n, 4], x1 y1 x2 y2 in pixels) and features (float32 [n, F]) are base64.

The second form reads TERN's folders, a file per image of COCO, named by its id:
    cocobu_att/<id>.npz with "feat" [n, F], cocobu_box/<id>.npy [n, 4] in pixels
`--sizes` names COCO's files of captions or instances, which have the images' sizes.
"""

import argparse
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

CELLS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")


@dataclass(frozen=True)
class Regions:
    """Regions of one image.

    Attributes:
      features: float32 [R, F].
      boxes: float32 [R, 4], x1 y1 x2 y2 in pixels.
      size: width and height of the image in pixels.
      place: file and line, for messages.
    """

    id: str
    features: np.ndarray
    boxes: np.ndarray
    size: tuple[float, float]
    place: str

    def relative_boxes(self) -> np.ndarray:
        """Returns the boxes [R, 4] divided by the width and the height of the image.

        Raises:
          UserError: a value is not finite, or a box lies outside of the image.
        """
        if not np.isfinite(self.features).all() or not np.isfinite(self.boxes).all():
            raise UserError(f"{self.place} holds a number that is not finite.")
        if self.boxes.shape != (len(self.features), 4):
            shape = list(self.boxes.shape)
            raise UserError(f"{self.place} has boxes {shape} for {len(self.features)} regions.")
        width, height = self.size
        if min(width, height) <= 0:
            raise UserError(f"{self.place}: its image is {width} x {height} pixels.")
        boxes = self.boxes / np.array([width, height] * 2, np.float32)
        # Detectors give the last pixel or the edge after it, so a box may be one pixel too large.
        if boxes.min() < -1 / min(width, height) or boxes.max() > 1 + 1 / min(width, height):
            raise UserError(
                f"{self.place} has boxes outside of its image of {width} x {height} pixels."
            )
        return np.clip(boxes, 0, 1)


def tsv_regions(path: Path) -> Iterator[Regions]:
    """Yields the images of a TSV file of bottom-up attention."""
    check_regular(path)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            place, cells = f"{path}, line {number}", line.rstrip(b"\r\n").split(b"\t")
            if len(cells) != len(CELLS):
                raise UserError(
                    f"{place} has {len(cells)} cells instead of {', '.join(CELLS)}: the line is "
                    "cut short, or the file has another format."
                )
            try:
                width, height, count = (int(cell) for cell in cells[1:4])
            except ValueError:
                raise UserError(f"{place}: its sizes are not whole numbers.") from None
            boxes, features = (
                _decode(cell, count, f"{place}: its {name}")
                for name, cell in zip(CELLS[4:], cells[4:], strict=True)
            )
            image_id = cells[0].decode("utf-8", "replace")
            yield Regions(image_id, features, boxes, (width, height), place)


def _decode(cell: bytes, count: int, label: str) -> np.ndarray:
    """Returns float32 [count, n] of a cell in base64."""
    try:
        data = base64.b64decode(cell, validate=True)
    except binascii.Error as error:
        raise UserError(f"{label} are not base64 or cut short ({error}).") from None
    if count < 1 or not data or len(data) % (4 * count):
        raise UserError(
            f"{label} are {len(data):,} bytes, not a float32 array of {count} rows: the line is "
            "cut short or damaged."
        )
    return np.frombuffer(data, "<f4").reshape(count, -1)


def folder_regions(features: Path, boxes: Path, sizes: Sequence[Path]) -> Iterator[Regions]:
    """Yields the images of TERN's folders, ordered by their ids."""
    size_by_id: dict[str, tuple[float, float]] = {}
    for path in sizes:
        try:
            images = json.loads(read_text(path))["images"]
            size_by_id |= {str(x["id"]): (x["width"], x["height"]) for x in images}
        except (OSError, ValueError, KeyError, TypeError):
            raise UserError(
                f"{path} is not a file of COCO: it needs images with id, width and height."
            ) from None
    for path in sorted(features.glob("*.npz"), key=lambda file: (len(file.stem), file.stem)):
        if path.stem not in size_by_id:
            raise UserError(f"{path}: no file of --sizes has an image {path.stem}.")
        arrays = load_array(path, "feat"), load_array(boxes / f"{path.stem}.npy")
        yield Regions(path.stem, *arrays, size_by_id[path.stem], str(path))


def load_array(path: Path, key: str = "") -> np.ndarray:
    """Reads an .npy file, or an array of an .npz file, as float32."""
    try:
        check_regular(path)
        array: Any = read_npz(path)[key] if key else np.load(path, allow_pickle=False)
        return np.asarray(array, np.float32)
    except (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError) as error:
        raise UserError(f"{path} is missing or damaged ({error}).") from None


def write_folder(images: Iterable[Regions], folder: Path) -> tuple[int, int]:
    """Writes a folder of regions, the index last. Of several images with one id the first counts.

    Returns:
      Number of images, and number of repeated ids.
    """
    durable.make_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    ids: dict[str, None] = {}
    repeated = 0
    with contextlib.ExitStack() as stack:
        files: list[ArrayWriter] = []
        for image in images:
            if image.id in ids:
                repeated += 1
                continue
            arrays = image.features, image.relative_boxes()
            files = files or [
                stack.enter_context(_array_file(folder / name, array.shape))
                for name, array in zip((FEATURES, BOXES), arrays, strict=True)
            ]
            for file, array in zip(files, arrays, strict=True):
                if array.shape != file.shape:
                    raise UserError(
                        f"{image.place} has an array {list(array.shape)}, the first image "
                        f"{list(file.shape)}: all images need the same number of regions."
                    )
                file.append(array[None])
            ids[image.id] = None
    if not ids:
        raise UserError("there are no regions in --data. Name a TSV file or folder that has some.")
    durable.write_bytes(folder / INDEX, json.dumps({"ids": list(ids)}).encode())
    return len(ids), repeated


@contextlib.contextmanager
def _array_file(path: Path, shape: tuple[int, ...]) -> Iterator[ArrayWriter]:
    """Yields a writer of rows; the file gets its name after the last row."""
    partial = path.with_name(path.name + ".partial")
    try:
        with ArrayWriter(partial, "<f4", shape) as writer:
            yield writer
    except BaseException:
        partial.unlink()
        raise
    durable.publish(partial, path)


def main() -> None:
    """Reads the command line and writes the folder."""
    parser = argparse.ArgumentParser(usage=__doc__)
    for name in ("data", "boxes", "sizes", "out"):
        parser.add_argument(f"--{name}", default="", required=name in ("data", "out"))
    args = parser.parse_args()
    paths = [Path(name) for name in args.data.split(",")]
    try:
        if paths[0].is_dir():
            if not args.boxes or not args.sizes:
                raise UserError("--data=FOLDER needs --boxes=FOLDER and --sizes=FILE,FILE.")
            sizes = [Path(name) for name in args.sizes.split(",")]
            images = folder_regions(paths[0], Path(args.boxes), sizes)
        else:
            images = (image for path in paths for image in tsv_regions(path))
        count, repeated = write_folder(images, Path(args.out))
    except (UserError, FileNotFoundError) as error:
        parser.exit(2, f"{error}\n")
    if repeated:
        print(f"{repeated:,} images occur a second time, and were skipped")
    print(f"{count:,} images under {args.out}")
    print(f"to train on them: --config.data.type=karpathy --config.data.regions={args.out}")


if __name__ == "__main__":
    main()
