"""A folder is written under a temporary name, `<folder>.partial`, until it is complete.

`begin` makes that folder, and `give_name` gives it its own name.
"""

from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.io import durable, manifest
from big_retrieval.runtime import locks

MARK = ".building"  # in a folder that may be removed: a build began there


def check_free(folder: Path) -> None:
    """Raises a UserError where there is something that is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder} exists and is not empty; give a new folder.")


def begin(folder: Path, *known: str) -> Path:
    """Makes the empty folder to write to until `give_name`.

    Args:
      folder: the one to be written.
      *known: files by which an interrupted build is known, too, if it had no mark any more.

    Raises:
      UserError: the folder, or the one to write to, exists already.
    """
    check_free(folder)
    target = folder.resolve()  # a link to an empty folder stays a link
    partial = target.with_name(target.name + ".partial")
    if any((partial / name).exists() for name in (MARK, *known)):
        durable.remove(partial)  # of a build that was interrupted
    if partial.exists():
        raise UserError(f"{partial} exists and is needed to build --out {folder}; remove it.")
    durable.make_folder(partial.parent)
    partial.mkdir()
    (partial / MARK).touch()
    return partial


def give_name(partial: Path, folder: Path, *, listed: bool = False) -> None:
    """Syncs all files and gives the folder its name.

    Args:
      partial: what `begin` gave.
      folder: what `begin` was given.
      listed: with a manifest of all files.

    Raises:
      UserError: the folder has another owner by now.
    """
    (partial / MARK).unlink()  # before the manifest, which would list it
    if listed:
        manifest.write_manifest(partial)
    else:
        durable.sync_tree(partial)
    locks.check()
    target = folder.resolve()
    if target.exists():
        target.rmdir()  # empty, as `begin` saw
    durable.replace(partial, target)
