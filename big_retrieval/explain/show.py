"""Listings as tables, as files and as one page."""

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.html import Html, document, tag
from big_retrieval.sparse.listing import Listed

PAGE = "explain.html"
_OWN_CSS = """
main { padding-top: 32px; padding-bottom: 40px; }
.parts { display: grid; grid-template-columns: minmax(0, 420px) minmax(0, 1fr); gap: 18px 28px; }
.parts figure { margin: 0; max-width: 100%; }
.parts > div { display: grid; gap: 14px; align-content: start; }
.parts svg { display: block; max-width: 100%; height: auto; }
.parts img { display: block; max-width: 100%; height: auto; border-radius: 4px; }
.parts img.cloud { width: 300px; }
.parts img.box { width: 560px; background: #ffffff; }
.parts figcaption { color: var(--soft); font-size: 13px; padding-top: 2px; max-width: 560px; }
.parts > .pictures { display: flex; flex-wrap: wrap; gap: 18px 14px; align-items: flex-start; }
@media (max-width: 900px) { .parts { grid-template-columns: minmax(0, 1fr); } }
@media (max-width: 520px) {
  .pictures figure:not(.box) { max-width: calc(50% - 7px); }
}
"""
CLOUD = "The larger a word, the larger its value."
LOG_CLOUD = "The larger a word, the larger its part of the score."


@dataclass(frozen=True)
class Listing:
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


def table(part: Listing, count: int) -> str:
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


def write(
    parts: Sequence[Listing], count: int, folder: Path, title: str, reading: str = ""
) -> Path:
    """Writes bars (SVG), the other pictures (PNG) and one page that holds all of them.

    Args:
      parts: the listings.
      count: words of bars and tables.
      folder: is made where it is not there.
      title: of the page.
      reading: how it is read.

    Returns:
      The page.
    """
    make_folder(folder)
    lost = pictures.missing()
    sections = []
    for place, part in enumerate(parts, 1):
        name = f"{place:02}-{_plain(part.name)}"
        rows = pictures.bar_rows(part.words[:count], part.shares[:count])
        drawn = list(part.drawings)
        if not lost and len({value for _, value in part.words if value > 0}) > 1:
            said = LOG_CLOUD if part.log else CLOUD
            drawn.append(("cloud", said, pictures.cloud(part.words, log=part.log)))
        if rows:
            svg = pictures.bars(part.title, rows, alone=True)
            write_bytes(folder / f"{name}-bars.svg", svg.encode())
        coded = [(each, caption, _png(image)) for each, caption, image in drawn]
        for each, _, png in coded:
            write_bytes(folder / f"{name}-{_plain(each)}.png", png)
        sections.append(_section(part, rows, coded))
    notes = [tag("p", note, class_="note") for note in (reading, lost.capitalize()) if note]
    body = [*notes, *sections]
    write_bytes(folder / PAGE, page(title, body).encode())
    return folder / PAGE


def make_folder(folder: Path) -> None:
    """Makes the folder of --out where it is not there.

    Raises:
      UserError: there is a file of its name.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)


def _section(
    part: Listing,
    rows: Sequence[tuple[str, float, str]],
    drawn: Sequence[tuple[str, str, bytes]],
) -> Html:
    """One listing.

    Args:
      part: the listing.
      rows: its bars.
      drawn: name, caption and PNG of each picture.
    """
    figures = [
        tag(
            "figure",
            tag("img", src=_uri(png), alt=f"{name} of {part.title}", class_=name.split("-")[0]),
            tag("figcaption", caption) if caption else None,
            class_=name.split("-")[0],
        )
        for name, caption, png in drawn
    ]
    clouds = [each for each, (name, *_) in zip(figures, drawn, strict=True) if name == "cloud"]
    others = [each for each in figures if each not in clouds]
    rest = len(part.words) - len(rows)
    more = tag("figcaption", f"and {rest:,} more") if rest else None
    bars = tag("figure", pictures.bars(part.title, rows), more)
    left = tag("div", bars if rows else tag("p", "No words.", class_="empty"), clouds)
    right = tag("div", others, class_="pictures") if others else None
    note = tag("p", part.note, class_="note") if part.note else None
    head = tag("h2", tag("bdi", part.title))
    return tag("section", head, note, tag("div", left, right, class_="parts"))


def page(title: str, body: Sequence[Html | None], css: str = _OWN_CSS) -> str:
    """A page without other files.

    Args:
      title: of the page.
      body: what is on it.
      css: its own rules besides those of reports.
    """
    return document(title, tag("main", tag("h1", title), body), css=css)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return stream.getvalue()


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _plain(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] or "x"
