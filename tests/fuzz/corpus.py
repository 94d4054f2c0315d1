"""What the fuzzer starts from: small images of all kinds and texts of all kinds, made by code."""

import functools
import json
import re
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

from tests.data.files import encoded

XMP = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'><tiff:Orientation>6</tiff:Orientation></x:xmpmeta>"
# Interlaced PNG files: top, left, and the steps down and across of each pass.
_PASSES = (
    (0, 0, 8, 8),
    (0, 4, 8, 8),
    (4, 0, 8, 4),
    (0, 2, 4, 4),
    (2, 0, 4, 2),
    (0, 1, 2, 2),
    (1, 0, 2, 1),
)


@functools.cache
def images() -> dict[str, bytes]:
    """Name -> content of an image file that can be decoded."""
    rng = np.random.default_rng(0)
    rgb = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    wide = rgb.resize((40, 24))
    deep = Image.fromarray(rng.integers(0, 65536, (12, 16), dtype=np.uint16))
    whole = Image.fromarray(np.minimum(rng.integers(0, 70000, (12, 16), dtype=np.int32), 65535))
    real = Image.fromarray(rng.normal(size=(12, 16)).astype(np.float32))
    palette, alpha = rgb.convert("P"), rgb.convert("RGBA")
    alpha.putalpha(Image.fromarray(rng.integers(0, 256, (12, 16), dtype=np.uint8)))
    cmyk, grey, black = rgb.convert("CMYK"), rgb.convert("L"), rgb.convert("1")
    more = [rgb.rotate(90 * turn) for turn in (1, 2)]
    extra: dict[str, Any] = {"exif": _exif(), "icc_profile": _profile()}
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", "a" * 100, zip=True)
    text.add_itxt("XML:com.adobe.xmp", XMP.decode())
    made = {
        "png": encoded(rgb, "PNG", pnginfo=text, **extra),
        "png-16": encoded(deep, "PNG"),
        "png-palette": encoded(palette, "PNG", transparency=3),
        "png-alpha": encoded(alpha, "PNG", **extra),
        "png-la": encoded(alpha.convert("LA"), "PNG"),
        "png-1": encoded(black, "PNG"),
        "png-rgba16": _deep_png(),
        "apng": encoded(rgb, "PNG", save_all=True, append_images=more, duration=9),
        "jpeg": encoded(wide, "JPEG", xmp=XMP, **extra),
        "jpeg-large": encoded(rgb.resize((96, 80)), "JPEG", quality=50),
        "jpeg-progressive": encoded(wide, "JPEG", progressive=True, **extra),
        "jpeg-grey": encoded(grey, "JPEG"),
        "jpeg-cmyk": encoded(cmyk, "JPEG", quality=95),
        "mpo": encoded(rgb, "MPO", save_all=True, append_images=more),
        "webp": encoded(rgb, "WEBP", xmp=XMP, **extra),
        "webp-lossless": encoded(alpha, "WEBP", lossless=True),
        "webp-moving": encoded(rgb, "WEBP", save_all=True, append_images=more, duration=9),
        "gif": encoded(palette, "GIF", transparency=1, comment=b"hello"),
        "gif-moving": encoded(palette, "GIF", save_all=True, append_images=more, duration=9),
        "bmp": encoded(rgb, "BMP"),
        "bmp-palette": encoded(palette, "BMP"),
        "bmp-alpha": encoded(alpha, "BMP"),
        "tiff": encoded(rgb, "TIFF", **extra),
        "tiff-16": encoded(deep, "TIFF"),
        "tiff-i": encoded(whole, "TIFF"),
        "tiff-f": encoded(real, "TIFF"),
        "tiff-cmyk": encoded(cmyk, "TIFF"),
        "tiff-many": encoded(rgb, "TIFF", save_all=True, append_images=more),
        "ppm": encoded(rgb, "PPM"),
        "pgm-16": encoded(deep, "PPM"),
        "pbm": encoded(black, "PPM"),
        "ppm-plain": b"P3\n# words\n3 2\n255\n" + b"1 2 3 " * 6,
        "avif": encoded(rgb, "AVIF", speed=10, **extra),
        "avif-alpha": encoded(alpha, "AVIF", speed=10),
        "avif-moving": _undated(encoded(rgb, "AVIF", save_all=True, append_images=more, speed=10)),
        "jp2": encoded(rgb, "JPEG2000"),
        "jp2-alpha": encoded(alpha, "JPEG2000"),
        "j2k-16": encoded(deep, "JPEG2000", no_jp2=True),
    }
    for name in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits", "tiff_adobe_deflate", "zstd"):
        made[f"tiff-{name}"] = encoded(rgb, "TIFF", compression=name)
    for name in ("group3", "group4", "tiff_ccitt"):
        made[f"tiff-{name}"] = encoded(black, "TIFF", compression=name)
    return made


