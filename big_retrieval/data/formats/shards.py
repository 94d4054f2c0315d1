"""Records in ArrayRecord shards: the form that large data are read fastest in, in any order.

    FOLDER/dataset.json                      count, shards, columns, origin; written last
           part-00000-of-00008.array_record  records: MessagePack maps of a row's columns

Images stay the bytes that they were (arrays become PNG, which loses nothing), so that batches from
shards are those from the source. Nothing is pickled.
"""

import functools
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from big_retrieval.data.damage import Damage, first_line, note, record_at
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Chain, Table, digest_of
from big_retrieval.data.images.decoding import Encoded, picture
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io import durable
from big_retrieval.io.handles import ends_digest, open_reader, reopen, stamp_of
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.progress import progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm

INDEX = "dataset.json"  # written last
SKIPPED = "skipped.jsonl"  # names the damaged records
FORMAT = 1


class Shard(Table):
    """One ArrayRecord file; if it cannot be opened, each of its `count` records is damaged."""

    def __init__(self, path: Path, count: int, columns: Collection[str]):
        self._path, self._count, self.name = path, count, path.stem
        self.columns = frozenset(columns)
        self._broken = ""
        try:
            self._stamp = stamp_of(path)
            found = reopen(open_reader, str(self._path), self._stamp).num_records()
            if found != self._count:
                self._broken = f"the shard has {found:,} records instead of {self._count:,}"
        except Exception as problem:  # the library raises whatever its C++ does
            self._broken = f"the shard cannot be opened ({first_line(problem)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self._path, self._count, self.columns)

    def __len__(self) -> int:
        return self._count

    def place(self, index: int) -> str:
        return f"{self._path}, record {index}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        if self._broken:
            raise Damaged(self.place(index), self._broken)
        try:
            reader = reopen(open_reader, str(self._path), self._stamp)
            row = msgpack.unpackb(reader.read([index])[0], strict_map_key=True)
        except UserError:
            raise
        except Exception as problem:  # of the reader or of MessagePack
            why = f"it cannot be read ({first_line(problem)})"
            raise Damaged(self.place(index), why) from None
        if not isinstance(row, dict):
            raise Damaged(self.place(index), "it is no map of columns")
        return row

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of the file's size and ends, as a file of images may be too large to read."""
        if self._broken:
            return digest_of([self._count])
        return digest_of([self._stamp[0], ends_digest(self._path)])


def open_folder(folder: Path) -> tuple[Chain, dict[str, Any]]:
    """The records of a folder, and its index.

    Raises:
      UserError: the folder is not whole or of another version.
    """
    path = folder / INDEX
    try:
        index = json.loads(path.read_text())
        shards, columns = index["shards"], index["columns"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is missing or damaged: the conversion did not end; repeat the same "
            "`big-retrieval data convert`."
        ) from None
    if index.get("format") != FORMAT:
        raise UserError(f"{path} has format {index.get('format')}, not {FORMAT}; convert again.")
    tables = [Shard(folder / each["file"], each["records"], columns) for each in shards]
    return Chain(tables, folder.name), index


def convert(
    source: RecordSource,
    folder: Path,
    *,
    shard_records: int,
    origin: dict[str, Any],
    max_damaged: float,
) -> tuple[dict[str, Any], Damage]:
    """Writes all records of a source as shards; damaged ones are skipped, and named in a file.

    Every image is decoded once, to leave out images that cannot be decoded.

    Args:
      shard_records: maximum number of records per shard.
      origin: configuration of the source, kept in dataset.json.
      max_damaged: `config.loader.max_damaged`.

    Returns:
      The content of dataset.json, and the damaged records.

    Raises:
      UserError: no record can be read, too many are damaged, or the records have different columns.
    """
    durable.make_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    (folder / SKIPPED).unlink(missing_ok=True)
    durable.sync_folder(folder)  # an old index must not come back for new shards
    damage = Damage(folder / SKIPPED, max_damaged)
    total = max(1, -(-len(source) // shard_records))
    shards, columns = [], set()
    with progress_bar("records", len(source)) as progress:
        for number in range(total):
            name, count = f"part-{number:05d}-of-{total:05d}.array_record", 0
            writer = ArrayRecordWriter(str(folder / f"{name}.partial"), "group_size:1")
            # All shards have the same number of records, give or take one.
            start, stop = (len(source) * n // total for n in (number, number + 1))
            for row in _rows(source, range(start, stop), damage, progress):
                columns = columns & set(row) if shards or count else set(row)
                writer.write(msgpack.packb(row))
                count += 1
            writer.close()
            durable.publish(folder / f"{name}.partial", folder / name)
            shards.append({"file": name, "records": count})
    records = sum(shard["records"] for shard in shards)
    if not records:
        raise UserError(f"{source.name}: none of {len(source):,} records can be read.")
    index = {
        "format": FORMAT,
        "records": records,
        "shards": shards,
        "columns": sorted(columns),
        "classes": {key: list(names) for key, names in source.classes.items()},
        "origin": origin,
    }
    durable.write_bytes(folder / INDEX, to_json(index))
    return index, damage


def _rows(
    source: RecordSource, indices: range, damage: Damage, progress: "tqdm[Any]"
) -> Iterator[Record]:
    """Yields the rows to write."""
    for index in indices:
        try:
            with record_at(source.place(index)) as place:
                record = source[index]
                if IMAGE in record:
                    picture(record[IMAGE], place)
                row = {key: plain(value) for key, value in record.items()}
            damage.saw(1, ())
            yield row
        except Damaged as problem:
            damage.saw(1, [note(index, problem)])
        progress.update(1)


def plain(value: Any) -> Any:
    """A value that MessagePack knows."""
    if isinstance(value, Encoded):
        return value.data
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 3 and value.shape[-1] in (3, 4):
            out = io.BytesIO()
            Image.fromarray(value).save(out, "PNG", compress_level=1)
            return out.getvalue()
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    return str(value)
