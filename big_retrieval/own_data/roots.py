"""Where image paths of a table start from: its folder, or one of images near it."""

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from big_retrieval.data.formats.folders import IMAGES
from big_retrieval.data.formats.tables import Table
from big_retrieval.data.formats.views import InFolder
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.errors import Damaged, UserError
from big_retrieval.own_data.splits import split_word

SAMPLED = 100  # rows
PEEKED = 20  # rows that tell which columns are there, and which of them are of images
LONGEST = 1024  # characters that a path has at most
IMAGE_FOLDERS = ("images", "image", "imgs", "img", "pictures", "photos", "jpg", "png", "files")
IMAGE_FOLDERS += ("dataset",)
MOST_FOLDERS = 50  # beside or below a table that are looked into for its images


def looks_like_path(value: str) -> bool:
    """Whether a text is the name of an image file."""
    return len(value) <= LONGEST and "\n" not in value and Path(value).suffix.lower() in IMAGES


def root_of(table: Table, column: str, folder: Path, split: str) -> Path:
    """The folder that the image paths of a column start from; arguments as those of `look`."""
    values = []
    for index in evenly_spaced(len(table), SAMPLED).tolist():
        with contextlib.suppress(Damaged, UserError):
            values.append(table.row(index, (column,)).get(column))
    return folder_of_images(values, folder, split)


def folder_of_images(values: Iterable[Any], folder: Path, split: str) -> Path:
    """The folder from which most of the paths lead to a file: that of the table, or one near it."""
    paths = [value for value in values if isinstance(value, str) and looks_like_path(value)][:30]
    if not paths:
        return folder
    below = _folders(folder)
    inside = [each for place in below if _is_of_images(place) for each in _folders(place)]
    near = [folder, folder.parent, *below, *inside, *filter(_is_of_images, _folders(folder.parent))]

    def fits(place: Path) -> tuple[int, bool]:
        hits = sum(os.path.isfile(place / path) for path in paths)
        return hits, split_word(place.name) == split and place != folder

    best = max(near, key=fits)  # the first of those alike
    return best if fits(best)[0] > fits(folder)[0] else folder


def _is_of_images(folder: Path) -> bool:
    """Whether the name of a folder says that it is of images, or of a split."""
    words = re.split(r"[^a-z]+", folder.name.lower())
    return bool(split_word(folder.name)) or not set(words).isdisjoint(IMAGE_FOLDERS)


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_dir())[:MOST_FOLDERS]
    except OSError:
        return []


def with_images(file: Path, table: Table, several: bool) -> Table:
    """The rows of one file of several, with whole paths of images where each file has its own.

    Args:
      file: the table's.
      table: its rows.
      several: whether the files lie in several folders, so that images are looked for near each;
        else only a folder of the file's name counts (shirts.csv and shirts/1.png).
    """
    own, rows = file.with_suffix(""), []
    looked = several or own.is_dir()
    for index in evenly_spaced(len(table), PEEKED).tolist() if looked else ():
        with contextlib.suppress(Damaged):
            rows.append({x: y for x, y in table.row(index).items() if isinstance(y, str)})

    def leads(root: Path, name: str) -> bool:
        return any(name in row and os.path.isfile(root / row[name]) for row in rows)

    for name in {name for row in rows for name, value in row.items() if looks_like_path(value)}:
        root = root_of(table, name, file.parent, "")
        if root != file.parent and leads(own, name):
            root = own
        if (several or root == own) and leads(root, name):
            table = InFolder(table, root, (name,))
    return table
