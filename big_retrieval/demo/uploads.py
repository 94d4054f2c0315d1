"""Reading what is sent to the demo: bounded in bytes, pixels, characters, numbers and time."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from big_retrieval.data.images.decoding import FORMATS
from big_retrieval.demo.service import MOST_ANSWERS, PAGE, SearchQuery

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BODY = 8 * 2**20  # bytes of a request
DRAINED = 64 * 2**20  # bytes of a refused one that are read and dropped, so that it gets an answer
MOST_PIXELS = 16_000_000  # of an uploaded image
MOST_QUERY = 1000  # characters
UPLOADS = 12  # images that are held at a time
WAITING = 64  # that wait for a place, none of their bytes read
SLOW = 20.0  # seconds that a body may take
# Icons are decoded while they are opened, before their size is known.
READABLE = tuple(name for name in FORMATS if name != "ICO")


class Refused(Exception):
    """A request that gets no other answer than why.

    Attributes:
      status: of HTTP.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class BodyLimit:
    """Refuses bodies that are too large, while they come in: nothing more than the limit is held.

    Args:
      app: what is served.
      limit: bytes.
    """

    def __init__(self, app: "ASGIApp", limit: int = MOST_BODY):
        self._app, self._limit = app, limit

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serves a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0

        async def limited() -> "Message":
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._limit:
                await _drain(receive, message)
                raise Refused(
                    413, f"the request is larger than {self._limit // 2**20} MiB; send a smaller "
                    "image."
                )  # fmt: skip
            return message

        await self._app(scope, limited, send)


async def _drain(receive: "Receive", message: "Message") -> None:
    """Reads and drops the rest of a body: a browser shows no answer that comes before its end."""
    dropped = 0
    try:
        async with asyncio.timeout(SLOW):
            while message.get("more_body") and dropped < DRAINED:
                message = await receive()
                dropped += len(message.get("body", b""))
    except TimeoutError:
        return


def query_of(request: "Request") -> str:
    """The words that are searched for, without control characters; "": none.

    Raises:
      Refused: they are too long.
    """
    text = request.query_params.get("query", "")
    if len(text) > MOST_QUERY:
        raise Refused(414, f"the query has {len(text):,} characters; {MOST_QUERY:,} are the most.")
    return " ".join("".join(x if x.isprintable() else " " for x in text).split())


def span_of(request: "Request", count: int = 10) -> tuple[int, int]:
    """(answers before the first wanted one, wanted answers) of the address.

    Args:
      request: the request.
      count: of wanted answers, unless it says so.

    Raises:
      Refused: they are no numbers, or out of range.
    """
    start = whole(request.query_params, "start", 0, 0, MOST_ANSWERS - 1)
    wanted = whole(request.query_params, "k", count, 1, PAGE)
    return start, min(wanted, MOST_ANSWERS - start)


def whole(params: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A whole number of the address.

    Raises:
      Refused: it is something else, or out of range.
    """
    text = params.get(name, "")
    if not text:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
        return int(text)
    raise Refused(400, f"{name} is {text!r:.40}; give a number from {low} to {high}.")


class Uploads:
    """Images that are sent: so many at a time, and none that unfolds to a flood of pixels."""

    def __init__(self) -> None:
        self._places, self._waiting = asyncio.Semaphore(UPLOADS), 0

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """A context in which an image may be read and held; waits for it, reading nothing.

        Raises:
          Refused: too many wait, or it takes too long.
        """
        try:
            if self._waiting >= WAITING:
                raise TimeoutError
            self._waiting += 1
            try:
                async with asyncio.timeout(SLOW):
                    await self._places.acquire()
            finally:
                self._waiting -= 1
        except TimeoutError:
            raise Refused(503, "too many images wait at the moment; try again.") from None
        try:
            yield
        finally:
            self._places.release()

    async def query(self, request: "Request", start: int, count: int) -> SearchQuery:
        """A search by the image of a request: its body, or the field `image` of a form.

        Raises:
          Refused: there is no such image, or it is too large or broken.
        """
        data = await _read(request)
        if not data:
            raise Refused(
                400, "there is no image: send one as the body, or as the file `image` of a form."
            )
        await asyncio.to_thread(check_image, data)
        return SearchQuery("image", data, start, count)


async def _read(request: "Request") -> bytes:
    """The content of the image file that a request has; empty: none."""
    from starlette.requests import ClientDisconnect

    try:
        async with asyncio.timeout(SLOW):
            if not request.headers.get("content-type", "").startswith("multipart/form-data"):
                return await request.body()
            async with request.form(max_files=1, max_fields=8) as form:
                file: Any = form.get("image")
                return b"" if file is None or isinstance(file, str) else await file.read()
    except TimeoutError:
        raise Refused(408, f"the image did not arrive in {SLOW:.0f} seconds.") from None
    except ClientDisconnect:
        raise Refused(400, "the request ended before its image did.") from None


def check_image(data: bytes) -> None:
    """Looks at the head of an image file, before anything is decoded.

    Raises:
      Refused: it is no image, or has too many pixels.
    """
    try:
        with Image.open(io.BytesIO(data), formats=READABLE) as image:
            small = image.width * image.height <= MOST_PIXELS
    except Image.DecompressionBombError:
        small = False
    except Exception:  # readers of heads raise whatever the bytes lead them to
        known = "JPEG, PNG, WebP, GIF, BMP, TIFF"
        raise Refused(415, f"this is no image that can be read; send {known}.") from None
    if not small:
        raise Refused(413, f"the image has more than {MOST_PIXELS // 10**6} megapixels.")
