"""Records the syncs, renames and removals of some code, in order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Call = tuple[str, Path]  # "sync", "rename" (the new name) or "remove", and the path


@contextmanager
def disk_calls() -> Iterator[list[Call]]:
    """Records every fsync, rename and unlink of this process, from all threads."""
    calls: list[Call] = []
    fsync, unlink = os.fsync, os.unlink

    def record_sync(handle: int) -> None:
        fsync(handle)
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{handle}"))))

    def record_rename(original: Any) -> Any:
        def rename(old: Any, new: Any, **more: Any) -> None:
            original(old, new, **more)
            calls.append(("rename", Path(new)))

        return rename

    def record_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        parent = Path() if dir_fd is None else Path(os.readlink(f"/proc/self/fd/{dir_fd}"))
        unlink(path, dir_fd=dir_fd)
        calls.append(("remove", parent / path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", record_sync)
        patch.setattr(os, "replace", record_rename(os.replace))
        patch.setattr(os, "rename", record_rename(os.rename))
        patch.setattr(os, "unlink", record_unlink)
        yield calls


def synced_before(calls: list[Call], place: int) -> set[Path]:
    """The paths that were synced before the call number `place`."""
    return {path for kind, path in calls[:place] if kind == "sync"}
