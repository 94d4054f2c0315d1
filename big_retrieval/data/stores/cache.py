"""The folder of all stores: lists and deletes stores, by size, source files and last use."""

import atexit
import contextlib
import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from big_retrieval.data.stores.store import INFO
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.handles import stamp_of
from big_retrieval.runtime import locks

DAY = 24 * 3600.0  # seconds
UNUSED_DAYS = 30  # days without use after which a store is not needed
CHANGED_DAYS = 7  # for changed files: a run that began before the change may read the store
MIB = 2**20
NAME = re.compile(r".+-[0-9a-f]{20}(\.partial)?")  # of a store, as `ingest` names it


@dataclass(frozen=True)
class CachedStore:
    """A folder of the cache.

    Attributes:
      rows: number of rows; 0 if the folder is incomplete.
      used: time of the last use, in seconds since the epoch.
      reason: why it is not needed; empty if it may be needed.
    """

    folder: Path
    size: int
    rows: int
    damaged: int
    sources: tuple[str, ...]
    used: float
    reason: str


def stores_folder() -> Path:
    """Returns the folder of all stores: $BIG_RETRIEVAL_STORES, or one in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = os.environ.get("BIG_RETRIEVAL_STORES") or f"{cache}/big_retrieval/stores"
    folder = os.path.expanduser(path)  # unlike Path.expanduser, no error without a home
    return temporary_folder() if folder.startswith("~") else Path(folder).absolute()


@functools.cache
def temporary_folder() -> Path:
    """Returns a folder that is removed at the end of this process."""
    folder = tempfile.TemporaryDirectory(prefix="big_retrieval_stores_", ignore_cleanup_errors=True)
    atexit.register(folder.cleanup)
    return Path(folder.name)


def cached_stores(cache: Path) -> Iterator[CachedStore]:
    """Yields the stores and incomplete stores of a folder by name, and no other folders."""
    for folder in sorted(cache.iterdir() if cache.is_dir() else ()):
        if NAME.fullmatch(folder.name) and folder.is_dir():
            with contextlib.suppress(OSError):  # another process renames or deletes it
                yield _inspect(folder)


def _inspect(folder: Path) -> CachedStore:
    files = list(folder.iterdir())
    size = sum(path.stat().st_size for path in files)
    info_file = folder / INFO
    used = max(x.stat().st_mtime for x in ([info_file] if info_file in files else [folder, *files]))
    idle = time.time() - used
    try:
        info = json.loads(info_file.read_bytes())
        rows, damaged, sources = info["rows"], info["damaged"], info["files"]
    except (OSError, ValueError, KeyError):
        reason = "incomplete" if idle > DAY else ""
        return CachedStore(folder, size, 0, 0, (), used, reason)
    reason = f"not used for {UNUSED_DAYS} days" if idle > UNUSED_DAYS * DAY else ""
    if not reason and idle > CHANGED_DAYS * DAY:
        path = next((path for path, *stamp, _ in sources if _has_changed(path, stamp)), None)
        reason = f"{path} is gone or has changed" if path else ""
    return CachedStore(folder, size, rows, damaged, tuple(x[0] for x in sources), used, reason)


def _has_changed(path: str, stamp: list[int]) -> bool:
    try:
        return stamp_of(path) != tuple(stamp)
    except OSError:
        return True


def print_stores(cache: Path) -> None:
    """Prints all stores of a folder, and which of them `delete_stores` would delete."""
    stores = list(cached_stores(cache))
    print(f"{_count(stores)} in {cache}")
    if not stores:
        return
    print(f"{'MiB':>10} {'rows':>13} {'last use':>10}  files")
    for store in stores:
        day = time.strftime("%Y-%m-%d", time.localtime(store.used))
        more = f" (and {len(store.sources) - 1:,} more)" if len(store.sources) > 1 else ""
        line = store.sources[0] + more if store.sources else store.folder.name
        if store.damaged:
            line += f"; {store.damaged:,} damaged rows"
        if store.reason:
            line += f"; not needed: {store.reason}"
        print(f"{store.size / MIB:>10,.1f} {store.rows:>13,} {day:>10}  {line}")
    unneeded = _count([store for store in stores if store.reason])
    print(f"--delete deletes {unneeded} that are not needed; with --all, all")


def delete_stores(cache: Path, every: bool) -> None:
    """Deletes all stores, or only the ones that are not needed, and prints the result."""
    stores, deleted = list(cached_stores(cache)), list[CachedStore]()
    for store in stores:
        if every or store.reason:
            try:
                _delete(store)
                deleted.append(store)
            except UserError as error:
                print(f"kept: {error}")
    print(f"deleted {_count(deleted)} of {_count(stores)} in {cache}")


def _delete(store: CachedStore) -> None:
    """Deletes a store; raises a UserError if another process writes it."""
    folder = store.folder.with_name(store.folder.name.removesuffix(".partial"))
    with locks.Lock(locks.beside(folder), output=folder, flag="BIG_RETRIEVAL_STORES"):
        (store.folder / INFO).unlink(missing_ok=True)  # a folder without it is never opened
        durable.remove(store.folder)


def _count(stores: list[CachedStore]) -> str:
    size = sum(store.size for store in stores)
    return f"{len(stores):,} store{'' if len(stores) == 1 else 's'} ({size / MIB:,.1f} MiB)"
