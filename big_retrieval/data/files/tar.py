"""Tar shards in the layout of WebDataset and img2dataset, read by index.

A sample is a run of members with one name but for the ending: 000012.jpg, 000012.txt, 000012.json.
Each shard is walked through once; where its members lie goes into an index file beside it (or in
another folder), so that a run starts at once and reads any sample with one seek.
"""

import io
import json
import tarfile
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from big_retrieval.data.files.plain import Parts
from big_retrieval.data.sources import Record
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io.durable import write_bytes

VERSION = 1  # of the index files
MAX_MEMBER = 256 * 2**20  # bytes; no image is larger, and a damaged header may say anything


class TarShard:
    """The samples of one tar file.

    A row has the content of each member under its ending as bytes (`txt` and `cls` as str), the
    name of the sample as `__key__`, and the keys of its JSON member as `json:<key>`.

    Args:
      path: the shard; not compressed.
      index: folder of the index file; None: the shard's own. Where it cannot be written, the index
        is kept in memory.
      say: hears of a shard that is cut short.

    Raises:
      UserError: no tar file, a compressed one, or nothing in it.
    """

    columns = None

    def __init__(
        self, path: Path, index: Path | None = None, say: Callable[[str], None] = lambda text: None
    ):
        self._path, self.name = path.absolute(), path.stem
        stored = _index_file(self._path, index)
        found = _read_index(stored, self._path)
        if found is None:
            found, complete = _walk(self._path)
            if not complete:
                say(f"{self._path} is cut short: its first {len(found['keys']):,} samples are used")
            _write_index(stored, self._path, found)
        self._members, self._keys, self._endings = (
            found["members"],
            found["keys"],
            found["endings"].tolist(),
        )
        if not len(self._keys):
            raise UserError(f"{self._path} has no sample; fetch the shard again or leave it out.")
        self._starts = np.searchsorted(self._members[:, 0], np.arange(len(self._keys) + 1))
        self._file = Parts(self._path)

    def __len__(self) -> int:
        return len(self._keys)

    def place(self, index: int) -> str:
        """The shard and the sample's name."""
        return f"{self._path}, sample {self._keys[index]}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """The members of a sample."""
        row: Record = {"__key__": str(self._keys[index])}
        for _, ending, start, length in self._members[
            self._starts[index] : self._starts[index + 1]
        ]:
            name = self._endings[ending]
            if columns is None or name in columns or (name == "json" and _asks_json(columns)):
                self._add(row, name, self._file.read(start, length), index)
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
      keys [n], endings [e], members int64 [m, 4]: sample, ending, start and length in bytes.
    """
    size, complete = path.stat().st_size, True
    keys: list[str] = []
    endings: dict[str, int] = {}
    members: list[tuple[int, int, int, int]] = []
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
                members.append((len(keys) - 1, number, member.offset_data, member.size))
            complete = complete and _ends(path, shard.offset)
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
        "members": np.array(members, np.int64).reshape(-1, 4),
    }
    return found, complete


def _ends(path: Path, offset: int) -> bool:
    """Whether a block of zeros, the mark of the end, stands behind the last member."""
    with path.open("rb") as file:
        file.seek(offset)
        found = file.read(512)
    return len(found) == 512 and not any(found)


def _index_file(path: Path, folder: Path | None) -> Path:
    return (path.parent if folder is None else folder) / f"{path.name}.index.npz"


def _stamp(path: Path) -> np.ndarray:
    """What tells whether an index file is of this shard as it is now."""
    found = path.stat()
    return np.array([VERSION, found.st_size, found.st_mtime_ns], np.int64)


def _read_index(stored: Path, path: Path) -> dict[str, np.ndarray] | None:
    """The index file's arrays, or None where there is none, or one of another shard."""
    try:
        with np.load(stored, allow_pickle=False) as file:
            if not np.array_equal(file["stamp"], _stamp(path)):
                return None
            return {name: file[name] for name in ("keys", "endings", "members")}
    except (OSError, ValueError, KeyError, EOFError):
        return None


def _write_index(stored: Path, path: Path, found: dict[str, np.ndarray]) -> None:
    out = io.BytesIO()
    np.savez(out, stamp=_stamp(path), **found)  # type: ignore[arg-type]
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(stored, out.getvalue())
    except OSError:
        return  # a folder that may only be read; the next start walks again
