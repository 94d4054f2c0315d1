"""How large an image file, and what it unfolds to, may be.

A file of some kilobytes can unfold to gigabytes, so that the memory which decoding will take is
estimated from the header, before anything is decoded. The numbers of bytes a pixel are those of the
decoders in Pillow: what they hold beside the image, and the conversions to upright RGB.
"""

from typing import Any

from PIL import Image

LARGEST = 80_000_000  # pixels
MOST_BYTES = 640 * 2**20  # of memory for one image: `LARGEST` pixels in RGB, stored and upright
MOST_FILE = 256 * 2**20  # bytes of an image file
SMALLEST = 2  # pixels; dead links are often stored as a picture of one
LONGEST = 100  # times the short side: resizing the short side would fill the memory
ORIENTATION = 274  # the tag of EXIF and TIFF
TURNED = (5, 6, 7, 8)  # its values that swap height and width
# Bytes a pixel that decoders hold beside the image: planes, a canvas, a copy of all.
_BESIDE = {"WEBP": 16, "AVIF": 16, "PPM": 8, "BMP": 4}
_RESULT = 4  # bytes a pixel of the upright part in RGB
_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # others: 4
_PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)  # JPEG markers: frames whose scans refine each other
_TILE_WIDTH, _TILE_LENGTH, _BITS = 322, 323, 258  # TIFF tags


class Unreasonable(Exception):
    """An image of an absurd size."""


def check_size(image: Image.Image, data: bytes) -> None:
    """Refuses an open image that is too large or too small, before it is decoded.

    Raises:
      Unreasonable: it is; in words that follow "the image is".
    """
    width, height = image.size
    _check_sides(width, height)
    needed = width * height * _bytes_a_pixel(image, data) + _tile_bytes(image)
    _check_bytes(f"{width:,} x {height:,} pixels ({image.format} {image.mode})", needed)


def _check_sides(width: int, height: int) -> None:
    size, short = f"{width:,} x {height:,} pixels", max(1, min(width, height))
    if width * height > LARGEST:
        raise Unreasonable(f"{size}, more than {LARGEST // 10**6} megapixels")
    if width * height < SMALLEST:
        raise Unreasonable(f"{size}, too small to show anything")
    if max(width, height) > LONGEST * short:
        raise Unreasonable(f"{size}, more than {LONGEST} times as long as wide")


def _bytes_a_pixel(image: Image.Image, data: bytes) -> int:
    beside, bands = _BESIDE.get(image.format or "", 0), len(image.getbands())
    if image.format in ("JPEG", "MPO") and _several_scans(data, bands):
        beside = 2 * bands  # the coefficients of the whole image
    if image.format == "JPEG2000":
        beside = 5 * max(3, bands) + 1  # whole numbers of 32 bits, and their bytes
    if image.format == "TIFF":
        beside = _sample_bytes(image)  # a strip may be all of the image
        if _number(_tags(image).get(ORIENTATION), 1) != 1:
            beside += 4  # Pillow turns the whole image while it decodes
    # What a decoder holds is freed before the image is made upright and RGB.
    return _STORED.get(image.mode, 4) + max(beside, _RESULT)


def _several_scans(data: bytes, components: int) -> bool:
    """Whether a JPEG file is decoded in several scans, as libjpeg decides.

    Markers are followed instead of counted, because the thumbnail that cameras store in the EXIF
    data has scans of its own.
    """
    at = 2
    while at + 5 <= len(data):
        kind = data[at + 1]
        if data[at] != 0xFF or kind == 0xFF:  # bytes that fill the space between segments
            at += 1
        elif kind in _PROGRESSIVE:
            return True
        elif kind == 0xDA:  # the first scan
            return data[at + 4] < components
        elif kind <= 0x01 or 0xD0 <= kind <= 0xD9:  # markers without content
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return True


def _check_bytes(what: str, needed: int) -> None:
    if needed > MOST_BYTES:
        raise Unreasonable(
            f"{what}, which would take {needed // 2**20:,} MiB to decode, more than "
            f"{MOST_BYTES // 2**20}"
        )


def _tags(image: Image.Image) -> Any:
    return getattr(image, "tag_v2", {}) if image.format == "TIFF" else {}


def _number(value: Any, otherwise: int) -> int:
    value = value[0] if isinstance(value, tuple) and value else value
    return int(value) if isinstance(value, int) and value > 0 else otherwise


def _sample_bytes(image: Image.Image) -> int:
    """Bytes a pixel in a TIFF file, at least one."""
    bits = _tags(image).get(_BITS, (8,))
    bits = bits if isinstance(bits, tuple) else (bits,)
    return max(1, sum(each for each in bits if isinstance(each, int) and each > 0) // 8)


def _tile_bytes(image: Image.Image) -> int:
    """Bytes of one tile of a TIFF file, which may be larger than the image."""
    tags = _tags(image)
    if _TILE_WIDTH not in tags and _TILE_LENGTH not in tags:
        return 0
    sides = _number(tags.get(_TILE_WIDTH), 1) * _number(tags.get(_TILE_LENGTH), 1)
    return 2 * sides * _sample_bytes(image)
