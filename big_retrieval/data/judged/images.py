"""Images of documents: a column has paths, bytes or arrays, or keys of another file."""

import functools
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.formats.columns import Keys, as_text, check_ids, scan
from big_retrieval.data.formats.open_files import find_files, table_of
from big_retrieval.data.formats.records import load_image
from big_retrieval.data.formats.tables import Table, check_known
from big_retrieval.data.images.decoding import OneOf
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.errors import Damaged

if TYPE_CHECKING:
    from big_retrieval.data.judged.open_graded import Graded


class Gallery:
    """Images in the column `value` of a file, looked up by the unique keys in its column `key`."""

    def __init__(self, table: Table, key: str, value: str, root: Path):
        columns = scan(table, (key,))
        check_known(table.name, columns.columns, (key, value))
        keys = columns.texts[key]
        check_ids(keys, key, table.place, "every image needs a different key")
        self._table, self._value, self._root = table, value, root
        self._keys = Keys(keys)

    def load(self, key: Any, place: str) -> Any:
        """Returns an image, not decoded; raises `Damaged` for an unknown key."""
        row = self._keys.find(as_text(key) or "")
        if row is None:
            raise Damaged(place, f"{self._table.name} has no image {key!r:.80}")
        value = self._table.row(row, (self._value,)).get(self._value)
        return load_image(value, self._root, self._table.place(row))


class ImageColumn:
    """Loads the images of a column.

    Args:
      root: folder that paths start from. If a file does not exist, its name is also looked up in
        the folder `images` of this folder.
      gallery: images by key; None if cells contain paths or images.
    """

    def __init__(self, column: str, root: Path = Path(), gallery: Gallery | None = None):
        self.column, self._root, self._gallery = column, root.absolute(), gallery

    def image_of(self, row: Record, place: str) -> Any:
        """Returns the image of a row: `Encoded`, an array, `OneOf` several, or None."""
        cell = row.get(self.column)
        if is_absent(cell):
            return None
        images = _images(cell, self._gallery is not None)
        if len(images) == 1:
            return self._load(images[0], place)
        return OneOf(len(images), lambda index: self._load(images[index], place))

    def _load(self, value: Any, place: str) -> Any:
        if self._gallery is not None:
            return self._gallery.load(value, place)
        if isinstance(value, str) and not (self._root / value).is_file():
            # Files may contain the image paths of the machine that wrote them.
            moved = self._root / "images" / PurePosixPath(value).name
            value = str(moved) if moved.is_file() else value
        return load_image(value, self._root, place)


def _images(cell: Any, has_keys: bool) -> list[Any]:
    """Returns the images of a cell with a value; a list of numbers is pixels, or several keys."""
    if isinstance(cell, np.ndarray) and (has_keys or cell.dtype.kind in "US"):
        cell = cell.tolist()
    if not isinstance(cell, list | tuple):
        return [cell]
    values = [value for value in cell if not is_absent(value)]
    return values if has_keys or isinstance(values[0], str | bytes | Mapping) else [cell]


def place_of_images(config: "Graded") -> str:
    """Returns the file that has the images, or their paths or keys."""
    return config.images or config.documents or config.path


def images_of(config: "Graded") -> ImageColumn | None:
    """Returns the images of the documents; None without an image column."""
    if not config.image:
        return None
    path = place_of_images(config)
    root = Path(config.root) if config.root else find_files(path, config.how_to_get)[0].parent
    if not config.images:
        return ImageColumn(config.image, root)
    value = "" if config.root else config.image_value
    table = table_of(find_files(config.images, config.how_to_get), image=value)[0]
    gallery = _gallery(table, config.image_key, config.image_value, root)
    return ImageColumn(config.image, root, gallery)


@functools.lru_cache(maxsize=4)
def _gallery(table: Table, key: str, value: str, root: Path) -> Gallery:
    return Gallery(table, key, value, root)
