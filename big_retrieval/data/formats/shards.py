"""Records in ArrayRecord shards: the fastest format for large data in random order.

    FOLDER/dataset.json                      count, shards, columns, origin; written last
           part-00000-of-00008.array_record  records: MessagePack maps of a row's columns

Images keep their bytes and arrays become PNG, so batches from shards equal batches from the source.
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
SKIPPED = "skipped.jsonl"  # list of the damaged records
FORMAT = 1


class Shard(Table):
    """One ArrayRecord file; if it cannot be opened, all of its `count` records are damaged."""

    def __init__(self, path: Path, count: int, columns: Collection[str]):
        self._path, self._count, self.name = path, count, path.stem
        self.columns = frozenset(columns)
        self._broken = ""
        try:
            self._stamp = stamp_of(path)
            records = reopen(open_reader, str(self._path), self._stamp).num_records()
            if records != self._count:
                self._broken = f"the shard has {records:,} records instead of {self._count:,}"
        except Exception as error:  # damaged bytes can raise anything
            self._broken = f"the shard cannot be opened ({first_line(error)})"

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
        except Exception as error:  # of the reader or of MessagePack
            reason = f"it cannot be read ({first_line(error)})"
            raise Damaged(self.place(index), reason) from None
        if not isinstance(row, dict):
            raise Damaged(self.place(index), "it is not a map of columns")
        return row

    @functools.cached_property
    def fingerprint(self) -> str:
        """Digest of size, first and last bytes: reading all images would take too long."""
        if self._broken:
            return digest_of([self._count])
        return digest_of([self._stamp[0], ends_digest(self._path)])


def open_folder(folder: Path) -> tuple[Chain, dict[str, Any]]:
    """Returns the records of a folder, and the content of its dataset.json."""
    path = folder / INDEX
    try:
        index = json.loads(path.read_text())
        shards, columns = index["shards"], index["columns"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{path} is missing or damaged: the conversion is incomplete. Repeat the same "
            "`big-retrieval data convert`."
        ) from None
    if index.get("format") != FORMAT:
        raise UserError(f"{path} has format {index.get('format')}, not {FORMAT}. Convert again.")
    tables = [Shard(folder / shard["file"], shard["records"], columns) for shard in shards]
    return Chain(tables, folder.name), index


def convert(
    source: RecordSource,
    folder: Path,
    *,
    shard_records: int,
    origin: dict[str, Any],
    max_damaged: float,
) -> tuple[dict[str, Any], Damage]:
    """Writes all records of a source as shards; skips damaged records, and lists them in a file.

    Decodes every image once, to skip images that cannot be decoded.

    Args:
      shard_records: maximum number of records per shard.
      origin: config of the source, stored in dataset.json.

    Returns:
      Content of dataset.json, and the damaged records.
    """
    durable.make_folder(folder)
    (folder / INDEX).unlink(missing_ok=True)
    (folder / SKIPPED).unlink(missing_ok=True)
    durable.sync_folder(folder)  # else, a crash could leave an old index next to new shards
    damage = Damage(folder / SKIPPED, max_damaged)
    total = max(1, -(-len(source) // shard_records))
    shards, columns = [], set()
    with progress_bar("records", len(source)) as progress:
        for shard_index in range(total):
            name, count = f"part-{shard_index:05d}-of-{total:05d}.array_record", 0
            writer = ArrayRecordWriter(str(folder / f"{name}.partial"), "group_size:1")
            # The sizes of shards differ by at most one record.
            start, stop = (len(source) * n // total for n in (shard_index, shard_index + 1))
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
    for index in indices:
        try:
            with record_at(source.place(index)) as place:
                record = source[index]
                if IMAGE in record:
                    picture(record[IMAGE], place)
                row = {key: to_plain_value(value) for key, value in record.items()}
            damage.saw(1, ())
            yield row
        except Damaged as error:
            damage.saw(1, [note(index, error)])
        progress.update(1)


def to_plain_value(value: Any) -> Any:
    """Converts a value to the types of MessagePack; uint8 images become PNG bytes."""
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
        return {str(key): to_plain_value(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_value(x) for x in value]
    if value is None or isinstance(value, str | bytes | int | float):
        return value
    return str(value)
