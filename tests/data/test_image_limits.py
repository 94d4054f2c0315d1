"""Images that expand to gigabytes are rejected by their headers, before decoding."""

import io
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps, PngImagePlugin

from big_retrieval.data.images import bands, decoding, limits
from tests.data.files import png_file, png_header
from tests.fuzz import corpus


def tiff(tile: int, width: int = 16) -> bytes:
    """A TIFF file of one tile with the sides `tile`, compressed."""
    tags = {256: width, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile}
    tags |= {324: 8, 325: 0}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (tiff(60_000), "would take .* more than 640"),
        (png_header(9_000, 9_000), "more than 80 megapixels"),
    ],
    ids=["large tile of a small TIFF file", "PNG above 80 megapixels"],
)
def test_decode_rejects_a_bomb_by_its_header(data, reason):
    with pytest.raises(ValueError, match=reason):
        decoding.decode(data)


@pytest.mark.parametrize("name", sorted(corpus.images()))
def test_every_format_has_an_estimate_and_bands_change_no_pixel(name, monkeypatch):
    data = corpus.images()[name]
    whole = decoding.decode(data)
    monkeypatch.setattr(bands, "BAND", 35)  # two rows of the small ones
    np.testing.assert_array_equal(decoding.decode(data), whole)
    monkeypatch.setattr(limits, "MOST_BYTES", 50)
    with pytest.raises(ValueError, match=r"pixels .*, which would take 0 MiB to"):
        decoding.decode(data)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_part_of_turned_image_equals_crop_of_whole(orientation, monkeypatch):
    monkeypatch.setattr(bands, "BAND", 35)
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (13, 21, 4), np.uint8)
    for mode, kind in (("RGB", "PNG"), ("RGBA", "PNG"), ("L", "PNG"), ("CMYK", "TIFF")):
        image = Image.fromarray(pixels).convert("RGB").convert(mode)
        data = corpus.encoded(image, kind, exif=exif)
        whole = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
        np.testing.assert_array_equal(decoding.decode(data), whole)
        part = decoding.decode_part(data, lambda h, w: (2, 3, h - 4, w - 5), 8)
        np.testing.assert_array_equal(np.asarray(part), whole[2:-2, 3:-2])


PEAK = """
import re, sys
from pathlib import Path
from big_retrieval.data.images import decoding

def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

data, before = Path(sys.argv[1]).read_bytes(), peak()
image = decoding.decode_part(data, lambda h, w: (0, 0, h, w), 224, reduced=False)
print((peak() - before) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "CMYK"), ("PNG", "RGBA"), ("TIFF", "I;16")]
)
def test_decoding_a_turned_image_stays_below_the_estimate(kind, mode, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = corpus.encoded(Image.new(mode, (4_000, 4_000)), kind, exif=exif)
    (tmp_path / "image").write_bytes(data)
    args = [sys.executable, "-c", PEAK, str(tmp_path / "image")]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    estimated = 4_000**2 * limits._bytes_per_pixel(Image.open(io.BytesIO(data)), data)
    assert int(done.stdout) < estimated + 24 * 2**20  # libraries that are loaded, and bands


def test_decode_rejects_before_it_decodes(monkeypatch):
    decoded = []
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda self: decoded.append(self))
    monkeypatch.setattr(limits, "MOST_BYTES", 50)
    with pytest.raises(ValueError, match="would take 0 MiB"):
        decoding.decode(corpus.images()["png-palette"])
    assert not decoded


def test_decode_rejects_a_png_file_with_damaged_pixels():
    rows = b"".join(bytes([row]) + bytes(48) for row in range(12))  # there are five filters
    with pytest.raises(ValueError, match="not a readable image"):
        decoding.decode(png_file(16, 12, rows))


def photograph(megapixels: int, **keys) -> tuple[Image.Image, bytes]:
    """Returns an open photograph, turned, with a thumbnail in its EXIF data and a false size.

    Also returns the content of its file.
    """
    small = corpus.encoded(Image.new("RGB", (16, 12)), "JPEG")
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, small  # the thumbnail's bytes in any tag
    data = corpus.encoded(Image.new("RGB", (16, 12)), "JPEG", exif=exif, **keys)
    image = Image.open(io.BytesIO(data))
    image._size = (megapixels * 1_000, 1_000)
    return image, data


def test_large_photographs_are_read_and_progressive_ones_count_more():
    for image, data in (photograph(79), photograph(48, progressive=True)):
        limits.check_size(image, data)
    with pytest.raises(limits.Unreasonable, match="would take"):
        limits.check_size(*photograph(79, progressive=True))


def test_sequential_photographs_of_several_scans_count_more():
    image, data = photograph(79)
    start = data.rindex(b"\xff\xda")
    first = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"  # a scan of one component
    for scans in (first, b"\xff" * 8 + first, b""):  # alone, after filling bytes, truncated
        with pytest.raises(limits.Unreasonable, match="would take"):
            limits.check_size(image, data[:start] + scans)


def test_png_files_of_fifty_megapixels_are_read():
    for mode in ("RGB", "RGBA", "P", "L"):
        data = corpus.encoded(Image.new(mode, (16, 12)), "PNG")
        image = Image.open(io.BytesIO(data))
        image._size = (50_000, 1_000)
        limits.check_size(image, data)
