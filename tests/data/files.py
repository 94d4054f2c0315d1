"""Small files of the tests of data."""

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image


def encoded(image: Image.Image, kind: str = "PNG", **keys: Any) -> bytes:
    """Returns the content of an image file."""
    out = io.BytesIO()
    if "append_images" in keys:  # a save leaves settings of its kind in an image: save copies
        keys["append_images"] = [each.copy() for each in keys["append_images"]]
    image.copy().save(out, kind, **keys)
    return out.getvalue()


def png_file(width: int, height: int, rows: bytes, *, depth: int = 8, color: int = 2) -> bytes:
    """Returns a PNG file of raw rows, which may differ from its header.

    Args:
      depth: bits of a channel.
      color: PNG color type, 2 for RGB or 6 for RGBA; a file of 16 bits is interlaced.
    """
    head = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, depth == 16)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def png_header(width: int, height: int) -> bytes:
    """Returns a PNG file with a size and almost no pixels."""
    return png_file(width, height, bytes(1000))


def red(number: int) -> bytes:
    """Returns a PNG file of 4 x 3 pixels whose red says which one it is."""
    return encoded(Image.new("RGB", (4, 3), (number, 0, 0)))


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], mode: Any = "w") -> None:
    """Writes (or, with mode "a", extends) a tar file of members with a name and a content."""
    with tarfile.open(path, mode) as shard:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))
