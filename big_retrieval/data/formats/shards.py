"""Records in ArrayRecord shards: the form that large data are read fastest in, in any order.

    FOLDER/dataset.json                      count, shards, columns, origin; written last
           part-00000-of-00008.array_record  records: MessagePack maps of a row's columns

Images stay the bytes that they were (arrays become PNG, which loses nothing), so that batches from
shards are those from the source. Nothing is pickled.
"""

import functools
import io
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from big_retrieval.data.damage import Damage, first_line, note, record_at
from big_retrieval.data.formats.folders import INDEX
from big_retrieval.data.formats.records import IMAGE
from big_retrieval.data.formats.tables import Chain, Table, digest_of
from big_retrieval.data.images.decoding import Encoded, picture
from big_retrieval.data.sources import Record, RecordSource, place_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.io import durable
from big_retrieval.io.handles import ends_digest, open_reader, reopen, stamp_of
from big_retrieval.io.manifest import to_json
from big_retrieval.runtime.progress import progress_bar

SKIPPED = "skipped.jsonl"  # names the damaged records
FORMAT = 1


class Shard(Table):
    """One ArrayRecord file; a shard that cannot be opened makes each of its records damaged.

    Args:
      path: the file.
      count: its records, as the folder's index says.
      columns: those of every row.
    """

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
        """The shard and the record's number in it, from 0."""
        return f"{self._path}, record {index}"

    def row(self, index: int, columns: Collection[str] | None = None) -> Record:
        """All columns of a record."""
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
    """`write_folder` with its progress on the screen; a file names the records that were skipped.

    Args:
      source: as `write_folder`.
      folder: as `write_folder`.
      shard_records: as `write_folder`.
      origin: as `write_folder`.
      max_damaged: `config.loader.max_damaged`.

    Returns:
      What dataset.json holds, and the damaged records.

    Raises:
      UserError: too many records are damaged, or as `write_folder`.
    """
    (folder / SKIPPED).unlink(missing_ok=True)
    damage = Damage(folder / SKIPPED, max_damaged)
    counter = progress_bar("records", len(source))

    def progress(done: int) -> None:
        damage.saw(1, ())
        counter.update(1)

    def skip(index: int, problem: Damaged) -> None:
        damage.saw(0, [note(index, problem)])

    index = write_folder(
        source, folder, shard_records=shard_records, origin=origin, skip=skip, progress=progress
    )
    counter.close()
    return index, damage


def write_folder(
    source: RecordSource,
    folder: Path,
    *,
    shard_records: int,
    origin: dict[str, Any],
    skip: Callable[[int, Damaged], None],
    progress: Callable[[int], None] = lambda done: None,
    verify: bool = True,
) -> dict[str, Any]:
    """Writes all records of a source as shards; damaged ones are skipped.

    Args:
      source: the records.
      folder: made where it is missing.
      shard_records: records of a shard.
      origin: the configuration of the source, kept in the index.
      skip: hears of every record that is skipped.
      progress: hears how many records were looked at.
      verify: whether every image is decoded once, to leave out those that cannot be.

    Returns:
      What dataset.json holds.

    Raises:
      UserError: no record could be read, or the records have different columns.
    """
    durable.make_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    durable.sync_folder(folder)  # an old index must not come back for new shards
    total = max(1, -(-len(source) // shard_records))
    shards, columns = [], set()
    rows = _rows(source, skip, progress, verify)
    for number in range(total):
        name, count = f"part-{number:05d}-of-{total:05d}.array_record", 0
        writer = ArrayRecordWriter(str(folder / f"{name}.partial"), "group_size:1")
        for _, row in zip(range(_size(number, total, len(source))), rows, strict=False):
            if row is None:
                continue
            if not shards and not count:
                columns = set(row)
            columns &= set(row)
            writer.write(msgpack.packb(row))
            count += 1
        writer.close()
        durable.publish(folder / f"{name}.partial", folder / name)
        shards.append({"file": name, "records": count})
    records = sum(shard["records"] for shard in shards)
    if not records:
        raise UserError(f"{source.name}: not one of {len(source):,} records can be read.")
    index = {
        "format": FORMAT,
        "records": records,
        "shards": shards,
        "columns": sorted(columns),
        "classes": {key: list(names) for key, names in source.classes.items()},
        "origin": origin,
    }
    durable.write_bytes(folder / INDEX, to_json(index))
    return index


def _size(number: int, total: int, records: int) -> int:
    """Records of shard `number` where all have as many, give or take one."""
    return records * (number + 1) // total - records * number // total


def _rows(
    source: RecordSource,
    skip: Callable[[int, Damaged], None],
    progress: Callable[[int], None],
    verify: bool,
) -> Iterator[Record | None]:
    """The rows to write; None for a damaged one."""
    for index in range(len(source)):
        try:
            with record_at(place_of(source, index)) as place:
                record = source[index]
                if verify and IMAGE in record:
                    picture(record[IMAGE], place)
                row = {key: plain(value) for key, value in record.items()}
            yield row
        except Damaged as problem:
            skip(index, problem)
            yield None
        progress(index + 1)


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
