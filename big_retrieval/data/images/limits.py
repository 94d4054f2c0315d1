"""Limits of the size of an image file, and of the memory that decoding takes.

A file of a few kilobytes can expand to gigabytes. So the memory is estimated from the header,
before anything is decoded. The bytes per pixel are measured for Pillow's decoders: their buffers in
addition to the image, and the conversions to upright RGB.
"""

from PIL import Image

LARGEST = 80_000_000  # maximum number of pixels
MOST_BYTES = 640 * 2**20  # maximum memory per image: `LARGEST` pixels in RGB, stored and upright
MOST_FILE = 256 * 2**20  # maximum bytes of an image file
SMALLEST = 2  # minimum number of pixels; dead links are often stored as an image of one pixel
LONGEST = 100  # maximum long side / short side; resizing longer images would fill the memory
ORIENTATION = 274  # tag of EXIF and TIFF
TURNED = (5, 6, 7, 8)  # orientations that swap height and width
# Bytes per pixel of decoders' buffers: planes, a canvas, a copy of the image.
_BUFFERS = {"WEBP": 16, "AVIF": 16, "PPM": 8, "BMP": 4}
_RESULT = 4  # bytes per pixel of the upright part in RGB
_STORED = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # else 4 bytes
_TILE_WIDTH, _TILE_LENGTH, _BITS = 322, 323, 258  # TIFF tags


class Unreasonable(Exception):
    """An image that is too large or too small."""


def check_size(image: Image.Image, data: bytes) -> None:
    """Raises `Unreasonable` for an open image that is too large or too small, before decoding it.

    The message completes the words "the image is".

    Args:
      data: content of the image file.
    """
    width, height = image.size
    size = f"{width:,} x {height:,} pixels"
    if width * height > LARGEST:
        raise Unreasonable(f"{size}, more than {LARGEST // 10**6} megapixels")
    if width * height < SMALLEST:
        raise Unreasonable(f"{size}, too small to show anything")
    if max(width, height) > LONGEST * max(1, min(width, height)):
        raise Unreasonable(f"{size}, more than {LONGEST} times as long as wide")
    needed = width * height * _bytes_per_pixel(image, data) + _tile_bytes(image)
    if needed > MOST_BYTES:
        raise Unreasonable(
            f"{size} ({image.format} {image.mode}), which would take {needed // 2**20:,} MiB to "
            f"decode, more than {MOST_BYTES // 2**20}"
        )


def _bytes_per_pixel(image: Image.Image, data: bytes) -> int:
    buffers, bands = _BUFFERS.get(image.format or "", 0), len(image.getbands())
    if image.format in ("JPEG", "MPO") and (
        "progressive" in image.info or _first_components(data) < bands
    ):
        buffers = 2 * bands  # several scans: libjpeg keeps the coefficients of the whole image
    if image.format == "JPEG2000":
        buffers = 5 * max(3, bands) + 1  # integers of 32 bits, and their bytes
    if image.format == "TIFF":
        buffers = _sample_bytes(image)  # a strip may contain the whole image
        if _tag(image, ORIENTATION, 1)[0] != 1:
            buffers += 4  # Pillow turns the whole image while decoding it
    # A decoder frees its buffers before the image is made upright and RGB.
    return _STORED.get(image.mode, 4) + max(buffers, _RESULT)


def _first_components(data: bytes) -> int:
    """Returns the number of color components in the first scan of a JPEG file; 0 if truncated.

    Follows the markers, because a thumbnail in the EXIF data has its own scans.
    """
    at = 2
    while at + 5 <= len(data):
        marker = data[at + 1]
        if data[at] != 0xFF or marker == 0xFF:  # bytes that fill the space between segments
            at += 1
        elif marker == 0xDA:  # start of a scan
            return data[at + 4]
        elif marker <= 0x01 or 0xD0 <= marker <= 0xD9:  # markers without content
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return 0


def _sample_bytes(image: Image.Image) -> int:
    """Returns the bytes per pixel in a TIFF file, at least one."""
    return max(1, sum(_tag(image, _BITS, 8)) // 8)


def _tile_bytes(image: Image.Image) -> int:
    """Returns the bytes of one tile of a TIFF file, which may be larger than the image."""
    width, length = (_tag(image, tag, 0)[0] for tag in (_TILE_WIDTH, _TILE_LENGTH))
    return 2 * max(width, 1) * max(length, 1) * _sample_bytes(image) if width or length else 0


def _tag(image: Image.Image, tag: int, default: int) -> list[int]:
    """Returns the positive integers of a TIFF tag, or the default."""
    value = getattr(image, "tag_v2", {}).get(tag) if image.format == "TIFF" else None
    values = value if isinstance(value, tuple) else (value,)
    return [x for x in values if isinstance(x, int) and x > 0] or [default]
