"""A source of images in one folder for each class, as ImageNet is unpacked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, not_empty

if TYPE_CHECKING:
    from big_retrieval.data.sources import RecordSource


@register("source")
@dataclass(frozen=True)
class ClassFolders(Source):
    """Images in one folder for each class: `<path>/<class>/<image>.jpg`, nothing deeper.

    Records have the column `label`, the name of the folder: a name or id of a class, or, where the
    folders are called 0, 1, ..., its number.
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["class_folders"] = "class_folders"
    path: str = ""  # the folder of the classes' folders, such as data/imagenet/val
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with a folder for each class")

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import class_folders

        return class_folders.class_folders(self)
