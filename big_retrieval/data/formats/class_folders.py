"""Images in one folder for each class."""

from pathlib import Path

from big_retrieval.config.class_folders import ClassFolders
from big_retrieval.data.formats.records import Records
from big_retrieval.data.formats.tables import Rows
from big_retrieval.errors import UserError

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")  # capitals, too


def class_folders(config: ClassFolders) -> Records:
    """The images, sorted by class and name; see `ClassFolders`.

    Raises:
      UserError: the folder is missing, or holds no images in folders.
    """
    folder = Path(config.path).expanduser()
    how = f": {config.how_to_get}" if config.how_to_get else ""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; it must hold a folder for each class{how}.")
    rows = [
        {"image": str(file.relative_to(folder)), "label": _label(inside.name)}
        for inside in sorted(folder.iterdir())
        if inside.is_dir()
        for file in sorted(inside.iterdir())
        if file.suffix.lower() in ENDINGS
    ]
    if not rows:
        raise UserError(f"{folder} has no images in folders, such as <class>/<image>.jpg{how}.")
    return Records(Rows(rows, folder.name), text="", root=folder)


def _label(name: str) -> str | int:
    """A folder's name, as a number where it is one."""
    return int(name) if name.isdecimal() else name
