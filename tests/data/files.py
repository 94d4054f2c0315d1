"""Small files of the tests of data."""

import io
import tarfile
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
