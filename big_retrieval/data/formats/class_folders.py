"""Images in one folder for each class, as ImageNet is unpacked."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, not_empty
from big_retrieval.data.formats.folders import IMAGES
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.data.sources import Record
from big_retrieval.errors import UserError


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
        """Returns the images, sorted by class and name.

        Raises:
          UserError: the folder is missing, or holds no images in folders.
        """
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
