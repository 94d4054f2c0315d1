"""Columns of a part of a store: Python values to Arrow arrays, and back without a change.

| kind | Arrow type | condition |
| --- | --- | --- |
| text | string | all values are str |
| number | int64, double or bool | all values have this one type |
| list | list of string | all values are lists of str |
| bytes | large binary | all values are bytes |
| pointer | struct of three integers | all values are `Pointer` |
| json | string | any other values that JSON can represent, as exact JSON |
| unchanged | any | the reader yields Arrow arrays |

None is null in every kind. The kinds of a column may differ between parts.
"""

import hashlib
import itertools
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

NUMBERS = {int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
JSON, POINTERS = {b"kind": b"json"}, {b"kind": b"pointer"}  # metadata of fields
FORMATS: dict[pa.DataType, Any] = {  # of memoryview
    pa.int8(): "b",
    pa.uint8(): "B",
    pa.int16(): "h",
    pa.uint16(): "H",
    pa.int32(): "i",
    pa.uint32(): "I",
    pa.int64(): "q",
    pa.uint64(): "Q",
    pa.float32(): "f",
    pa.float64(): "d",
}
TEXTS = pa.list_(pa.string())
OFFSETS: dict[pa.DataType, Any] = {
    pa.string(): "i",
    pa.binary(): "i",
    pa.large_string(): "q",
    pa.large_binary(): "q",
}


class Pointer(NamedTuple):
    """Bytes of a tar file, with the `header_digest` of the 512 bytes before them."""

    start: int
    length: int
    check: int


POINTER = pa.struct([(name, pa.int64()) for name in Pointer._fields])


def header_digest(header: bytes) -> int:
    """Returns a signed 64-bit digest of a header."""
    return int.from_bytes(hashlib.blake2b(header, digest_size=8).digest(), "little", signed=True)


def to_arrow(name: str, values: Sequence[Any]) -> tuple[pa.Field, pa.Array]:
    """Converts the values of a column."""
    array = _typed(values)
    if array is not None:
        metadata = POINTERS if array.type == POINTER else None
        return pa.field(name, array.type, metadata=metadata), array
    texts = [None if value is None else json.dumps(value) for value in values]
    return pa.field(name, pa.string(), metadata=JSON), pa.array(texts, pa.string())


def _typed(values: Sequence[Any]) -> pa.Array | None:
    """Converts values of one type to an array; returns None for mixed types."""
    types = set(map(type, values)) - {type(None)}
    if not types:
        return pa.array(values, pa.string())
    if len(types) > 1:
        return None
    (data_type,) = types
    if data_type is Pointer:
        return pa.array([value and value._asdict() for value in values], POINTER)
    if data_type is list:
        entries = itertools.chain.from_iterable(value for value in values if value is not None)
        if set(map(type, entries)) - {str}:
            return None
    try:
        if data_type is str:
            return pa.array(values, pa.string())
        if data_type is bytes:
            return pa.array(values, pa.large_binary())
        if data_type is list:
            return pa.array(values, TEXTS)
        return pa.array(values, NUMBERS[data_type]) if data_type in NUMBERS else None
    except (OverflowError, UnicodeEncodeError):  # more than 64 bits, or a lone surrogate
        return None


def is_json(field: pa.Field) -> bool:
    """Returns True if the texts of a column are JSON."""
    return field.metadata == JSON


def digest(field: pa.Field, array: pa.Array) -> bytes:
    """Returns the SHA-256 of the name, kind and values of a column, however Arrow stores them."""
    out = hashlib.sha256(f"{field.name}\0{field.type}\0{field.metadata}\0".encode())
    _add(out, array)
    return out.digest()


def _add(out: Any, array: pa.Array) -> None:
    """Adds values to a digest: the null mask, and the contents of the other values."""
    valid = np.asarray(array.is_valid().to_numpy(zero_copy_only=False))
    out.update(struct.pack("<q", len(array)) + np.packbits(valid).tobytes())
    array = array.drop_null()
    data_type = array.type
    if pa.types.is_struct(data_type):
        for child in array.flatten():
            _add(out, child)
    elif data_type in OFFSETS or pa.types.is_list(data_type):
        offsets = np.frombuffer(array.buffers()[1], OFFSETS.get(data_type, "i"))[array.offset :]
        offsets = offsets[: len(array) + 1]
        out.update(np.diff(offsets).astype("<i8").tobytes())
        if pa.types.is_list(data_type):
            _add(out, array.flatten())
        elif len(array):
            out.update(memoryview(array.buffers()[2])[offsets[0] : offsets[-1]])
    elif pa.types.is_fixed_size_list(data_type):
        _add(out, array.flatten())
    elif data_type in FORMATS or pa.types.is_boolean(data_type):
        out.update(array.to_numpy(zero_copy_only=False).tobytes())
    elif _has_fixed_width(data_type):
        width = data_type.bit_width // 8
        content = memoryview(array.buffers()[1])
        out.update(content[array.offset * width : (array.offset + len(array)) * width])
    else:
        out.update(repr(array.to_pylist()).encode())


def _has_fixed_width(data_type: pa.DataType) -> bool:
    """Returns True for types such as dates, whose values may exceed the range of Python."""
    return (
        pa.types.is_temporal(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_fixed_size_binary(data_type)
        or pa.types.is_float16(data_type)
    )


class StoredColumn:
    """Values of a mapped column by index, None for null; reads the buffers, faster than Arrow."""

    def __init__(self, field: pa.Field, array: pa.Array):
        assert array.offset == 0
        valid = array.buffers()[0] if array.null_count else None  # also None for the type null
        self._valid = None if valid is None else memoryview(valid)
        read = _reader(array, field.metadata == POINTERS)
        self._read = (lambda index: json.loads(read(index))) if is_json(field) else read

    def __getitem__(self, index: int) -> Any:
        valid = self._valid
        if valid is not None and not valid[index >> 3] >> (index & 7) & 1:
            return None
        return self._read(index)


def _reader(array: pa.Array, pointers: bool) -> Callable[[int], Any]:
    data_type, buffers = array.type, array.buffers()
    if pointers:
        columns = [memoryview(child.buffers()[1]).cast("q") for child in array.flatten()]
        return lambda index: Pointer(*(column[index] for column in columns))
    if pa.types.is_boolean(data_type):
        bits = memoryview(buffers[1])
        return lambda index: bool(bits[index >> 3] >> (index & 7) & 1)
    if data_type == TEXTS and not array.values.null_count:
        ends, text = memoryview(buffers[1]).cast("i"), _contents(array.values)
        return lambda index: [text(i) for i in range(ends[index], ends[index + 1])]
    if data_type in OFFSETS:
        return _contents(array)
    if data_type in FORMATS:
        return memoryview(buffers[1]).cast(FORMATS[data_type]).__getitem__
    return lambda index: array[index].as_py()


def _contents(array: pa.Array) -> Callable[[int], str | bytes]:
    _, offsets, data = array.buffers()
    ends = memoryview(offsets).cast(OFFSETS[array.type])
    content = memoryview(data or b"")
    if array.type in (pa.string(), pa.large_string()):
        return lambda index: str(content[ends[index] : ends[index + 1]], "utf-8")
    return lambda index: bytes(content[ends[index] : ends[index + 1]])
