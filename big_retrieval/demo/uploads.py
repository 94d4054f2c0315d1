"""Values of requests, bounded in bytes, pixels, characters and seconds; raises HTTPException."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
import io
from typing import Any

from PIL import Image
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from big_retrieval.data.images.decoding import FORMATS

MAX_BODY = 8 * 2**20  # bytes of a request
DRAINED = 64 * 2**20  # maximum bytes read: browsers show an error only after their upload
MAX_PIXELS = 16_000_000  # of an uploaded image
MAX_QUERY = 1000  # characters
MAX_SECONDS = 20.0  # for the arrival of a body
MAX_ANSWERS = 1000  # largest rank
MAX_PAGE = 100  # answers per request
# Pillow decodes icons while it opens them, before their size is known.
READABLE = tuple(name for name in FORMATS if name != "ICO")


def read_query(request: Request) -> str:
    """Returns the words of the query without control characters; "" if missing."""
    text = request.query_params.get("query", "")
    if len(text) > MAX_QUERY:
        raise HTTPException(414, f"The query has {len(text):,} characters; at most {MAX_QUERY:,}.")
    return " ".join("".join(x if x.isprintable() else " " for x in text).split())


def read_span(request: Request) -> tuple[int, int]:
    """Returns `start` and `k` of the address."""
    start = _read_integer(request, "start", 0, 0, MAX_ANSWERS - 1)
    count = _read_integer(request, "k", 10, 1, MAX_PAGE)
    return start, min(count, MAX_ANSWERS - start)


def _read_integer(request: Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
        return int(text)
    raise HTTPException(400, f"{name} is {text!r:.40}. Give a number from {low} to {high}.")


async def read_image(request: Request) -> bytes:
    """Reads the image file of a request: its body, or the file `image` of a form."""
    try:
        async with asyncio.timeout(MAX_SECONDS):
            data = await _read_file(Request(request.scope, _limited(request.receive)))
    except TimeoutError:
        raise HTTPException(408, f"The image did not arrive in {MAX_SECONDS:.0f} s.") from None
    except ClientDisconnect:
        raise HTTPException(400, "The request ended before its image.") from None
    if not data:
        raise HTTPException(
            400, "No image: send one as the body, or as the file `image` of a form."
        )
    await asyncio.to_thread(check_image, data)
    return data


async def _read_file(request: Request) -> bytes:
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return await request.body()
    async with request.form(max_files=1, max_fields=8) as form:
        file: Any = form.get("image")
        return b"" if file is None or isinstance(file, str) else await file.read()


def _limited(receive: Receive) -> Receive:
    """Returns a `receive` that rejects bodies above `MAX_BODY`."""
    read = 0

    async def limited() -> Message:
        nonlocal read
        message = await receive()
        read += len(message.get("body", b""))
        if read <= MAX_BODY:
            return message
        while message.get("more_body") and read < DRAINED:
            message = await receive()
            read += len(message.get("body", b""))
        raise HTTPException(
            413, f"The request is larger than {MAX_BODY // 2**20} MiB. Send a smaller image."
        )

    return limited


def check_image(data: bytes) -> None:
    """Checks type and size in the header of an image file before anything is decoded."""
    try:
        with Image.open(io.BytesIO(data), formats=READABLE) as image:
            small = image.width * image.height <= MAX_PIXELS
    except Image.DecompressionBombError:
        small = False
    except Exception:  # Pillow raises many types for damaged headers
        names = "JPEG, PNG, WebP, GIF, BMP, TIFF"
        raise HTTPException(415, f"Not an image that can be read. Send {names}.") from None
    if not small:
        raise HTTPException(413, f"The image has more than {MAX_PIXELS // 10**6} megapixels.")
