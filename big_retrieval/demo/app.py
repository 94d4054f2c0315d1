"""The routes of the demo: the page, the same as JSON, pictures, and what becomes of errors."""

# The libraries of the extra need not be installed where types are checked.
# pyright: reportMissingImports=false

import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from big_retrieval.demo import api, pages
from big_retrieval.demo.explaining import Explainer, drawn
from big_retrieval.demo.service import Overloaded, SearchQuery, Service, WayAnswers
from big_retrieval.demo.uploads import BodyLimit, Refused, Uploads, query_of, span_of
from big_retrieval.errors import Damaged, UserError
from big_retrieval.report.html import style

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)
# Nothing from elsewhere, no script or style inside the page: what a caption says stays a text.
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
KEPT = {"cache-control": "private, max-age=86400, immutable"}  # of addresses with the stamp
RETRY = {"retry-after": "1"}
STRANGER = "this demo is for its own machine and has no such host name; ask 127.0.0.1 or localhost."


def make_app(service: Service, hosts: Sequence[str] = ("*",)) -> "Starlette":
    """The application.

    Args:
      service: what answers; it is closed as the application ends.
      hosts: names by which it may be addressed, so that no page of elsewhere reads from it by a
        name of its own; "*": any.
    """

    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.routing import Route

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        del app
        yield
        service.close()

    routes = _Routes(service)
    return Starlette(
        routes=[
            Route("/", routes.search),
            Route("/image", routes.by_image, methods=["POST"]),
            Route("/neighbours/{number:int}", routes.neighbours),
            Route("/documents/{number:int}", routes.document),
            Route("/pictures/{number:int}", routes.picture),
            Route("/style.css", routes.style),
            Route("/script.js", routes.script),
            Route("/api", routes.about),
            Route("/api/health", routes.health),
            Route("/api/search", routes.search, methods=["GET"]),
            Route("/api/search", routes.by_image, methods=["POST"]),
            Route("/api/neighbours/{number:int}", routes.neighbours),
            Route("/api/documents/{number:int}", routes.document),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(_Hosts, hosts=hosts),
            Middleware(BodyLimit),
        ],
        exception_handlers={
            HTTPException: routes.http_error,
            Refused: routes.refused,
            Overloaded: routes.overloaded,
            Damaged: routes.damaged,
            UserError: routes.mistake,
            Exception: routes.bug,
        },
        lifespan=lifespan,
    )


class _Headers:
    """Adds the headers that keep a page to itself."""

    def __init__(self, app: "ASGIApp"):
        self._app = app

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def with_headers(message: "Message") -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)


class _Hosts:
    """Refuses requests by other names, in words that tell nothing of what is searched."""

    def __init__(self, app: "ASGIApp", hosts: Sequence[str]):
        from starlette.middleware.trustedhost import TrustedHostMiddleware
        from starlette.responses import JSONResponse, PlainTextResponse

        async def passed(scope: "Scope", receive: "Receive", send: "Send") -> None:
            del receive, send
            scope["known_host"] = True

        self._check: ASGIApp = TrustedHostMiddleware(passed, list(hosts), www_redirect=False)
        self._app, self._json, self._plain = app, JSONResponse, PlainTextResponse

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        async def dropped(message: "Message") -> None:
            del message

        await self._check(scope, receive, dropped)
        reply: ASGIApp = self._app
        if not scope.get("known_host"):
            json = scope["path"].startswith("/api")
            reply = (
                self._json(_error_of(400, STRANGER), 400) if json else self._plain(STRANGER, 400)
            )
        await reply(scope, receive, send)


def _error_of(status: int, message: str) -> dict[str, Any]:
    """An error for programs."""
    return {"error": {"status": status, "message": message}}


def _wants_json(request: "Request") -> bool:
    return request.url.path.startswith("/api")


