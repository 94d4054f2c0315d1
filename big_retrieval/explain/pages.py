"""Listings of words as tables, files and a page; common parts of pages of explanations."""

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
    """List of words.

    Attributes:
      name: name of its files.
      words: all words with their values, strongest first.
      shares: share of the score of each word; empty if the values are not products.
      log: True if sizes in the cloud are log(1 + value).
      note: text below the title.
      drawings: further pictures (name, caption, picture).
    """

    name: str
    title: str
    words: Listed
    shares: Sequence[float] = ()
    log: bool = False
    note: str = ""
    drawings: Sequence[tuple[str, str, Image.Image]] = ()

    def rows(self, count: int) -> list[tuple[str, float, str]]:
        """Returns (word, value, value or share as text) of the first `count` words."""
        texts = [pictures.percent(share) for share in self.shares]
        texts = texts or [number(value, 3) for _, value in self.words]
        return [(*pair, text) for pair, text in zip(self.words, texts, strict=True)][:count]


def table(part: Listing, count: int) -> str:
    """Formats a listing with its first `count` words as lines of text."""
    lines = [part.title] + ([f"  {part.note}"] if part.note else [])
    words = part.words[:count]
    if not words:
        return "\n".join([*lines, "  none"])
    word_width = max(len(word) for word, _ in words)
    digits = min(max(3 - math.floor(math.log10(words[0][1])), 0), 9) if words[0][1] > 0 else 4
    values = [f"{value:.{digits}f}" for _, value in words]  # four digits of the largest
    value_width = max(map(len, values))
    for index, (word, _) in enumerate(words):
        share = f"  {pictures.percent(part.shares[index]):>6}" if part.shares else ""
        value = f"{values[index]:>{value_width}}"
        lines.append(f"  {index + 1:>3}  {word:<{word_width}}  {value}{share}")
    remaining = len(part.words) - len(words)
    return "\n".join([*lines, f"  and {remaining:,} more" if remaining else ""]).rstrip()


def write(
    parts: Sequence[Listing], count: int, folder: Path, title: str, reading: str = ""
) -> Path:
    """Writes bars (SVG), other pictures (PNG) and a page with all of them, whose path it returns.

    Args:
      parts: the listings.
      count: number of words in bars and tables.
      folder: created if it is missing.
      reading: text at the top of the page.
    """
    make_folder(folder)
    missing = pictures.missing()
    sections = []
    for index, part in enumerate(parts, 1):
        name = f"{index:02}-{_plain(part.name)}"
        drawn = list(part.drawings)
        if not missing and len({value for _, value in part.words if value > 0}) > 1:
            caption = LOG_CLOUD if part.log else CLOUD
            drawn.append(("cloud", caption, pictures.cloud(part.words, log=part.log)))
        if part.words:
            write_bytes(folder / f"{name}-bars.svg", pictures.bars(part.title, part.rows(count)))
        encoded = [(suffix, caption, _png(image)) for suffix, caption, image in drawn]
        for suffix, _, png in encoded:
            write_bytes(folder / f"{name}-{_plain(suffix)}.png", png)
        sections.append(_section(part, count, encoded))
    notes = [tag("p", note, class_="note") for note in (reading, missing.capitalize()) if note]
    write_bytes(folder / PAGE, page(title, [*notes, *sections]).encode())
    return folder / PAGE


def make_folder(folder: Path) -> None:
    """Creates the folder of --out if it is missing; raises a UserError if it is a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)


def _section(part: Listing, count: int, drawn: Sequence[tuple[str, str, bytes]]) -> Html:
    """Builds the section of a listing with `count` bars and (name, caption, PNG) of pictures."""
    figures = [
        tag(
            "figure",
            tag("img", src=_uri(png), alt=f"{name} of {part.title}", class_=name.split("-")[0]),
            tag("figcaption", caption) if caption else None,
            class_=name.split("-")[0],
        )
        for name, caption, png in drawn
    ]
    clouds = [x for x, (name, *_) in zip(figures, drawn, strict=True) if name == "cloud"]
    others = [figure for figure in figures if figure not in clouds]
    remaining = len(part.words) - count
    more = tag("p", f"and {remaining:,} more", class_="note") if remaining > 0 else None
    left = tag("div", value_bars(part.rows(count)), more, clouds)
    right = tag("div", others, class_="pictures") if others else None
    note = tag("p", part.note, class_="note") if part.note else None
    head = tag("h2", tag("bdi", part.title))
    return tag("section", head, note, tag("div", left, right, class_="parts"))


def value_bars(rows: Sequence[tuple[str, float, str]], own: Collection[str] = ()) -> Html:
    """Builds horizontal bars of words.

    Args:
      rows: (word, value, text after the bar).
      own: words with a tick.
    """
    if not rows:
        return tag("p", "No words.", class_="empty")
    largest = max(value for _, value, _ in rows) or 1.0
    bars = (_bar(word, x / largest, text, word in own) for word, x, text in rows)
    return tag("ol", bars, class_="values")


def _bar(word: str, length: float, text: str, is_own: bool) -> Html:
    return tag(
        "li",
        tag("bdi", word, class_="word own" if is_own else "word", title=word),
        tag("span", "✓" if is_own else "", class_="tick"),
        tag("i", style=f"--s: {100 * min(max(length, 0.0), 1.0):.1f}%"),
        tag("span", text, class_="value"),
    )


def page(title: str, body: Sequence[Html | None]) -> str:
    """Builds a self-contained page."""
    rules = style("big_retrieval.explain", "pages.css")
    return document(title, tag("main", tag("h1", title), body), css=rules)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, "png", optimize=True)
    return stream.getvalue()


def _uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _plain(name: str) -> str:
    """Converts a name to a file name that is valid on any file system."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] or "x"
