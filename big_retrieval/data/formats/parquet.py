"""Writes rows of a table as a Parquet file, a block at a time, without holding them all."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from big_retrieval.data.formats.shards import plain
from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import UserError

LIGHT, HEAVY = 16384, 256  # rows of a group; heavy ones may hold images, which one row needs whole

Columns = dict[str, pa.Array | pa.ChunkedArray]


def write_parquet(
    path: Path,
    table: Table | None,
    columns: Mapping[str, str],
    added: Mapping[str, pa.Array],
) -> None:
    """Writes columns of a table, and others beside them.

    Args:
      table: the rows; None: there are `added` columns only.
      columns: of the table -> their names in the file.
      added: further columns, an entry for each row; at least one.

    Raises:
      UserError: a column holds values of different types, or a row cannot be read.
    """
    rows = len(next(iter(added.values())))
    held: Columns = dict(added)
    read: dict[str, str] = {}
    for own, name in columns.items():
        found = None if table is None else table.column(own)
        if found is None:
            read[own] = name
        else:
            held[name] = found
    types = _types(table, read, rows, path)
    schema = pa.schema({name: values.type for name, values in held.items()} | types)
    heavy = any(map(_is_heavy, schema.types))
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, HEAVY if heavy else LIGHT):
            stop = min(start + (HEAVY if heavy else LIGHT), rows)
            block = {name: values[start:stop] for name, values in held.items()}
            for name, values in _values(table, read, start, stop).items():
                block[name] = pa.array(values, types[name])
            writer.write_table(pa.table(block, schema=schema))


def _types(
    table: Table | None, read: Mapping[str, str], rows: int, path: Path
) -> dict[str, pa.DataType]:
    """The types of columns that must be read row by row: name in the file -> type."""
    whole = {name: pa.schema([pa.field(name, pa.null())]) for name in read.values()}
    for start in range(0, rows if read else 0, HEAVY):
        for name, values in _values(table, read, start, min(start + HEAVY, rows)).items():
            try:
                here = pa.schema([pa.field(name, pa.array(values).type)])
                whole[name] = pa.unify_schemas([whole[name], here], promote_options="permissive")
            except (pa.ArrowInvalid, pa.ArrowTypeError) as problem:
                why = str(problem).split("\n")[0].rstrip(".")
                raise UserError(
                    f"{path.name}: the column {name!r} holds values of different types ({why}); "
                    "make them one type."
                ) from None
    found = {name: schema.field(name).type for name, schema in whole.items()}
    return {name: pa.string() if pa.types.is_null(kind) else kind for name, kind in found.items()}


def _values(table: Table | None, read: Mapping[str, str], start: int, stop: int) -> dict[str, list]:
    """Values of some rows: name in the file -> one for each row, None where a row has none."""
    if table is None or not read:
        return {}
    block = [table.row(index, tuple(read)) for index in range(start, stop)]
    return {name: [plain(row.get(own)) for row in block] for own, name in read.items()}


def _is_heavy(kind: pa.DataType) -> bool:
    """Whether cells are or hold bytes, such as images."""
    if pa.types.is_nested(kind):
        return any(_is_heavy(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
