"""Writes rows of a table as a Parquet file, a block at a time, because images may be large."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from big_retrieval.data.formats.shards import to_plain_value
from big_retrieval.data.formats.tables import Table
from big_retrieval.errors import UserError

LIGHT, HEAVY = 16384, 256  # rows per row group: of arrays, or of rows that may contain images


def write_parquet(
    path: Path, table: Table | None, columns: Mapping[str, str], added: Mapping[str, pa.Array]
) -> None:
    """Writes columns of a table, and other columns.

    Args:
      table: None if there are only `added` columns.
      columns: column of the table -> its name in the file.
      added: further columns by name, with an entry per row; at least one.
    """
    arrays: dict[str, pa.Array | pa.ChunkedArray] = dict(added)
    by_row: dict[str, str] = {}  # columns that the table does not have as arrays
    for column, name in columns.items():
        values = None if table is None else table.column(column)
        if values is None:
            by_row[column] = name
        else:
            arrays[name] = values
    rows = len(next(iter(added.values())))
    schema = pa.schema({name: values.type for name, values in arrays.items()})
    size = LIGHT
    if table is not None and by_row:
        size = HEAVY
        schema = pa.unify_schemas([schema, _schema(table, by_row, rows, path)])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, size):
            stop = min(start + size, rows)
            block = {name: values[start:stop] for name, values in arrays.items()}
            if table is not None and by_row:
                read = pa.Table.from_pylist(_rows(table, by_row, start, stop), schema)
                block |= {name: read[name] for name in by_row.values()}
            writer.write_table(pa.table(block, schema=schema))


def _schema(table: Table, names: Mapping[str, str], rows: int, path: Path) -> pa.Schema:
    """Returns the types of columns that are read by row, with their names in the file."""
    schemas = {name: pa.schema({name: pa.null()}) for name in names.values()}
    for start in range(0, rows, HEAVY):
        block = _rows(table, names, start, min(start + HEAVY, rows))
        for name, schema in schemas.items():
            try:
                block_schema = pa.schema({name: pa.array([row[name] for row in block]).type})
                schemas[name] = pa.unify_schemas(
                    [schema, block_schema], promote_options="permissive"
                )
            except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
                reason = str(error).split("\n")[0].rstrip(".")
                raise UserError(
                    f"{path.name}: the column {name!r} has values of different types ({reason}). "
                    "Convert them to one type."
                ) from None
    kinds = {name: schema.field(name).type for name, schema in schemas.items()}
    return pa.schema({x: pa.string() if pa.types.is_null(y) else y for x, y in kinds.items()})


def _rows(table: Table, names: Mapping[str, str], start: int, stop: int) -> list[dict[str, object]]:
    rows = (table.row(index, tuple(names)) for index in range(start, stop))
    return [
        {name: to_plain_value(row.get(column)) for column, name in names.items()} for row in rows
    ]
