"""Images that unfold to gigabytes are refused by their headers, before anything is decoded."""

import struct

import numpy as np
import pytest

from big_retrieval.data import decoding, image_limits
from tests.data.test_damage import png_header
from tests.fuzz import corpus


def icon(content: bytes) -> bytes:
    """An icon whose directory says 16 x 16, whatever the picture in it is."""
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(content), 22) + content


def tiff(tile: int, width: int = 16) -> bytes:
    """A TIFF file of one tile with the sides `tile`, compressed."""
    tags = {256: width, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile}
    tags |= {324: 8, 325: 0}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags)) + entries + bytes(4)


BOMBS = {
    "a large picture in a small icon": (icon(png_header(9_400, 9_400)), "more than 80 megapixels"),
    "a picture of 64 megapixels in an icon": (icon(png_header(8_000, 8_000)), "would take 732 MiB"),
    "a bitmap in an icon": (
        icon(struct.pack("<IiiHHI4x", 40, 9_400, 18_800, 1, 32, 0)),
        "more than",
    ),
    "a long picture in an icon": (icon(png_header(1, 5_000)), "100 times as long"),
    "a large tile of a small TIFF file": (
        tiff(60_000),
        "would take .* more than 640",
    ),
    "a PNG above 80 megapixels": (png_header(9_000, 9_000), "more than 80 megapixels"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_by_its_header(name):
    data, why = BOMBS[name]
    with pytest.raises(ValueError, match=why):
        decoding.decode(data)


@pytest.mark.parametrize("name", sorted(corpus.images()))
def test_what_decoding_takes_is_estimated_for_every_format(name, monkeypatch):
    monkeypatch.setattr(image_limits, "MOST_BYTES", 50)
    with pytest.raises(ValueError, match=r"pixels .*, which would take 0 MiB to"):
        decoding.decode(corpus.images()[name])


@pytest.mark.parametrize("name", sorted(corpus.images()))
def test_converting_in_bands_changes_no_pixel(name, monkeypatch):
    data = corpus.images()[name]
    whole = decoding.decode(data)
    monkeypatch.setattr(decoding, "BAND", 35)  # two rows of the small ones
    np.testing.assert_array_equal(decoding.decode(data), whole)
