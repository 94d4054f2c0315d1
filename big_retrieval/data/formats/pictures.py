"""Folders of pictures, with captions in text files of the same name, or one folder per class."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, not_empty
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif", ".ppm")
RUN_FILE = "metrics.jsonl"  # a folder with it is a run, whose pictures are no data
CAPTIONS = (".txt", ".caption", ".json")
KEYS = ("captions", "caption", "text")  # of a JSON file beside a picture
MOST_CAPTION = 2**16  # bytes of a text file; longer ones are no captions


def is_folder_of_shards(folder: Path) -> bool:
    """Returns True if `convert` has written shards into a folder, or begun to.

    A file called dataset.json alone may be a Karpathy split file.
    """
    return any(folder.glob("part-*.array_record*"))


def walk(folder: Path, leave_out: Path | None = None) -> list[Path]:
    """All files below a folder in order, without hidden ones and without those of runs."""
    out = []
    for place, folders, names in os.walk(folder):
        here = Path(place)
        if RUN_FILE in names or (leave_out is not None and here == leave_out.absolute()):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        out += [here / name for name in sorted(names) if not name.startswith(".")]
    return out


def open_pictures(folder: Path) -> Rows:
    """Returns a row for each picture below a folder.

    The columns are `image` (path from the folder that contains `folder`), `captions`, `name`,
    `folder`, and `id` (path in `folder`). The captions of a picture are the lines of the text file
    of its name, next to it or else in another folder whose path ends alike (images/a/cat.jpg,
    texts/a/cat.txt). Without any caption, rows lack this column.

    Raises:
      UserError: the folder has no picture.
    """
    whole = folder.absolute()
    files = walk(whole)
    images = [file for file in files if file.suffix.lower() in IMAGES]
    if not images:
        raise UserError(
            f"{folder} is a folder without array_record shards and without pictures; give "
            "files (.csv, .tsv, .jsonl, .parquet, .npz, .tar), a folder of pictures, or one that "
            "`big-retrieval data convert` made."
        )
    texts = [file for file in files if file.suffix.lower() in CAPTIONS]
    beside = {file.with_suffix(""): file for file in reversed(texts)}
    beside |= {file.with_suffix("").with_suffix(""): file for file in texts if _double(file)}
    by_name: dict[str, list[Path]] = {}
    for file in texts:
        by_name.setdefault(file.stem, []).append(file)
    rows: list[dict[str, Any]] = []
    for image in images:
        own = beside.get(image.with_suffix("")) or _elsewhere(image, by_name)
        path = image.relative_to(whole).as_posix()
        rows.append(
            {
                "image": f"{whole.name}/{path}",
                "captions": read_captions(own) if own else [],
                "name": " ".join(image.stem.replace("_", " ").replace("-", " ").split()),
                "folder": " ".join(image.parent.name.replace("_", " ").split()),
                "id": path,
            }
        )
    if not any(row["captions"] for row in rows):
        for row in rows:
            del row["captions"]
    return Rows(rows, folder.name)


def _double(file: Path) -> bool:
    """Whether a text file is named after the whole name of a picture, such as cat.jpg.txt."""
    return file.with_suffix("").suffix.lower() in IMAGES


def _elsewhere(image: Path, by_name: Mapping[str, list[Path]]) -> Path | None:
    """The only text file of the picture's name, or that whose folders are the same from below."""
    found = by_name.get(image.stem, [])
    if len(found) < 2:
        return found[0] if found else None

    def shared(file: Path) -> int:
        pairs = zip(reversed(image.parent.parts), reversed(file.parent.parts), strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)

    best = max(found, key=shared)
    return best if shared(best) and sum(shared(x) == shared(best) for x in found) == 1 else None


def read_captions(file: Path) -> list[str]:
    """The lines of a text file that are not empty, or what a JSON file has under one of `KEYS`.

    Files are UTF-8, else Windows-1252.
    """
    with file.open("rb") as opened:
        data = opened.read(MOST_CAPTION)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("cp1252", "replace")
    if file.suffix == ".json":
        return _of_json(text)
    return [line.strip() for line in text.splitlines() if line.strip()]


def _of_json(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    value = next((found[key] for key in KEYS if key in found), "") if type(found) is dict else ""
    several = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    return [each.strip() for each in several if isinstance(each, str) and each.strip()]


@register("source")
@dataclass(frozen=True)
class ClassFolders(Source):
    """Images in one folder for each class: `<path>/<class>/<image>.jpg`, nothing deeper.

    Records have the column `label`, the name of the folder: a name or id of a class, or its number
    if the names of all folders are numbers, such as 0, 1, ...
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["class_folders"] = "class_folders"
    path: str = ""  # the folder of the classes' folders, such as data/imagenet/val
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with a folder for each class")

    def build(self) -> Records:
        folder = Path(self.path).expanduser()
        how = f": {self.how_to_get}" if self.how_to_get else ""
        if not folder.is_dir():
            raise UserError(f"{folder} is no folder; it must hold a folder for each class{how}.")
        rows: list[Record] = [
            {"image": str(file.relative_to(folder)), "label": inside.name}
            for inside in sorted(folder.iterdir())
            if inside.is_dir()
            for file in sorted(inside.iterdir())
            if file.suffix.lower() in IMAGES
        ]
        if all(row["label"].isdecimal() for row in rows):
            rows = [{**row, "label": int(row["label"])} for row in rows]
        if not rows:
            raise UserError(f"{folder} has no images in folders, such as <class>/<image>.jpg{how}.")
        return Records(Rows(rows, folder.name), text="", root=folder)
