"""Contents of small files. Pictures have the same bytes with every image or zip library."""

import csv
import hashlib
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SIDE = 8  # pixels of a picture
WORDS = ["red", "green", "blue", "old", "new", "tall", "small", "round", "cat", "dog", "house"]
WORDS += ["tree", "car"]


def caption(number: int) -> str:
    return f"a {WORDS[number % 13]} {WORDS[number // 13 % 13]} number {number}"


def question(number: int) -> str:
    return f"which one is {caption(number)}?"


def answer(number: int) -> str:
    return f"the answer to {number} is that {caption(number)} is what it is"


def pixels(number: int) -> bytes:
    """Returns uint8 [SIDE, SIDE, 3] as bytes."""
    return hashlib.shake_256(b"%d" % number).digest(3 * SIDE * SIDE)


def png(number: int) -> bytes:
    rows = (pixels(number)[at : at + 3 * SIDE] for at in range(0, 3 * SIDE * SIDE, 3 * SIDE))
    return png_file(SIDE, SIDE, 8, 2, b"".join(b"\0" + row for row in rows))


def png_file(width: int, height: int, depth: int, color: int, rows: bytes, more: Any = ()) -> bytes:
    """Returns a PNG file whose rows are stored, so that every zlib writes the same bytes.

    Args:
      width: pixels.
      height: pixels.
      depth: bits of a channel.
      color: PNG color type, 0 for grey or 2 for RGB.
      rows: filter byte and samples of every row, at most 65,535 bytes.
      more: further chunks (type, content) after the header.
    """
    size = struct.pack("<HH", len(rows), len(rows) ^ 0xFFFF)
    stored = b"\x78\x01\x01" + size + rows + struct.pack(">I", zlib.adler32(rows))
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    chunks = [(b"IHDR", header), *more, (b"IDAT", stored), (b"IEND", b"")]
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff_of_floats(values: Sequence[float], side: int) -> bytes:
    """Returns a grey TIFF file of float32 [side, side]."""
    entries = [(256, side), (257, side), (258, 32), (259, 1), (262, 1), (273, 8), (277, 1),
               (278, side), (279, 4 * len(values)), (339, 3)]  # fmt: skip
    strip = struct.pack(f"<{len(values)}f", *values)
    tags = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    head = b"II*\0" + struct.pack("<I", 8 + len(strip))
    return head + strip + struct.pack("<H", len(entries)) + tags + bytes(4)


def pictures(folder: str, numbers: Iterable[int], name: str = "{}.png") -> dict[str, bytes]:
    """Returns path -> content of pictures."""
    return {f"{folder}/{name.format(number)}": png(number) for number in numbers}


def stacked(numbers: Iterable[int]) -> np.ndarray:
    """Returns the pixels of pictures, uint8 [n, SIDE, SIDE, 3]."""
    return np.frombuffer(b"".join(map(pixels, numbers)), np.uint8).reshape(-1, SIDE, SIDE, 3)


def json_lines(rows: Iterable[Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def delimited(rows: Iterable[Sequence[Any]], separator: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, delimiter=separator, lineterminator="\n").writerows(rows)
    return out.getvalue()


def tar(members: Mapping[str, str | bytes]) -> bytes:
    """Returns a tar file: name of a member -> content."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as shard:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
    return out.getvalue()


def parquet(columns: Any, group: int | None = None) -> bytes:
    """Returns a Parquet file of columns or of rows, with at most `group` rows per row group."""
    out = pa.BufferOutputStream()
    rows = isinstance(columns, list)
    table = pa.Table.from_pylist(columns) if rows else pa.table(columns)
    pq.write_table(table, out, row_group_size=group)
    return out.getvalue().to_pybytes()


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def npy(*numbers: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(numbers))
    return out.getvalue()
