"""Reads files into a store, once.

    <stores>/<name>-<key>/store.json        written last; a folder without it is never opened
                          00000-00000.arrow  parts: lane, and part of the lane
    <stores>/<name>-<key>.partial/           of a process that is at work, or was killed

The key is a digest of the format, its options and the files' paths, sizes and times of change.
Files that were touched are read again, and give a store of the same fingerprint. A lane is a run of
files; a process that was killed continues after its last complete lane.
"""

import contextlib
import functools
import gc
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from big_retrieval.data.stores.blocks import Reader, RowBlock, check_names
from big_retrieval.data.stores.cache import stores_folder, temporary_folder
from big_retrieval.data.stores.store import INFO, Store
from big_retrieval.data.stores.writer import PART_BYTES, PART_ROWS, write_info, write_part
from big_retrieval.errors import UserError
from big_retrieval.io import durable
from big_retrieval.io.handles import END_BYTES, ends_digest, stamp_of
from big_retrieval.io.space import lacks_space, no_space
from big_retrieval.runtime import locks
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm

VERSION = 4  # raise it when a reader gives other rows for the same file
LANE_BYTES = 2**28  # a lane ends with the file that reaches this size
MOST_BYTES = 2**30  # of a part, except one block; offsets of texts have 32 bits
ANNOUNCED = 50 * 2**20  # bytes above which reading is worth a message
MOST_NOTES = 5  # that are printed
MOST_SAMPLED = 2**26  # bytes of the ends of all files that each open reads,
LEAST_END = 2**12  # unless this is more, of each end
MIB = 2**20

log = logging.getLogger(__name__)
File = tuple[str, int, int, str]  # path, bytes, time of change in ns, `ends_digest`