def texts() -> list[str]:
    """Texts that tokenizers and readers of tables must bear."""
    planes = "".join(chr(plane * 0x10000 + 0x100 + step) for plane in range(17) for step in (0, 77))
    return [
        "a red circle is left of a blue square",
        "",
        " \t\u00a0\u2003",
        "NUL \0 and other controls \x01\x1b\x7f\x85",
        "\ud800 half of a pair, \udfff the other",
        planes,
        "e" + "\u0301" * 2000,
        "Z" + "\u0300\u0489\u20dd" * 300,
        "\u202eright to left\u202c \u05d0\u05d1 \u0627\u0644",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f",
        "\u4e00\u9fff\u3042\uac00 \u0e01\u0e33 \u0915\u094d\u0937",
        "[CLS] [SEP] [MASK] [UNK][PAD] <|startoftext|><|endoftext|>",
        "x" * 3000,
        "&lt;p&gt;&amp;amp;&#x110000;&#0; &eacute",
        '=HYPERLINK("a")\r\n@SUM(1)',
        "\ufeff\ufffe\uffff\ufdd0\ufffd",
        "\u0130\u1e9e\ufb01\u1fd3 \u2160\u00bd\u0663",
        "Ã©Ã¨ \u0080\u0099",
    ]


def lines() -> list[bytes]:
    """Lines of JSONL files."""
    rows: list[dict[str, Any]] = [{"captions": text, "score": 3} for text in texts()]
    rows += [
        {"captions": texts()[:4], "title": "t", "query_id": 7, "score": 2.5},
        {"captions": "a", "negatives": [{"title": "a", "text": "b", "pool": 1}, "c"], "score": "4"},
        {"captions": "a", "score": None, "nested": [[[{"a": [1e300, -0.0, True]}]]]},
    ]
    huge = b'{"captions": "a", "score": 1' + b"0" * 400 + b"}"
    deep = b'{"captions": ' + b"[" * 50 + b"]" * 50 + b"}"
    odd = b'{"captions": "a", "score": 1e400, "title": NaN, "x": -Infinity}'
    return [*(json.dumps(row).encode() for row in rows), huge, deep, odd]


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F], exif[0x011A] = 6, "maker", 72.0
    exif.get_ifd(0x8769)[0x9003] = "2020:01:01 00:00:00"
    exif.get_ifd(0x8825)[0x0002] = (1.0, 2.0, 3.0)
    return exif.tobytes()


def _undated(movie: bytes) -> bytes:
    """A movie without the times of its making."""
    return re.sub(
        rb"(mvhd|tkhd|mdhd)(\x01...)(.{16})", rb"\1\2" + bytes(16), movie, flags=re.DOTALL
    )


def _profile() -> bytes:
    from PIL import ImageCms

    found = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    found[24:36] = bytes(12)  # the time of its making: a case is a function of its number alone
    return bytes(found)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG file, with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _deep_png(width: int = 16, height: int = 12) -> bytes:
    """RGBA of 16 bits, interlaced, which Pillow reads and does not write."""
    head = struct.pack(">IIBBBBB", width, height, 16, 6, 0, 0, 1)
    rng, rows = np.random.default_rng(1), b""
    for top, left, down, across in _PASSES:
        columns = len(range(left, width, across))
        rows += b"".join(b"\0" + rng.bytes(8 * columns) for _ in range(top, height, down))
    parts = [png_chunk(b"IHDR", head), png_chunk(b"IDAT", zlib.compress(rows))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + png_chunk(b"IEND", b"")
