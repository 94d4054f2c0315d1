"""Files, folders and renames that survive a power loss.

After a power loss, a file that was not synced (`fsync`) may be missing, empty or cut short, even
if a file that was written later is complete. The content of a file and the names in a folder are
synced separately; a rename changes the folders of both names. File systems that cannot sync a
folder (network mounts, Windows) are accepted. A file that cannot be synced is always an error.
"""

import contextlib
import errno
import os
import shutil
from pathlib import Path

# Errors of file systems that cannot sync folders at all; EIO and ENOSPC are never among them.
_UNSUPPORTED = {errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EISDIR}


def write_bytes(path: Path, data: bytes) -> None:
    """Writes a file that has the old or the new content after a power loss.

    Raises:
      OSError: the file cannot be written or synced; an old file is unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        replace(partial, path)
    except OSError as error:  # the disk may be full: remove the incomplete file
        with contextlib.suppress(OSError):
            partial.unlink()
        error.filename = error.filename or os.fspath(path)  # `write` does not set it
        raise


def replace(old: Path, new: Path) -> None:
    """Renames a file or a folder, over a file of the new name, and syncs the folders of both names.

    The content is not synced: call `sync_file` or `sync_tree` before.
    """
    os.replace(old, new)
    sync_folder(new.parent)
    if old.parent != new.parent:
        sync_folder(old.parent)


def publish(partial: Path, path: Path) -> None:
    """Renames a finished file: syncs the content, then renames, then syncs the folder."""
    sync_file(partial)
    replace(partial, path)


def sync_file(path: Path) -> None:
    """Syncs the content of a file."""
    # Windows syncs only files that are open for writing; elsewhere a read-only file can be synced.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Syncs the names in a folder, if the file system can do that."""
    if os.name == "nt":
        return
    try:
        handle = os.open(folder, os.O_RDONLY)  # which needs the right to list the folder
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


def sync_tree(folder: Path) -> None:
    """Syncs every file and every folder below `folder`, from the leaves up, then `folder` itself.

    Links are names in their folder; their targets are not synced.
    """
    for parent, _, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            if path.is_file() and not path.is_symlink():
                sync_file(path)
        sync_folder(Path(parent))


def remove(path: Path) -> None:
    """Removes a file, a folder with its content, or a link (not its target), if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # which follows no link inside of the folder
    else:
        path.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, and syncs each one into its parent."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for missing_folder in reversed(missing):
        missing_folder.mkdir(exist_ok=True)
        sync_folder(missing_folder.parent)


def free_name(path: Path, suffix: str) -> Path:
    """Returns a name next to a file or folder that does not exist: `path.suffix`, then with +."""
    free = path.with_name(f"{path.name}.{suffix}")
    while free.exists():
        free = free.with_name(f"{free.name}+")
    return free
