"""Writes rows into the parts of a store."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from big_retrieval.data.sources import Record
from big_retrieval.data.stores.blocks import RowBlock, RowBuffer
from big_retrieval.data.stores.store import INFO, ORIGIN_COLUMNS
from big_retrieval.data.stores.values import digest, to_arrow
from big_retrieval.io import durable

PART_ROWS = 2**17
PART_BYTES = 2**26


def write_part(path: Path, blocks: Sequence[tuple[int, RowBlock]], unit: str) -> dict[str, Any]:
    """Writes blocks, with the indices of their files, as one record batch.

    Returns:
      Name, row count, number of damaged rows, location and reason of the first damaged row, and
      digest of the values.
    """
    types = blocks[0][1].types
    origin: list[list[Any]] = [[], [], []]  # of `ORIGIN_COLUMNS`
    names = dict.fromkeys(name for _, block in blocks for name in block.columns)
    values: dict[str, list[Any]] = {name: [] for name in names}
    for index, block in blocks:
        rows = len(block.places)
        added = ([index] * rows, block.places, block.reasons)
        for column, entries in zip(origin, added, strict=True):
            column.extend(entries)
        for name in names.keys() - types.keys():
            values[name].extend(block.columns.get(name) or [None] * rows)
    reason_type = pa.string() if any(origin[2]) else pa.null()
    origin_types = (pa.int32(), pa.int64(), reason_type)
    pairs = [
        (pa.field(name, data_type), pa.array(column, data_type))
        for name, column, data_type in zip(ORIGIN_COLUMNS, origin, origin_types, strict=True)
    ]
    for name, column in values.items():
        if name in types:
            array = pa.concat_arrays([block.columns[name] for _, block in blocks])
            pairs.append((pa.field(name, array.type), array))
        else:
            pairs.append(to_arrow(name, column))
    fields, arrays = zip(*pairs, strict=True)
    batch = pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(list(fields)))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    durable.sync_file(path)
    content = hashlib.sha256()
    for field, array in sorted(pairs[2:], key=lambda pair: pair[0].name):  # includes the reasons
        if array.null_count < len(array):  # a column of nulls equals a missing column
            content.update(digest(field, array))
    damaged = [row for row, reason in enumerate(origin[2]) if reason is not None]
    first = f"{unit} {origin[1][damaged[0]]}, {origin[2][damaged[0]]}" if damaged else ""
    counts = {"rows": batch.num_rows, "damaged": len(damaged)}
    return {"name": path.name, **counts, "first": first, "digest": content.hexdigest()}


def write_info(folder: Path, parts: Sequence[dict[str, Any]], **entries: Any) -> None:
    """Writes store.json, which turns a folder of parts into a store.

    Args:
      parts: results of `write_part`.
      **entries: name, unit, key and files; of stores in the cache, also version, reader and notes.
    """
    digests = "".join(f"{part['rows']} {part['digest']}\n" for part in parts)
    info = {
        "fingerprint": hashlib.sha256(digests.encode()).hexdigest(),
        **{key: sum(part[key] for part in parts) for key in ("rows", "damaged")},
        **entries,
        "parts": [part["name"] for part in parts],
    }
    durable.write_bytes(folder / INFO, json.dumps(info, indent=1).encode())


class StoreWriter:
    """Writes rows into a folder; `unit` is the noun for a row in messages, such as "document"."""

    def __init__(self, folder: Path, unit: str):
        self._folder, self._unit, self._rows = folder, unit, 0
        self._buffer, self._parts = RowBuffer(folder), list[dict[str, Any]]()

    def append(self, rows: Iterable[Record]) -> None:
        """Appends rows."""
        for row in rows:
            self._rows += 1
            size = sum(len(value) for value in row.values() if isinstance(value, str | bytes))
            self._buffer.add(row, self._rows, None, size)
            if len(self._buffer.rows) >= PART_ROWS or self._buffer.size >= PART_BYTES:
                self._write()

    def __enter__(self) -> "StoreWriter":
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            if self._buffer.rows:
                self._write()
            unit, files = self._unit, [(self._unit, 0, 0, "")]
            write_info(self._folder, self._parts, name=unit, unit=unit, key="", files=files)

    def _write(self) -> None:
        path = self._folder / f"store-{len(self._parts):05d}.arrow"
        self._parts.append(write_part(path, [(0, self._buffer.take())], self._unit))
