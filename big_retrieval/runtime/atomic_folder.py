"""Folders that are built as `<folder>.partial` and renamed when they are complete."""

from pathlib import Path

from big_retrieval.errors import UserError
from big_retrieval.io import durable, manifest
from big_retrieval.runtime import locks

MARK = ".building"  # marks an unfinished folder, which may be removed


def check_free(folder: Path) -> None:
    """Raises a UserError if `folder` exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder} exists and is not empty. Choose a new folder.")


def begin(folder: Path, *names: str) -> Path:
    """Creates and returns the temporary folder, and removes one of an interrupted build.

    Args:
      *names: files that identify an interrupted build without `MARK`.
    """
    check_free(folder)
    target = folder.resolve()  # a link to an empty folder stays a link
    partial = target.with_name(target.name + ".partial")
    if any((partial / name).exists() for name in (MARK, *names)):
        durable.remove(partial)
    if partial.exists():
        raise UserError(f"{partial} exists and is needed to build --out {folder}. Remove it.")
    durable.make_folder(partial.parent)
    partial.mkdir()
    (partial / MARK).touch()
    return partial


def give_name(partial: Path, folder: Path, *, listed: bool = False) -> None:
    """Syncs all files, with `listed` also writes a manifest, and renames the folder."""
    (partial / MARK).unlink()  # before the manifest, which would list it
    if listed:
        manifest.write_manifest(partial)
    else:
        durable.sync_tree(partial)
    locks.check()
    target = folder.resolve()
    if target.exists():
        target.rmdir()  # it is empty
    durable.replace(partial, target)
