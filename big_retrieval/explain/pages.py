"""Pages of explanations: listings of words, and examples of a data set."""

import base64
import io
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from big_retrieval.explain import pictures
from big_retrieval.explain.examples import TOP, ExplainedRecord, full_text
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.examples import matched
from big_retrieval.report.html import Html, document, style, tag
from big_retrieval.report.numbers import number, percent
from big_retrieval.report.thumbnails import data_uri
from big_retrieval.runtime.messages import count_of
from big_retrieval.sparse.listing import Listed, Shared

CLOUD = "The larger a word, the larger its value."
LOG_CLOUD = "The larger a word, the larger its part of the score."
SIDE = 224  # maximum pixels of an example's longer side
UNSEEN = 12  # maximum number of listed words that the texts have, but not the item
MATCHED = 5  # words per pair
MAX_CHARACTERS = 400  # of a text
Drawing = tuple[str, str, Image.Image]  # name, caption, picture


@dataclass(frozen=True)
class Listing:
    """List of words."""

    name: str  # name of its files
    title: str
    words: Listed  # all words with their values, strongest first
    shares: Sequence[float] = ()  # shares of the score; empty if the values are not products
    note: str = ""  # text below the title
    lines: Sequence[str] = ()  # further lines for the terminal
    drawings: Sequence[Drawing] = ()  # further pictures

    def rows(self, count: int) -> list[tuple[str, float, str]]:
        """Returns (word, value, value or share as text) of the first `count` words."""
        texts = [percent(share) for share in self.shares]
        texts = texts or [number(value, 3) for _, value in self.words]
        return [(*pair, text) for pair, text in zip(self.words, texts, strict=True)][:count]


def listing_table(listing: Listing, count: int) -> str:
    """Formats a listing with its first `count` words for the terminal."""
    lines = [listing.title] + ([f"  {listing.note}"] if listing.note else [])
    lines += _value_lines(listing, count) or ["  none"]
    remaining = len(listing.words) - count
    if remaining > 0:
        lines.append(f"  and {remaining:,} more")
    return "\n".join([*lines, *(f"  {line}" for line in listing.lines)])


def _value_lines(listing: Listing, count: int) -> list[str]:
    words = listing.words[:count]
    if not words:
        return []
    width, largest = max(len(word) for word, _ in words), words[0][1]
    # Four significant digits of the largest value.
    digits = min(max(3 - math.floor(math.log10(largest)), 0), 9) if largest > 0 else 4
    shares = [f"  {percent(share):>6}" for share in listing.shares] or [""] * len(words)
    return [
        f"  {rank:>3}  {word:<{width}}  {f'{value:.{digits}f}':>{digits + 2}}{share}"
        for rank, ((word, value), share) in enumerate(zip(words, shares, strict=False), 1)
    ]


