"""Reads files into a store, once.

    <stores>/<name>-<key>/store.json        written last; a folder without it is never opened
                          00000-00000.arrow  parts: lane, and part of the lane
    <stores>/<name>-<key>.partial/           of a running or killed process

The key is a digest of `VERSION`, the format, its options, and each file's path, size, modification
time, and first and last bytes. Files with a new modification time are read again, into a store with
the same fingerprint if their rows are equal. A lane is a group of consecutive files. A killed
process is resumed after the last complete lane.
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
from typing import Any

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

VERSION = 4  # increase it when a reader returns other rows for the same file
LANE_BYTES = 2**28  # a lane ends with the file that reaches this size
MOST_BYTES = 2**30  # maximum size of a part of several blocks; offsets of texts have 32 bits
ANNOUNCED = 50 * 2**20  # a log line and a progress bar above this number of bytes
MOST_NOTES = 5  # notes that are printed
MOST_SAMPLED = 2**26  # maximum bytes that `ends_digest` reads of all files of a store
LEAST_END = 2**12  # minimum bytes per end of a file, even if the sum exceeds the maximum
MIB = 2**20

log = logging.getLogger(__name__)
File = tuple[str, int, int, str]  # path, bytes, modification time in ns, `ends_digest`


def open_store(paths: Sequence[Path], reader: Reader) -> Store:
    """Opens the store of some files; reads the files first if needed.

    Raises:
      UserError: a file has another format, changes while it is read, or no row can be read.
    """
    size = max(LEAST_END, min(END_BYTES, MOST_SAMPLED // 2 // len(paths)))
    files = [(str(path.absolute()), *stamp_of(path), ends_digest(path, size)) for path in paths]
    folder = stores_folder() / f"{paths[0].stem[:40]}-{_key(files, reader)}"
    if not _is_store(folder):
        folder = _make_store(folder, files, reader)
    with contextlib.suppress(OSError):  # the store belongs to another user
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
    return os.path.isfile(folder / INFO)  # also False if the folder is not readable


def _key(files: Sequence[File], reader: Reader) -> str:
    content = [VERSION, reader.read.__name__, dict(reader.options), files]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:20]


def _make_store(folder: Path, files: Sequence[File], reader: Reader) -> Path:
    """Reads the files into the folder, or into a temporary one if it is not writable."""
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
        locks.beside(folder), output=folder, flag="BIG_RETRIEVAL_STORES", wait=True, look=0.2
    )
    with owner:
        if not _is_store(folder):  # another process may have read the files meanwhile
            _Ingestion(folder, files, reader).run()
    return folder


class _Ingestion:
    """Reads files into the parts of a store."""

    def __init__(self, folder: Path, files: Sequence[File], reader: Reader):
        self._folder, self._files, self._reader = folder, files, reader
        self._partial = folder.with_name(f"{folder.name}.partial")
        self._progress: Any = None

    def run(self) -> None:
        """Writes the parts, then gives the folder its name."""
        reader, partial = self._reader, self._partial
        sizes = (reader.size_of(Path(x[0])) if reader.size_of else x[1] for x in self._files)
        size = sum(sizes)
        copied = sum(path.stat().st_size for path in partial.glob("*.arrow"))
        self._check_space(size * reader.copied_share - copied)
        partial.mkdir(exist_ok=True)
        shown = size > ANNOUNCED
        if shown:
            log.info(f"reading {size / MIB:,.0f} MiB into {self._folder}; later runs reuse it")
        try:
            with progress_bar("bytes", size, shown=shown) as self._progress, _no_collection():
                lanes = [self._lane(*item) for item in enumerate(self._lanes())]
            for path, *stamp, _ in self._files:
                if tuple(stamp) != stamp_of(path):
                    shutil.rmtree(partial)
                    raise UserError(f"{path} was changed while it was read. Run the command again.")
            self._finish(lanes)
        except OSError as error:
            if lacks_space(error):
                raise no_space(error, partial) from error
            raise

    def _check_space(self, size: float) -> None:
        """Raises a UserError if the disk has less free space than a number of bytes."""
        parent = self._folder.parent
        free = shutil.disk_usage(parent).free
        if free < size:
            raise UserError(
                f"{parent} has {free / MIB:,.1f} MiB of free space, not {size / MIB:,.1f} MiB. "
                "Set BIG_RETRIEVAL_STORES to a folder on a larger disk."
            )

    def _lanes(self) -> Iterator[list[int]]:
        """Yields indices of files, at least `LANE_BYTES` together except in the last lane."""
        lane, size = [], 0
        for index, file in enumerate(self._files):
            lane.append(index)
            size += file[1]
            if size >= LANE_BYTES:
                yield lane
                lane, size = [], 0
        if lane:
            yield lane

    def _lane(self, lane_index: int, lane: Sequence[int]) -> dict[str, Any]:
        """Writes the parts of a lane; returns the results of `write_part`, and notes."""
        mark = self._partial / f"{lane_index:05d}.json"
        with contextlib.suppress(OSError, ValueError):
            return json.loads(mark.read_bytes())
        parts, notes = list[dict[str, Any]](), list[str]()
        for blocks in self._parts(lane, notes):
            path = self._partial / f"{lane_index:05d}-{len(parts):05d}.arrow"
            names = {name for _, x in blocks for name in x.columns.keys() - x.types.keys()}
            check_names(names, self._files[blocks[0][0]][0])
            size = sum(block.bytes_held for _, block in blocks)  # Parquet unpacks to any size
            self._check_space(size * self._reader.copied_share)
            parts.append(write_part(path, blocks, self._reader.unit))
            locks.check()
        result = {"parts": parts, "notes": notes}
        durable.write_bytes(mark, json.dumps(result).encode())
        return result

    def _parts(self, lane: Sequence[int], notes: list[str]) -> Iterator[list[tuple[int, RowBlock]]]:
        """Yields the blocks of each part with the indices of their files; adds to `notes`.

        Arrow arrays of one column have the same type in all blocks of a part.
        """
        blocks: list[tuple[int, RowBlock]] = []
        rows = size = 0
        for index in lane:
            empty = True
            for block in self._reader.blocks(Path(self._files[index][0])):
                empty &= not block.places
                notes.extend(block.notes)
                is_large = size + block.bytes_held > MOST_BYTES
                if rows and (is_large or block.types != blocks[-1][1].types):
                    yield blocks
                    blocks, rows, size = [], 0, 0
                blocks.append((index, block))
                rows, size = rows + len(block.places), size + block.bytes_held
                self._progress.update(block.size)
                if rows >= PART_ROWS or size >= PART_BYTES:
                    yield blocks
                    blocks, rows, size = [], 0, 0
            if empty and len(self._files) > 1:
                notes.append(f"{self._files[index][0]} has no rows")
        if rows:
            yield blocks

    def _finish(self, lanes: Sequence[dict[str, Any]]) -> None:
        locks.check()
        file, partial = Path(self._files[0][0]), self._partial
        parts = [part for lane in lanes for part in lane["parts"]]
        rows, damaged = (sum(part[key] for part in parts) for key in ("rows", "damaged"))
        if rows == damaged:
            shutil.rmtree(partial)
            first = next((f": {part['first']}" for part in parts if part["first"]), "")
            if first:
                raise UserError(f"{file}: none of {rows:,} rows can be read{first}.")
            raise UserError(f"{file} has no rows; give a file with at least one record.")
        write_info(
            partial,
            parts,
            version=VERSION,
            name=file.stem if len(self._files) == 1 else file.parent.name,
            reader=self._reader.read.__name__,
            unit=self._reader.unit,
            key=self._reader.key,
            files=self._files,
            notes=[note for lane in lanes for note in lane["notes"]],
        )
        durable.remove(self._folder)  # a store whose deletion was interrupted
        durable.replace(partial, self._folder)
        for mark in self._folder.glob("[0-9]*.json"):
            mark.unlink()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disables the cyclic garbage collector, which would double the time of reading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@functools.lru_cache(maxsize=1024)
def _warn(text: str) -> None:
    """Logs a warning once per process."""
    log.warning(text)
