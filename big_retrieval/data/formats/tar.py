"""Tar shards in the layout of WebDataset and img2dataset, read by index.

A sample is a run of members with one name but for the ending: 000012.jpg, 000012.txt, 000012.json.
Each shard is walked through once; where its members lie goes into an index file beside it (or in
another folder), so that a run starts at once and reads any sample with one seek. The index holds a
digest of every member's header, and each read compares: a shard that was exchanged for one of the
same size and time would else give parts of other members.
"""

import contextlib
import hashlib
import io
import json
import logging
import secrets
import tarfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import Record, evenly_spaced
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.durable import publish
from big_retrieval.io.handles import RandomAccessFile, stamp_of
from big_retrieval.io.npy import read_npz

log = logging.getLogger(__name__)
VERSION = 2  # of the index files
BLOCK = 512  # bytes of a header, which stands directly before a member's content
PROBED = 3  # members whose headers are compared when an index is opened
MAX_MEMBER = 256 * 2**20  # bytes; no image is larger, and a damaged header may say anything


class TarShard(Table):
    """The samples of one tar file.

    A row has the content of each member under its ending as bytes (`txt` and `cls` as str), the
    name of the sample as `__key__`, and the keys of its JSON member as `json:<key>`.

    Args:
      path: the shard; not compressed.
      index: folder of the index file; None: the shard's own. Where it cannot be written, the index
        is kept in memory.

    Raises:
      UserError: no tar file, a compressed one, or nothing in it.
    """

    def __init__(self, path: Path, index: Path | None = None):
        self._path, self.name = path.absolute(), path.stem
        stored = _index_file(self._path, index)
        self._index = stored
        self._file = RandomAccessFile(self._path)
        found = _read_index(stored, self._path)
        if found is not None and not _fits(self._path, found["members"]):
            log.warning(
                f"{stored} is the index of another {self._path.name}: the shard is walked again"
            )
            found = None
        if found is None:
            found, complete = _walk(self._path)
            if not complete:
                log.warning(
                    f"{self._path} is cut short: its first {len(found['keys']):,} samples are used"
                )
            _write_index(stored, self._path, found)
        self._members, self._keys, self._endings = (
            found["members"],
            found["keys"],
            found["endings"].tolist(),
        )
        if not len(self._keys):
            raise UserError(f"{self._path} has no sample; fetch the shard again or leave it out.")
        self._starts = np.searchsorted(self._members[:, 0], np.arange(len(self._keys) + 1))

    def __len__(self) -> int:
        return len(self._keys)

    def place(self, index: int) -> str:
        """The shard and the sample's name."""
        return f"{self._path}, sample {self._keys[index]}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The members of a sample."""
        row: Record = {"__key__": str(self._keys[index])}
        mine = self._members[self._starts[index] : self._starts[index + 1]]
        for _, ending, start, length, digest in mine.tolist():
            name = self._endings[ending]
            if columns is None or name in columns or (name == "json" and _asks_json(columns)):
                content = self._file.read(start - BLOCK, start + length)
                if _digest(content[:BLOCK]) != digest:
                    why = f"the shard is another one than when {self._index} was made; delete that"
                    raise Damaged(self.place(index), why)
                self._add(row, name, content[BLOCK:], index)
        return row

    def _add(self, row: Record, name: str, data: bytes, index: int) -> None:
        if name in ("txt", "cls"):
            row[name] = data.decode("utf-8", "replace").strip()
        elif name == "json":
            try:
                values = json.loads(data)
            except ValueError as problem:
                raise Damaged(self.place(index), f"its JSON is not JSON ({problem})") from None
            if isinstance(values, dict):
                row |= {f"json:{key}": value for key, value in values.items()}
        else:
            row[name] = data


def _asks_json(columns: Collection[str]) -> bool:
    return any(column.startswith("json:") for column in columns)


def _walk(path: Path) -> tuple[dict[str, np.ndarray], bool]:
    """Where every member lies, and whether the shard ends as it should.

    Returns:
      keys [n], endings [e], members int64 [m, 5]: sample, ending, start and length in bytes, and
      a digest of the header.
    """
    size, complete = path.stat().st_size, True
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[int, int, int, int, int]] = []
    file = RandomAccessFile(path)
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                folder, _, name = member.name.rpartition("/")
                stem, dot, ending = name.partition(".")
                if not member.isfile() or not dot or not stem or member.size > MAX_MEMBER:
                    continue
                if member.offset_data + member.size > size:
                    complete = False
                    break
                key = f"{folder}/{stem}" if folder else stem
                if not keys or keys[-1] != key:
                    keys.append(key)
                number = endings.setdefault(ending.lower(), len(endings))
                start = member.offset_data
                digest = _digest(file.read(start - BLOCK, start))
                members.append((len(keys) - 1, number, start, member.size, digest))
            end = file.read(shard.offset, shard.offset + BLOCK)
            complete = complete and end == bytes(BLOCK)  # the mark of the end
    except tarfile.ReadError as problem:
        if not keys:
            raise UserError(
                f"{path} is no plain tar file ({problem}); unpack compressed shards first."
            ) from None
        complete = False
    if not complete:  # the last sample may lack members
        members = [member for member in members if member[0] != len(keys) - 1]
        keys = keys[:-1]
    found = {
        "keys": np.array(keys, str),
        "endings": np.array(list(endings), str),
        "members": np.array(members, np.int64).reshape(-1, 5),
    }
    return found, complete


def _digest(header: bytes) -> int:
    """64 bits of a header: the member's name, size, time and owner."""
    return int.from_bytes(hashlib.blake2b(header, digest_size=8).digest(), "little", signed=True)


def _fits(path: Path, members: np.ndarray) -> bool:
    """Whether some of the members, the first and the last among them, stand where they should."""
    if members.ndim != 2 or members.shape[1] != 5:
        return False
    file = RandomAccessFile(path)
    return all(
        _digest(file.read(start - BLOCK, start)) == digest
        for _, _, start, _, digest in members[evenly_spaced(len(members), PROBED)].tolist()
    )


def _index_file(path: Path, folder: Path | None) -> Path:
    return (path.parent if folder is None else folder) / f"{path.name}.index.npz"


def _stamp(path: Path) -> np.ndarray:
    """What tells whether an index file is of this shard as it is now."""
    return np.array([VERSION, *stamp_of(path)], np.int64)


def _read_index(stored: Path, path: Path) -> dict[str, np.ndarray] | None:
    """The index file's arrays, or None where there is none, or one of another shard."""
    try:
        file = read_npz(stored)
        if not np.array_equal(file["stamp"], _stamp(path)):
            return None
        return {name: file[name] for name in ("keys", "endings", "members")}
    except (UserError, KeyError):  # cut short, or of anything else: the shard is walked again
        return None


def _write_index(stored: Path, path: Path, found: dict[str, np.ndarray]) -> None:
    out = io.BytesIO()
    np.savez(out, stamp=_stamp(path), **found)  # type: ignore[arg-type]
    # Processes of several hosts may walk the same shard: each one writes a file of its own.
    partial = stored.with_name(f"{stored.name}.{secrets.token_hex(8)}.partial")
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(out.getvalue())
        publish(partial, stored)
    except OSError:  # a full disk, or a folder that may only be read; the next start walks again
        with contextlib.suppress(OSError):
            partial.unlink()
