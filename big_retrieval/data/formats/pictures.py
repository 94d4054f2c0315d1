"""Folders of pictures: captions in text files of the same name, or one folder per class."""

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
RUN_FILE = "metrics.jsonl"  # marks a run folder, whose pictures are not data
CAPTIONS = (".txt", ".caption", ".json")
KEYS = ("captions", "caption", "text")  # of the JSON file of a picture
MOST_CAPTION = 2**16  # bytes of a text file that are read


def is_folder_of_shards(folder: Path) -> bool:
    """Returns True if a folder contains shards of `convert`, which may be incomplete."""
    return any(folder.glob("part-*.array_record*"))


def walk(folder: Path, leave_out: Path | None = None) -> list[Path]:
    """Returns all files below a folder in order, except hidden files and run folders."""
    paths = []
    for root, folders, names in os.walk(folder):
        parent = Path(root)
        if RUN_FILE in names or (leave_out is not None and parent == leave_out.absolute()):
            folders[:] = []
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        paths += [parent / name for name in sorted(names) if not name.startswith(".")]
    return paths


def open_pictures(folder: Path) -> Rows:
    """Returns a row for each picture below a folder.

    The columns are `image` (path from the folder that contains `folder`), `captions`, `name`,
    `folder`, and `id` (path in `folder`). The captions of a picture are the lines of its text file.
    The text file has the same name and is next to the picture, or in a folder whose path has the
    same end (images/a/cat.jpg, texts/a/cat.txt). Without text files, rows have no `captions`.
    """
    root = folder.absolute()
    files = walk(root)
    images = [file for file in files if file.suffix.lower() in IMAGES]
    if not images:
        raise UserError(
            f"{folder} is a folder without array_record shards and without pictures. Give files "
            "(.csv, .tsv, .jsonl, .parquet, .npz, .tar), a folder of pictures, or a folder of "
            "`big-retrieval data convert`."
        )
    texts = [file for file in files if file.suffix.lower() in CAPTIONS]
    neighbors = {file.with_suffix(""): file for file in reversed(texts)}
    for file in texts:  # cat.jpg.txt comes before cat.txt
        if file.with_suffix("").suffix.lower() in IMAGES:
            neighbors[file.with_suffix("").with_suffix("")] = file
    by_name: dict[str, list[Path]] = {}
    for file in texts:
        by_name.setdefault(file.stem, []).append(file)
    rows: list[dict[str, Any]] = []
    for image in images:
        text = neighbors.get(image.with_suffix("")) or _distant_text(image, by_name)
        path = image.relative_to(root).as_posix()
        rows.append(
            {
                "image": f"{root.name}/{path}",
                "captions": read_captions(text) if text else [],
                "name": " ".join(image.stem.replace("_", " ").replace("-", " ").split()),
                "folder": " ".join(image.parent.name.replace("_", " ").split()),
                "id": path,
            }
        )
    if not any(row["captions"] for row in rows):
        for row in rows:
            del row["captions"]
    return Rows(rows, folder.name)


def _distant_text(image: Path, by_name: Mapping[str, list[Path]]) -> Path | None:
    """Returns the text file with the name of a picture, or None.

    Of several files, it is the one whose folder path has the longest common end, if that is unique.
    """
    files = by_name.get(image.stem, [])
    if len(files) < 2:
        return files[0] if files else None

    def shared(file: Path) -> int:
        pairs = zip(reversed(image.parent.parts), reversed(file.parent.parts), strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), 0)

    best = max(files, key=shared)
    return best if shared(best) and sum(shared(x) == shared(best) for x in files) == 1 else None


def read_captions(file: Path) -> list[str]:
    """Returns the nonempty lines of a text file, or the texts of one of `KEYS` in a JSON file.

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
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(entries, dict):
        return []
    value = next((entries[key] for key in KEYS if key in entries), "")
    values = value if isinstance(value, list) else [value]
    return [text.strip() for text in values if isinstance(text, str) and text.strip()]


@register("source")
@dataclass(frozen=True)
class ClassFolders(Source):
    """Images in one folder per class: `<path>/<class>/<image>.jpg`, without deeper folders.

    The column `label` is the folder name: the name or id of a class, or an int if all names are
    numbers.
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["class_folders"] = "class_folders"
    path: str = ""  # folder that contains the class folders, such as data/imagenet/val
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with a folder for each class")

    def build(self) -> Records:
        folder = Path(self.path).expanduser()
        hint = f": {self.how_to_get}" if self.how_to_get else ""
        if not folder.is_dir():
            raise UserError(f"{folder} must be a folder with a folder for each class{hint}.")
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
            raise UserError(
                f"{folder} has no images in folders, such as <class>/<image>.jpg{hint}."
            )
        return Records(Rows(rows, folder.name), text="", root=folder)
