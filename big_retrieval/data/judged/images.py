"""The images of documents: paths, bytes or arrays of a column, or keys into another file."""

import functools
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.formats.columns import Keys, as_text, check_ids, scan
from big_retrieval.data.formats.open_files import files_of, table_of
from big_retrieval.data.formats.records import load_image
from big_retrieval.data.formats.tables import Table, check_known
from big_retrieval.data.images.decoding import OneOf
from big_retrieval.data.sources import Record, is_absent
from big_retrieval.errors import Damaged

if TYPE_CHECKING:
    from big_retrieval.data.judged.open_graded import Graded


class Gallery:
    """Images of a file by their keys.

    Args:
      key: its column of keys.
      value: its column of images.

    Raises:
      UserError: it lacks a column, a row has no key, or two rows have the same.
    """

    def __init__(self, table: Table, key: str, value: str, root: Path):
        found = scan(table, (key,))
        check_known(table.name, found.columns, (key, value))
        keys = found.texts[key]
        check_ids(keys, key, table.place, "every image needs a key of its own")
        self._table, self._value, self._root = table, value, root
        self._keys = Keys(keys)

    def load(self, key: Any, place: str) -> Any:
        """An image, not decoded: `Encoded` or an array.

        Raises:
          Damaged: no image has this key, or the image cannot be read.
        """
        row = self._keys.find(as_text(key) or "")
        if row is None:
            raise Damaged(place, f"there is no image {key!r:.80} in {self._table.name}")
        value = self._table.row(row, (self._value,)).get(self._value)
        return load_image(value, self._root, self._table.place(row))


class ImageColumn:
    """Loads the images that the cells of a column name or hold.

    Args:
      root: the folder that paths start from; an image that is not there may lie in its folder
        `images`.
      gallery: has the images if cells hold keys; None: cells hold paths or images.
    """

    def __init__(self, column: str, root: Path = Path(), gallery: Gallery | None = None):
        self.column, self._root, self._gallery = column, root.absolute(), gallery

    def of(self, row: Record, place: str) -> Any:
        """The image of a row, not decoded: `Encoded`, an array, `OneOf` several; None without one.

        Raises:
          Damaged: the image cannot be read.
        """
        cell = row.get(self.column)
        if is_absent(cell):
            return None
        several = _several(cell, self._gallery is not None)
        if len(several) == 1:
            return self._load(several[0], place)
        return OneOf(len(several), lambda number: self._load(several[number], place))

    def _load(self, value: Any, place: str) -> Any:
        if self._gallery is not None:
            return self._gallery.load(value, place)
        if isinstance(value, str) and not (self._root / value).is_file():
            # Files name images by the paths of the machine that they were written on.
            moved = self._root / "images" / PurePosixPath(value).name
            value = str(moved) if moved.is_file() else value
        return load_image(value, self._root, place)


def _several(cell: Any, keys: bool) -> list[Any]:
    """The images of a cell that is not empty; a list of numbers is pixels, or several keys."""
    if isinstance(cell, np.ndarray) and (keys or cell.dtype.kind in "US"):
        cell = cell.tolist()
    if not isinstance(cell, list | tuple):
        return [cell]
    found = [each for each in cell if not is_absent(each)]
    return found if keys or isinstance(found[0], str | bytes | Mapping) else [cell]


def place_of_images(config: "Graded") -> str:
    """Returns the file that has the images, or the paths or keys of images."""
    return config.images or config.documents or config.path


def images_of(config: "Graded") -> ImageColumn | None:
    """Returns the images of the documents; None without an image column."""
    if not config.image:
        return None
    where = place_of_images(config)
    root = Path(config.root) if config.root else files_of(where, config.how_to_get)[0].parent
    if not config.images:
        return ImageColumn(config.image, root)
    value = "" if config.root else config.image_value
    table = table_of(files_of(config.images, config.how_to_get), image=value)[0]
    gallery = _gallery(table, config.image_key, config.image_value, root)
    return ImageColumn(config.image, root, gallery)


@functools.lru_cache(maxsize=4)
def _gallery(table: Table, key: str, value: str, root: Path) -> Gallery:
    return Gallery(table, key, value, root)
