"""The page of the demo. It works without scripts; demo.js only saves loading the whole page."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from big_retrieval.data.images.decoding import decode
from big_retrieval.data.sources import evenly_spaced
from big_retrieval.demo import answer_list as lists
from big_retrieval.demo.explaining import Explanation
from big_retrieval.demo.service import MOST_ANSWERS, SearchQuery, Service, WayAnswers
from big_retrieval.demo.uploads import MOST_BODY, MOST_QUERY, READABLE
from big_retrieval.demo.ways import ModelWay
from big_retrieval.errors import UserError
from big_retrieval.report.html import Child, Html, join, tag
from big_retrieval.report.numbers import count_of
from big_retrieval.report.thumbnails import SIDE, data_uri

EXAMPLES = 12  # documents that the page begins with
ECHOED = 2 * SIDE  # pixels of an uploaded image that is shown again


class Site:
    """Pages of a demo.

    Args:
      service: what is shown.
      stamp: of addresses of what browsers may keep.
    """

    def __init__(self, service: Service, stamp: str):
        self._demo, self._service, self._stamp = service.demo, service, stamp
        self._images = any("image" in way.reads for way in service.demo.ways)
        self._likes = any("like" in way.reads for way in service.demo.ways)

    async def home(self) -> str:
        """The page that one starts at, with some documents to begin with."""
        count = len(self._demo.collection)
        chosen = evenly_spaced(count, EXAMPLES).tolist()
        previews = await self._service.previews(chosen)
        hint = "Search by words" + (", by an image" if self._images else "")
        hint += ", or begin with one of these." if self._likes else "."
        body = [
            tag("h2", "Some of the documents", id="found", tabindex=-1),
            tag("p", hint, class_="note"),
            lists.plain(self._demo, chosen, previews, self._stamp),
        ]
        return self._page("", body)

    async def answers(self, query: SearchQuery, way: str, found: Sequence[WayAnswers]) -> str:
        """What each way found, side by side."""
        numbers = {answer.number for each in found for answer in each.answers}
        previews = await self._service.previews(sorted(numbers))
        words = query.value if query.kind == "text" else ""
        echo = await asyncio.to_thread(_echo, query.value) if query.kind == "image" else ""
        columns = [
            lists.column(self._demo, query, each, previews, self._stamp, alone=len(found) == 1)
            for each in found
        ]
        body = [
            self._asked(query, echo),
            self._choice(query, way),
            tag("div", columns, class_=f"ways of{min(len(found), 3)}"),
            self._pager(query, way, found),
        ]
        total = sum(len(each.answers) for each in found)
        return self._page(words, body, said=f"{count_of(total, 'answer')} shown.")

    def document(
        self,
        place: int,
        query: SearchQuery,
        text: str,
        found: Sequence[Explanation],
        models: Sequence[ModelWay],
    ) -> str:
        """One document: its image, its text, its terms, and where in the image they are."""
        words = query.value if query.kind == "text" else ""
        name = self._demo.collection.ids[place]
        body = [
            tag("h2", "Document ", tag("bdi", name), id="found", tabindex=-1),
            lists.whole(self._demo, place, text, self._stamp, likes=self._likes),
            [lists.explained(place, query, each, self._stamp) for each in found],
            [lists.attributed(place, words, way, self._stamp) for way in models],
        ]
        return self._page(words, body, said=f"Document {name}.")

    def error(self, status: int, message: str) -> str:
        """What went wrong."""
        sentence = message[:1].upper() + message[1:]
        body = [
            tag("h2", "This does not work", id="found", tabindex=-1),
            tag("p", sentence, class_="problem", role="alert"),
            tag("p", tag("a", "Back to the start", href="/")),
        ]
        return self._page("", body, said=sentence, title=f"{status}")

    def _asked(self, query: SearchQuery, echo: str) -> Html:
        """What was searched for.

        Args:
          query: text, image or document.
          echo: of an image, its address.
        """
        attributes: dict[str, Any] = {"id": "found", "tabindex": -1}
        if query.kind == "text":
            return tag("h2", "“", tag("bdi", query.value), "”", **attributes)
        if query.kind == "image":
            picture = tag("img", src=echo, alt="the image that you sent")
            return tag(
                "div", picture, tag("h2", "Found for this image", **attributes), class_="asked"
            )
        shown = str(self._demo.collection.shown[query.value])
        picture = lists.picture(self._demo, query.value, shown, self._stamp)
        title = ("“", tag("bdi", shown), "”") if shown else f"document {query.value}"
        head = tag("h2", "Like ", title, **attributes)
        return tag("div", picture, head, class_="asked")

    def _choice(self, query: SearchQuery, way: str) -> Html | None:
        """Links to all ways together and to each alone."""
        ways = self._service.ways(query.kind)
        if len(ways) < 2 or query.kind == "image":
            return None
        links = [("", "Side by side"), *((each.key, each.title) for each in ways)]
        items = [
            tag(
                "li",
                tag(
                    "a",
                    title,
                    href=_address(query, way=key),
                    aria_current="true" if key == way else None,
                ),
            )
            for key, title in links
        ]
        return tag("nav", tag("ul", items), class_="choice", aria_label="Ways to search")

    def _pager(self, query: SearchQuery, way: str, found: Sequence[WayAnswers]) -> Html | None:
        """Links to the answers before and behind."""
        if query.kind == "image":
            return None
        links: list[Html] = []
        if query.start:
            start = max(0, query.start - query.count)
            links.append(tag("a", "Previous answers", href=_address(query, way=way, start=start)))
        after = query.start + query.count
        if any(each.more for each in found) and after < MOST_ANSWERS:
            links.append(tag("a", "More answers", href=_address(query, way=way, start=after)))
        return tag("nav", links, class_="pager", aria_label="Further answers") if links else None

    def _page(self, words: str, body: Child, said: str = "", title: str = "") -> str:
        collection = self._demo.collection
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", f"{words or title or 'Search'} · {collection.name}"),
            tag("link", rel="stylesheet", href=f"/style.css?v={self._stamp}"),
            tag("link", rel="icon", href="data:,"),
            tag("script", src=f"/script.js?v={self._stamp}", defer=True),
        )
        top = tag(
            "header",
            tag("a", "Skip to the answers", href="#found", class_="skip"),
            tag(
                "p",
                tag("a", collection.name, href="/", class_="home"),
                tag("span", count_of(len(collection), "document"), class_="note"),
                class_="title",
            ),
            self._forms(words),
            tag("p", said, id="said", role="status", aria_live="polite", class_="hidden"),
        )
        whole = tag("html", head, tag("body", top, tag("main", body)), lang="en")
        return join([Html("<!DOCTYPE html>\n"), whole]) + "\n"

    def _forms(self, words: str) -> Html:
        """The forms of both searches."""
        text = tag(
            "form",
            tag("label", "Search by words", for_="query", class_="hidden"),
            tag(
                "input",
                type="search",
                id="query",
                name="query",
                value=words,
                maxlength=MOST_QUERY,
                required=True,
                placeholder="Search by words",
                autocomplete="off",
                enterkeyhint="search",
            ),
            tag("button", "Search"),
            action="/",
            role="search",
            class_="words",
        )
        if not self._images:
            return tag("div", text, class_="forms")
        kinds = ",".join(f"image/{name.lower()}" for name in READABLE)
        image = tag(
            "form",
            tag("label", "Search by an image", for_="image"),
            tag(
                "input",
                type="file",
                id="image",
                name="image",
                accept=kinds,
                required=True,
                data_most=MOST_BODY,
            ),
            tag("button", "Search by this image"),
            action="/image",
            method="post",
            enctype="multipart/form-data",
            class_="image",
        )
        return tag("div", text, image, class_="forms")


def _address(query: SearchQuery, **more: Any) -> str:
    """The address of a search; what is empty is left out."""
    kept = {key: value for key, value in more.items() if value}
    if query.kind == "text":
        return f"/?{urlencode({'query': query.value} | kept)}"
    return f"/neighbours/{query.value}" + (f"?{urlencode(kept)}" if kept else "")


def _echo(data: bytes) -> str:
    """An uploaded image, small, as an address."""
    try:
        image = Image.fromarray(decode(data))
    except (ValueError, UserError):
        return "data:,"
    image.thumbnail((ECHOED, ECHOED))
    return data_uri(image)
