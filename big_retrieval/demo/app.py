"""Routes of the demo: pages, the same answers as JSON, pictures, and errors."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from big_retrieval.data.sources import evenly_spaced
from big_retrieval.demo.content import Content
from big_retrieval.demo.pages import Pages, thumbnail
from big_retrieval.demo.service import Overloaded, SearchQuery, Service
from big_retrieval.demo.uploads import read_image, read_query, read_span
from big_retrieval.errors import Damaged, UserError
from big_retrieval.report.html import style

PACKAGE = "big_retrieval.demo"
log = logging.getLogger(__name__)
# Scripts and styles only as files of this host: a document's text cannot run as code.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
CACHED = {"cache-control": "private, max-age=86400, immutable"}  # for picture URLs with the stamp
RETRY = {"retry-after": "1"}
EXAMPLES = 12  # documents on the first page
UPLOADS = 12  # uploaded images in memory


def make_app(service: Service, hosts: Sequence[str] = ("*",)) -> Starlette:
    """Builds the application, which closes the service at its end.

    Args:
      hosts: accepted Host headers of requests; "*" for any. A list prevents DNS rebinding: pages of
        another site reading the demo by a name that resolves to this machine.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    routes = _Routes(service)
    return Starlette(
        routes=[
            Route("/", routes.search),
            Route("/image", routes.search_image, methods=["POST"]),
            Route("/neighbors/{number}", routes.neighbors),
            Route("/documents/{number}", routes.document),
            Route("/pictures/{number}", routes.picture),
            Route("/style.css", routes.style),
            Route("/script.js", routes.script),
            Route("/api", routes.overview),
            Route("/api/health", routes.health),
            Route("/api/search", routes.search, methods=["GET"]),
            Route("/api/search", routes.search_image, methods=["POST"]),
            Route("/api/neighbors/{number}", routes.neighbors),
            Route("/api/documents/{number}", routes.document),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers=dict.fromkeys(
            (HTTPException, Overloaded, UserError, Exception), routes.error
        ),
        lifespan=lifespan,
    )


class _Headers:
    """Adds `HEADERS` to every response."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self._app(scope, receive, send_with_headers)


class _Routes:
    """Handlers of the routes; addresses below /api return JSON instead of HTML."""

    def __init__(self, service: Service):
        # New for each start: browsers must not show cached pictures of an earlier demo.
        self._service, self._stamp = service, secrets.token_hex(4)
        self._collection, self._uploads = service.demo.collection, asyncio.Semaphore(UPLOADS)
        self._content = Content(service.demo, self._stamp)
        self._pages = Pages(service.demo, self._stamp)

    async def search(self, request: Request) -> Response:
        """Returns the results of a text query; without a query, the home page."""
        words, (start, count) = read_query(request), read_span(request)
        if words:
            return await self._answer(request, SearchQuery("text", words, start, count))
        if _wants_json(request):
            raise HTTPException(400, "query is missing: /api/search?query=words")
        documents = evenly_spaced(len(self._collection), EXAMPLES).tolist()
        items = [self._content.item(i, self._collection.preview(i)) for i in documents]
        return HTMLResponse(self._pages.render("home", items=items))

    async def search_image(self, request: Request) -> Response:
        """Returns the results for an uploaded image."""
        start, count = read_span(request)
        self._service.modes("image")
        async with self._uploads:
            query = SearchQuery("image", await read_image(request), start, count)
            return await self._answer(request, query)

    async def neighbors(self, request: Request) -> Response:
        """Returns the nearest neighbors of a document."""
        document = self._document_index(request.path_params["number"])
        return await self._answer(request, SearchQuery("like", document, *read_span(request)))

    async def _answer(self, request: Request, query: SearchQuery) -> Response:
        key = request.query_params.get("mode", "")
        results = await self._service.search(query, key)
        content = self._content.answers(query, results)
        if _wants_json(request):
            return JSONResponse(content)
        shown: dict[str, Any] = {}
        if query.kind == "text":
            shown["words"] = query.value
        elif query.kind == "like":
            shown["original"] = self._content.item(query.value, self._collection.shown[query.value])
        else:
            shown["thumbnail"] = await asyncio.to_thread(thumbnail, query.value)
        choices = [(mode.key, mode.title) for mode in self._service.modes(query.kind)]
        count = sum(len(result.answers) for result in results)
        status = f"{count:,} answers shown."
        return HTMLResponse(
            self._pages.render(
                "answers", **content, **shown, choices=choices, chosen=key, status=status
            )
        )

    async def document(self, request: Request) -> Response:
        """Returns a document, with the terms that it shares with a query or another document."""
        index, words = self._document_index(request.path_params["number"]), read_query(request)
        like = request.query_params.get("like", "") or str(index)
        query = SearchQuery("text", words)
        if not words:
            query = SearchQuery("like", self._document_index(like))
        text = await asyncio.to_thread(self._collection.text, index)
        explainer = self._service.explainer
        terms = await self._service.explain(explainer.terms, index, query.kind, query.value)
        models = await self._service.explain(explainer.attributable) if words else []
        content = self._content.document(index, query, text, terms, models)
        if _wants_json(request):
            return JSONResponse(content)
        status = f"Document {self._collection.ids[index]}."
        return HTMLResponse(self._pages.render("document", **content, words=words, status=status))

    async def picture(self, request: Request) -> Response:
        """Returns a document's image, or a heat map of a term or of the words of a query."""
        index, words = self._document_index(request.path_params["number"]), read_query(request)
        term, key = request.query_params.get("term", ""), request.query_params.get("mode", "")
        explainer = self._service.explainer
        if term:
            file = await self._service.explain(explainer.heat_map, index, term, key)
        elif words:
            file = await self._service.explain(explainer.attribution, index, words, key)
        else:
            file = await asyncio.to_thread(self._collection.picture, index)
        if file is None:
            raise HTTPException(404, f"Document {index} has no picture.")
        headers = CACHED if request.query_params.get("v") == self._stamp else None
        return Response(file[1], media_type=file[0], headers=headers)

    def overview(self, _: Request) -> Response:
        """Returns the collection, the modes, the limits and the addresses."""
        return JSONResponse(self._content.overview())

    def health(self, _: Request) -> Response:
        """Returns the status of the server, for monitoring."""
        seconds = round(time.time() - self._service.started, 1)
        counts = {"documents": len(self._collection), "waiting": self._service.waiting}
        return JSONResponse({"status": "ok", "seconds": seconds, **counts})

    def style(self, _: Request) -> Response:
        """Returns the style sheet."""
        sheet = style("big_retrieval.report", "style.css") + style(PACKAGE, "demo.css")
        return Response(sheet, media_type="text/css")

    def script(self, _: Request) -> Response:
        """Returns the script."""
        return Response(style(PACKAGE, "demo.js"), media_type="text/javascript")

    def _document_index(self, text: str) -> int:
        count = len(self._collection)
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) < count):
            raise HTTPException(404, f"No document {text:.20}: 0 to {count - 1} exist.")
        return int(text)

    def error(self, request: Request, error: Exception) -> Response:
        """Returns an error as JSON or as a page; a bug is logged and not shown."""
        headers = None
        match error:
            case HTTPException():
                status, message, headers = error.status_code, str(error.detail), error.headers
            case Overloaded():
                status, message, headers = 503, "Too many requests wait. Try again.", RETRY
            case Damaged():
                repeats = error.why.startswith(error.place)  # such as "the image is ..."
                status, message = 422, f"{error.why}." if repeats else str(error)
            case UserError():
                status, message = 400, str(error)
            case _:
                log.error(f"{request.url.path}: {type(error).__name__}: {error}")
                status, message = 500, "Internal error: see the terminal of the demo."
        if _wants_json(request):
            body = {"error": {"status": status, "message": message}}
            return JSONResponse(body, status, headers=headers)
        sentence = message[:1].upper() + message[1:]
        page = self._pages.render("error", status=sentence, title=str(status))
        return HTMLResponse(page, status, headers=headers)


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith("/api")