def open_store(paths: Sequence[Path], reader: Reader) -> Store:
    """Opens the store of some files, which are read now if they have none.

    Raises:
      UserError: a file is not of the format, changes while it is read, or no row can be read.
    """
    size = max(LEAST_END, min(END_BYTES, MOST_SAMPLED // 2 // len(paths)))
    files = [(str(path.absolute()), *stamp_of(path), ends_digest(path, size)) for path in paths]
    folder = stores_folder() / f"{paths[0].stem[:40]}-{_key(files, reader)}"
    if not _is_store(folder):
        folder = _made(folder, files, reader)
    with contextlib.suppress(OSError):  # of another user
        os.utime(folder / INFO)  # the time of the last use
    store = Store(folder)
    for note in store.notes[:MOST_NOTES]:
        _warn(note)
    if len(store.notes) > MOST_NOTES:
        _warn(f"{folder / INFO} has {len(store.notes) - MOST_NOTES:,} more notes on its files")
    if store.damaged:
        first = store.first_damaged()
        _warn(f"{store.damaged:,} of {len(store):,} rows cannot be read, the first: {first}")
    return store


def _is_store(folder: Path) -> bool:
    return os.path.isfile(folder / INFO)  # False, too, in a folder of another user


def _key(files: Sequence[File], reader: Reader) -> str:
    """Returns the key of a store, 20 hexadecimal digits."""
    content = [VERSION, reader.read.__name__, dict(reader.options), files]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _made(folder: Path, files: Sequence[File], reader: Reader) -> Path:
    """Reads the files into the folder, or into a temporary one if it cannot be written."""
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder.parent, os.W_OK):
            raise PermissionError
    except OSError:
        _warn(
            f"{folder.parent} cannot be written: files are read into {temporary_folder()}, for "
            "this run only. Set BIG_RETRIEVAL_STORES to a folder that keeps them."
        )
        folder = temporary_folder() / folder.name
    owner = locks.Lock(
        locks.beside(folder), of=folder, flag="BIG_RETRIEVAL_STORES", wait=True, look=0.2
    )
    with owner:
        if not _is_store(folder):  # another process may have read them meanwhile
            _ingest(folder, files, reader)
    return folder


def _ingest(folder: Path, files: Sequence[File], reader: Reader) -> None:
    """Reads the files and gives the folder its name."""
    partial = folder.with_name(f"{folder.name}.partial")
    size = sum(reader.size_of(Path(file[0])) if reader.size_of else file[1] for file in files)
    copied = sum(path.stat().st_size for path in partial.glob("*.arrow"))
    _check_space(partial, size * reader.copied_share - copied)
    partial.mkdir(exist_ok=True)
    if size > ANNOUNCED:
        log.info(f"reading {size / MIB:,.0f} MiB into {folder}, which later runs open at once")
    try:
        with (
            progress_bar("bytes", size, shown=size > ANNOUNCED) as progress,
            _no_garbage_collection(),
        ):
            lanes = [
                _lane(partial, number, lane, files, reader, progress)
                for number, lane in enumerate(_lanes(files))
            ]
        for path, *stamp, _ in files:
            if tuple(stamp) != stamp_of(path):
                shutil.rmtree(partial)
                raise UserError(f"{path} was changed while it was read. Run the command again.")
        _finish(folder, partial, files, reader, lanes)
    except OSError as error:
        if lacks_space(error):
            raise no_space(error, partial) from error
        raise


def _check_space(folder: Path, size: float) -> None:
    """Raises a UserError if the disk of a new folder has less free space than a number of bytes."""
    free = shutil.disk_usage(folder.parent).free
    if free < size:
        raise UserError(
            f"{folder.parent} has {free / MIB:,.1f} MiB of free space, not {size / MIB:,.1f} MiB. "
            "Set BIG_RETRIEVAL_STORES to a folder on a larger disk."
        )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Returns a context for making many objects without cycles: looking for some doubles the time.

    Objects are still freed when nothing refers to them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _lanes(files: Sequence[File]) -> Iterator[list[int]]:
    """Yields indices of files, at least `LANE_BYTES` together except in the last lane."""
    lane, size = [], 0
    for index, file in enumerate(files):
        lane.append(index)
        size += file[1]
        if size >= LANE_BYTES:
            yield lane
            lane, size = [], 0
    if lane:
        yield lane


def _lane(
    folder: Path,
    number: int,
    lane: Sequence[int],
    files: Sequence[File],
    reader: Reader,
    progress: "tqdm[Any]",
) -> dict[str, Any]:
    """Writes the parts of a lane; returns the results of `write_part`, and notes."""
    mark = folder / f"{number:05d}.json"
    with contextlib.suppress(OSError, ValueError):
        return json.loads(mark.read_bytes())
    parts, notes = list[dict[str, Any]](), list[str]()
    for blocks in _parts(lane, files, reader, progress, notes):
        path = folder / f"{number:05d}-{len(parts):05d}.arrow"
        names = {name for _, block in blocks for name in block.columns.keys() - block.types.keys()}
        check_names(names, files[blocks[0][0]][0])
        held = sum(block.bytes_held for _, block in blocks)  # Parquet unpacks to any size
        _check_space(folder, held * reader.copied_share)
        parts.append(write_part(path, blocks, reader.unit))
        locks.check()
    found = {"parts": parts, "notes": notes}
    durable.write_bytes(mark, json.dumps(found).encode())
    return found


def _parts(
    lane: Sequence[int],
    files: Sequence[File],
    reader: Reader,
    progress: "tqdm[Any]",
    notes: list[str],
) -> Iterator[list[tuple[int, RowBlock]]]:
    """Yields the blocks of each part with the indices of their files; adds to `notes`.

    Arrow arrays of one column have the same type in all blocks of a part.
    """
    blocks: list[tuple[int, RowBlock]] = []
    rows = size = 0
    for index in lane:
        empty = True
        for block in reader.blocks(Path(files[index][0])):
            empty &= not block.places
            notes.extend(block.notes)
            large = size + block.bytes_held > MOST_BYTES
            if rows and (large or block.types != blocks[-1][1].types):
                yield blocks
                blocks, rows, size = [], 0, 0
            blocks.append((index, block))
            rows, size = rows + len(block.places), size + block.bytes_held
            progress.update(block.size)
            if rows >= PART_ROWS or size >= PART_BYTES:
                yield blocks
                blocks, rows, size = [], 0, 0
        if empty and len(files) > 1:
            notes.append(f"{files[index][0]} has no rows")
    if rows:
        yield blocks


def _finish(
    folder: Path,
    partial: Path,
    files: Sequence[File],
    reader: Reader,
    lanes: Sequence[dict[str, Any]],
) -> None:
    """Writes store.json and gives the folder its name."""
    locks.check()
    parts = [part for lane in lanes for part in lane["parts"]]
    rows, damaged = (sum(part[key] for part in parts) for key in ("rows", "damaged"))
    if rows == damaged:
        first = next((f": {part['first']}" for part in parts if part["first"]), "")
        shutil.rmtree(partial)
        if first:
            raise UserError(f"{files[0][0]}: none of {rows:,} rows can be read{first}.")
        raise UserError(f"{files[0][0]} has no rows; give a file with at least one record.")
    write_info(
        partial,
        parts,
        version=VERSION,
        name=Path(files[0][0]).stem if len(files) == 1 else Path(files[0][0]).parent.name,
        reader=reader.read.__name__,
        unit=reader.unit,
        key=reader.key,
        files=files,
        notes=[note for lane in lanes for note in lane.get("notes", ())],
    )
    durable.remove(folder)  # a store whose deletion was interrupted
    durable.replace(partial, folder)
    for mark in folder.glob("[0-9]*.json"):
        mark.unlink()


@functools.lru_cache(maxsize=1024)
def _warn(text: str) -> None:
    """Logs a warning once in a process."""
    log.warning(text)