class _Routes:
    """What each address answers."""

    def __init__(self, service: Service):
        from starlette.responses import HTMLResponse, JSONResponse, Response

        self._html, self._json, self._plain = HTMLResponse, JSONResponse, Response
        self._service, self._uploads = service, Uploads()
        # In addresses of what browsers may keep: another demo at the same address has another one.
        self._stamp = secrets.token_hex(4)
        self._style = style("big_retrieval.report", "style.css") + _file("demo.css")
        self._script = _file("demo.js")
        self._site = pages.Site(service, self._stamp)

    async def search(self, request: "Request") -> "Response":
        """Answers to words; without words the page that one starts at."""
        words, way = query_of(request), request.query_params.get("way", "")
        start, count = span_of(request)
        if words:
            query = SearchQuery("text", words, start, count)
            return await self._answer(request, query, way)
        if _wants_json(request):
            raise Refused(400, "query is missing: /api/search?query=words")
        return self._html(await self._site.home())

    async def by_image(self, request: "Request") -> "Response":
        """Answers to an image that is sent."""
        start, count = span_of(request)
        self._service.ways("image")
        async with self._uploads.place():
            query = await self._uploads.query(request, start, count)
            return await self._answer(request, query, request.query_params.get("way", ""))

    async def neighbours(self, request: "Request") -> "Response":
        """The documents that are most like a document."""
        start, count = span_of(request)
        query = SearchQuery("like", self._number(request), start, count)
        return await self._answer(request, query, request.query_params.get("way", ""))

    async def _answer(self, request: "Request", query: SearchQuery, way: str) -> "Response":
        found: list[WayAnswers] = await self._service.search(query, way)
        if _wants_json(request):
            return self._json(api.answers(self._service.demo, query, found, self._stamp))
        return self._html(await self._site.answers(query, way, found))

    async def document(self, request: "Request") -> "Response":
        """A document, with what it has in common with a query or another document."""
        number, words = self._number(request), query_of(request)
        like = request.query_params.get("like", "")
        query = SearchQuery("text", words) if words else SearchQuery("like", number)
        if like and not words:
            query = SearchQuery("like", self._known(like))
        text = await self._service.text(number)
        found = await self._service.explain(Explainer.terms, number, query.kind, query.value)
        if _wants_json(request):
            return self._json(
                api.document(self._service.demo, number, query, text, found, self._stamp)
            )
        models = await self._service.explain(Explainer.attributable) if words else []
        return self._html(self._site.document(number, query, text, found, models))

    async def picture(self, request: "Request") -> "Response":
        """The image of a document; or where in it a term, or the words of a query, come from."""
        number, words = self._number(request), query_of(request)
        term, way = request.query_params.get("term", ""), request.query_params.get("way", "")
        if term:
            found = await self._service.explain(Explainer.heat, number, term, way)
        elif words:
            found = drawn(await self._service.explain(Explainer.attribution, number, words, way))
        else:
            found = await self._service.picture(number)
        if found is None:
            raise Refused(404, f"document {number} has no picture.")
        kept = KEPT if request.query_params.get("v") == self._stamp else None
        return self._plain(found[1], media_type=found[0], headers=kept)

    async def about(self, request: "Request") -> "Response":
        """What is searched, by which ways, and the addresses."""
        del request
        return self._json(api.about(self._service.demo))

    async def health(self, request: "Request") -> "Response":
        """That it answers, for programs that watch."""
        del request
        seconds = time.time() - self._service.started
        waiting = {
            "documents": len(self._service.demo.collection),
            "waiting": self._service.waiting,
        }
        return self._json({"status": "ok", "seconds": round(seconds, 1), **waiting})

    async def style(self, request: "Request") -> "Response":
        """The style sheet."""
        del request
        return self._plain(self._style, media_type="text/css")

    async def script(self, request: "Request") -> "Response":
        """The script, without which the page works, too."""
        del request
        return self._plain(self._script, media_type="text/javascript")

    def _number(self, request: "Request") -> int:
        return self._known(str(request.path_params["number"]))

    def _known(self, text: str) -> int:
        """The number of a document.

        Raises:
          Refused: there is no such document.
        """
        count = len(self._service.demo.collection)
        if not (text.isascii() and text.isdigit() and len(text) < 16 and int(text) < count):
            raise Refused(404, f"there is no document {text:.20}; there are 0 to {count - 1}.")
        return int(text)

    def http_error(self, request: "Request", problem: Any) -> "Response":
        """The answer to an address or method that there is not."""
        message = {404: "there is no such page.", 405: "this address takes no such method."}
        said = message.get(problem.status_code, str(problem.detail))
        return self._error(request, problem.status_code, said, problem.headers)

    def refused(self, request: "Request", problem: Any) -> "Response":
        """The answer to a request that is refused."""
        headers = RETRY if problem.status == 503 else None
        return self._error(request, problem.status, str(problem), headers)

    def overloaded(self, request: "Request", problem: Exception) -> "Response":
        """The answer when too much is asked for."""
        del problem
        return self._error(request, 503, "too much is asked for at the moment; try again.", RETRY)

    def damaged(self, request: "Request", problem: Any) -> "Response":
        """The answer to an image that cannot be decoded."""
        told = problem.why.startswith(problem.place)  # such as "the image is ..."
        return self._error(request, 422, f"{problem.why}." if told else str(problem))

    def mistake(self, request: "Request", problem: Exception) -> "Response":
        """The answer to what cannot be asked."""
        return self._error(request, 400, str(problem))

    def bug(self, request: "Request", problem: Exception) -> "Response":
        """The answer where this program is wrong."""
        log.error(f"{request.url.path}: {type(problem).__name__}: {problem}")
        return self._error(request, 500, "the demo cannot answer this; its terminal says why.")

    def _error(
        self,
        request: "Request",
        status: int,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> "Response":
        if _wants_json(request):
            return self._json(_error_of(status, message), status, headers=headers)
        return self._html(self._site.error(status, message), status, headers=headers)


def _file(name: str) -> str:
    return resources.files("big_retrieval.demo").joinpath(name).read_text(encoding="utf-8")
