"""Listings as tables, as files and as one page."""

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from big_retrieval.explain import pictures
from big_retrieval.explain.listing import Listed
from big_retrieval.manifest import write_bytes
from big_retrieval.report.html import Html, join, tag
from big_retrieval.report.style import CSS

PAGE = "explain.html"
_OWN_CSS = """
.parts { display: flex; flex-wrap: wrap; gap: 18px 28px; align-items: flex-start; }
.parts figure { margin: 0; max-width: 100%; }
.parts img { display: block; max-width: 100%; height: auto; border-radius: 4px; }
.parts img.cloud { width: 300px; }
"""


@dataclass(frozen=True)
class Part:
    """One listing.

    Attributes:
      name: of its files.
      title: what it is of.
      words: all of its words with their values, strongest first.
      shares: of the score, of as many words; (): they are no products.
      log: whether its cloud is by log(1 + value).
      note: a sentence.
      drawings: further pictures: (name, caption, picture).
    """

    name: str
    title: str
    words: Listed
    shares: Sequence[float] = ()
    log: bool = False
    note: str = ""
    drawings: Sequence[tuple[str, str, Image.Image]] = field(default_factory=tuple)


def table(part: Part, count: int) -> str:
    """A title, a note, and a row for each of the first `count` words."""
    lines = [part.title] + ([f"  {part.note}"] if part.note else [])
    kept = part.words[:count]
    if not kept:
        return "\n".join([*lines, "  none"])
    wide = max(len(word) for word, _ in kept)
    digits = min(max(3 - math.floor(math.log10(kept[0][1])), 0), 9) if kept[0][1] > 0 else 4
    values = [f"{value:.{digits}f}" for _, value in kept]  # four digits of the largest
    right = max(map(len, values))
    for place, (word, _) in enumerate(kept):
        share = f"  {pictures.percent(part.shares[place]):>6}" if part.shares else ""
        lines.append(f"  {place + 1:>3}  {word:<{wide}}  {values[place]:>{right}}{share}")
    rest = len(part.words) - len(kept)
    return "\n".join([*lines, f"  and {rest:,} more" if rest else ""]).rstrip()


def write(parts: Sequence[Part], count: int, folder: Path, title: str) -> Path:
    """Writes bars (SVG), the other pictures (PNG) and one page that holds all of them.

    Args:
      parts: the listings.
      count: words of bars and tables.
      folder: is made where it is not there.
      title: of the page.

    Returns:
      The page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lost = pictures.missing()
    sections = []
    for place, part in enumerate(parts, 1):
        name = f"{place:02}-{_plain(part.name)}"
        rows = pictures.bar_rows(part.words[:count], part.shares[:count])
        drawn = list(part.drawings)
        if not lost and any(value > 0 for _, value in part.words):
            drawn.append(("cloud", "", pictures.cloud(part.words, log=part.log)))
        if rows:
            svg = pictures.bars(part.title, rows, alone=True)
            write_bytes(folder / f"{name}-bars.svg", svg.encode())
        for each, _, image in drawn:
            write_bytes(folder / f"{name}-{_plain(each)}.png", _png(image))
        sections.append(_section(part, rows, drawn))
    body = [tag("p", lost.capitalize(), class_="note") if lost else None, *sections]
    write_bytes(folder / PAGE, _page(title, body).encode())
    return folder / PAGE


def _section(
    part: Part,
    rows: Sequence[tuple[str, float, str]],
    drawn: Sequence[tuple[str, str, Image.Image]],
) -> Html:
    figures = [
        tag(
            "figure",
            tag("img", src=_uri(image), alt=f"{name} of {part.title}", class_=name.split("-")[0]),
            tag("figcaption", caption) if caption else None,
        )
        for name, caption, image in drawn
    ]
    figure = tag("figure", pictures.bars(part.title, rows)) if rows else tag("p", "No words.")
    note = tag("p", part.note, class_="note") if part.note else None
    head = tag("h2", tag("bdi", part.title))
    return tag("section", head, note, tag("div", figure, figures, class_="parts"))


def _page(title: str, body: Sequence[Html | None]) -> str:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(CSS + _OWN_CSS)),
    )
    page = tag("html", head, tag("body", tag("main", tag("h1", title), body)), lang="en")
    return join([Html("<!DOCTYPE html>\n"), page]) + "\n"


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return stream.getvalue()


def _uri(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(_png(image)).decode()}"


def _plain(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] or "x"
