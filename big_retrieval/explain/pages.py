"""Listings of words as tables, as files and as one page; what pages of explanations share."""

import base64
import io
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.html import Html, document, style, tag
from big_retrieval.report.numbers import number
from big_retrieval.sparse.listing import Listed

PAGE = "explain.html"
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
    drawings: Sequence[tuple[str, str, Image.Image]] = ()

    def rows(self, count: int) -> list[tuple[str, float, str]]:
        """(word, value, value or share as text) of the first `count` words."""
        written = [number(value, 3) for _, value in self.words]
        written = [pictures.percent(share) for share in self.shares] or written
        return [(*pair, text) for pair, text in zip(self.words, written, strict=True)][:count]


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
    missing = pictures.missing()
    sections = []
    for place, part in enumerate(parts, 1):
        name = f"{place:02}-{_plain(part.name)}"
        drawn = list(part.drawings)
        if not missing and len({value for _, value in part.words if value > 0}) > 1:
            caption = LOG_CLOUD if part.log else CLOUD
            drawn.append(("cloud", caption, pictures.cloud(part.words, log=part.log)))
        if part.words:
            write_bytes(folder / f"{name}-bars.svg", pictures.bars(part.title, part.rows(count)))
        coded = [(each, caption, _png(image)) for each, caption, image in drawn]
        for each, _, png in coded:
            write_bytes(folder / f"{name}-{_plain(each)}.png", png)
        sections.append(_section(part, count, coded))
    notes = [tag("p", note, class_="note") for note in (reading, missing.capitalize()) if note]
    write_bytes(folder / PAGE, page(title, [*notes, *sections]).encode())
    return folder / PAGE


def make_folder(folder: Path) -> None:
    """Makes the folder of --out where it is not there.

    Raises:
      UserError: there is a file of its name.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)


def _section(part: Listing, count: int, drawn: Sequence[tuple[str, str, bytes]]) -> Html:
    """One listing.

    Args:
      part: the listing.
      count: words that have a bar.
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
    rest = len(part.words) - count
    more = tag("p", f"and {rest:,} more", class_="note") if rest > 0 else None
    left = tag("div", value_bars(part.rows(count)), more, clouds)
    right = tag("div", others, class_="pictures") if others else None
    note = tag("p", part.note, class_="note") if part.note else None
    head = tag("h2", tag("bdi", part.title))
    return tag("section", head, note, tag("div", left, right, class_="parts"))


def value_bars(rows: Sequence[tuple[str, float, str]], own: Collection[str] = ()) -> Html:
    """Words with horizontal bars, the longest of the largest value.

    Args:
      rows: (word, value, what is written behind the bar).
      own: words that have a tick.
    """
    if not rows:
        return tag("p", "No words.", class_="empty")
    most = max(value for _, value, _ in rows) or 1.0
    return tag("ol", (_bar(*row, most=most, own=row[0] in own) for row in rows), class_="values")


def _bar(word: str, value: float, written: str, *, most: float, own: bool) -> Html:
    return tag(
        "li",
        tag("bdi", word, class_="word own" if own else "word", title=word),
        tag("span", "✓" if own else "", class_="tick"),
        tag("i", style=f"--s: {100 * min(max(value / most, 0.0), 1.0):.1f}%"),
        tag("span", written, class_="value"),
    )


def page(title: str, body: Sequence[Html | None]) -> str:
    """A page without other files."""
    rules = style("big_retrieval.explain", "pages.css")
    return document(title, tag("main", tag("h1", title), body), css=rules)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return stream.getvalue()


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _plain(name: str) -> str:
    """A name that any file system takes."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] or "x"