def write_listings(
    listings: Sequence[Listing], count: int, folder: Path, title: str, reading: str = ""
) -> Path:
    """Writes pictures (PNG), and a page with pictures and bars of `count` words; returns its path.

    `reading` is a text at the top of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = pictures.missing()
    sections = []
    for index, listing in enumerate(listings, 1):
        name = f"{index:02}-{_file_stem(listing.name)}"
        drawn = list(listing.drawings)
        if not missing and len({value for _, value in listing.words if value > 0}) > 1:
            caption, is_log = (LOG_CLOUD, True) if listing.shares else (CLOUD, False)
            drawn.append(("cloud", caption, pictures.cloud(listing.words, log=is_log)))
        encoded = [(suffix, caption, _png(image)) for suffix, caption, image in drawn]
        for suffix, _, png in encoded:
            write_bytes(folder / f"{name}-{_file_stem(suffix)}.png", png)
        sections.append(_listing_section(listing, count, encoded))
    notes = [tag("p", note, class_="note") for note in (reading, missing.capitalize()) if note]
    file = folder / "explain.html"
    write_bytes(file, page(title, [*notes, *sections]).encode())
    return file


def _listing_section(listing: Listing, count: int, drawn: Sequence[tuple[str, str, bytes]]) -> Html:
    """Builds the section of a listing with `count` bars and (name, caption, PNG) of pictures."""
    figures = {}
    for name, caption, png in drawn:
        look, data = name.split("-")[0], base64.b64encode(png).decode()
        uri, alt = f"data:image/png;base64,{data}", f"{name} of {listing.title}"
        image = tag("img", src=uri, alt=alt, class_=look)
        figures[name] = tag("figure", image, tag("figcaption", caption), class_=look)
    cloud = figures.pop("cloud", None)
    remaining = len(listing.words) - count
    more = tag("p", f"and {remaining:,} more", class_="note") if remaining > 0 else None
    bars = tag("div", value_bars(listing.rows(count)), more, cloud)
    pictures_shown = tag("div", figures.values(), class_="pictures") if figures else None
    note = tag("p", listing.note, class_="note") if listing.note else None
    head = tag("h2", tag("bdi", listing.title))
    return tag("section", head, note, tag("div", bars, pictures_shown, class_="parts"))


def value_bars(rows: Sequence[tuple[str, float, str]], ticked: Collection[str] = ()) -> Html:
    """Builds horizontal bars of rows (word, value, text after the bar)."""
    if not rows:
        return tag("p", "No words.", class_="empty")
    largest = max(value for _, value, _ in rows) or 1.0
    bars = (_bar(word, x / largest, text, word in ticked) for word, x, text in rows)
    return tag("ol", bars, class_="values")


def _bar(word: str, length: float, text: str, is_ticked: bool) -> Html:
    return tag(
        "li",
        tag("bdi", word, class_="word own" if is_ticked else "word", title=word),
        tag("span", "✓" if is_ticked else "", class_="tick"),
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


def _file_stem(name: str) -> str:
    """Converts a name to a valid file name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:40] or "x"


def write_examples(
    examples: Sequence[ExplainedRecord], count: int, folder: Path, title: str, note: str
) -> Path:
    """Writes the page of examples, with `count` words each and a note; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    reading = (
        "Each item has its strongest words with their values. ✓ marks a word of its texts, as "
        f"{summary(examples)}. Below are the score of each text and the words that matched, with "
        "their shares of the score."
    )
    cards = tag("div", (_card(example, count) for example in examples), class_="gallery")
    body = [tag("p", note), tag("p", reading, class_="note"), cards]
    file = folder / "examples.html"
    write_bytes(file, page(title, body).encode())
    return file


def summary(examples: Sequence[ExplainedRecord]) -> str:
    """Formats the share of the strongest words that occur in the record's texts."""
    share = float(np.mean([example.precision for example in examples]))
    records = count_of(len(examples), "record")
    return f"{percent(share)} of the {TOP} strongest words of {records} are"


def _card(example: ExplainedRecord, count: int) -> Html:
    rows = [(word, value, number(value, 3)) for word, value in example.words[:count]]
    is_text = isinstance(example.item, str | tuple)
    return tag(
        "article",
        _text(full_text(example.item)) if is_text else _picture(example),
        value_bars(rows, example.text_words),
        tag("ol", (_pair(text, shared) for text, shared in example.pairs), class_="pairs"),
        _unseen(example.unseen),
        class_="seen text" if is_text else "seen",
    )


def _picture(example: ExplainedRecord) -> Html:
    image = Image.fromarray(np.ascontiguousarray(example.item))
    small = max(image.size) <= SIDE / 2
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    name = f"record {example.record:,}"
    drawn = tag("img", src=data_uri(image), alt=name, class_="small" if small else None)
    return tag("figure", drawn, tag("figcaption", name, class_="note"))


def _pair(text: str, shared: Shared) -> Html:
    shares = [[word, share] for word, _, share in shared.words[:MATCHED]]
    none = tag("p", "no word in common", class_="note")
    score = tag("span", "score ", number(shared.score, 4), class_="score")
    return tag("li", score, _text(text), matched(shares) or none)


def _text(text: str) -> Html:
    cut = text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"
    return tag("span", tag("bdi", cut), class_="words", dir="auto")


def _unseen(unseen: Sequence[str]) -> Html | None:
    if not unseen:
        return None
    remaining = len(unseen) - UNSEEN
    more = f" and {remaining:,} more" if remaining > 0 else ""
    listed = f"In its texts, but not among its terms: {' · '.join(unseen[:UNSEEN])}{more}"
    return tag("p", listed, class_="note")
