"""Reader of Parquet files: columns keep their Arrow types, and contents of images are copied."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from big_retrieval.data.damage import first_line
from big_retrieval.data.stores.blocks import BLOCK_BYTES, BLOCK_ROWS, Reader, RowBlock
from big_retrieval.data.stores.delimited import checked_header
from big_retrieval.errors import UserError


def read_parquet(path: Path) -> Iterator[RowBlock]:
    """Yields the rows of a file; if a row group cannot be read, all its rows are damaged."""
    file = _open(path)
    checked_header(file.schema_arrow.names, path)
    row = 1
    for group in range(file.metadata.num_row_groups):
        info = file.metadata.row_group(group)
        mean = info.total_byte_size / max(1, info.num_rows)
        size = max(1, min(BLOCK_ROWS, int(BLOCK_BYTES / max(mean, 1))))
        stop = row + info.num_rows
        try:
            for batch in file.iter_batches(size, [group], use_threads=False):
                pairs = zip(batch.schema.names, map(_decoded, batch.columns), strict=True)
                columns = dict(reversed(list(pairs)))  # keeps the first column without a name
                places = range(row, row := row + batch.num_rows)
                yield RowBlock(columns, places, [None] * len(places), int(mean * len(places)))
        except Exception as error:  # damaged bytes can raise anything
            reason = f"the row group cannot be read ({first_line(error)})"
            places = range(row, row := stop)
            yield RowBlock({}, places, [reason] * len(places), int(mean * len(places)))


def _open(path: Path) -> pq.ParquetFile:
    try:
        # Without a buffer, the whole row group would be in memory.
        return pq.ParquetFile(path, buffer_size=2**20, pre_buffer=False)
    except Exception as error:  # damaged bytes can raise anything
        raise UserError(f"Cannot read {path} as Parquet ({first_line(error)}).") from None


def _decoded(array: pa.Array) -> pa.Array:
    """Returns an array without dictionaries and views."""
    if pa.types.is_dictionary(array.type):
        return array.dictionary_decode()
    if pa.types.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    is_text = pa.types.is_null(array.type) or pa.types.is_string_view(array.type)
    return array.cast(pa.string()) if is_text else array


def _decoded_size(path: Path) -> int:
    meta = _open(path).metadata
    return sum(meta.row_group(group).total_byte_size for group in range(meta.num_row_groups))


PARQUET = Reader(read_parquet, "row", size_of=_decoded_size)
