"""Page of examples: pictures, their strongest words, and the words shared with their texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from big_retrieval.evals.thumbnails import data_uri
from big_retrieval.explain.examples import TOP, ExplainedRecord, shown
from big_retrieval.explain.pages import make_folder, page, value_bars
from big_retrieval.explain.pictures import percent
from big_retrieval.io.durable import write_bytes
from big_retrieval.report.examples import matched
from big_retrieval.report.html import Html, tag
from big_retrieval.report.numbers import count_of, number

PAGE = "examples.html"
SIDE = 224  # maximum pixels of a picture's longer side
UNSEEN = 12  # maximum number of listed words of the texts that are no terms of the item
MATCHED = 5  # words per pair
MOST_CHARACTERS = 400  # of a text


def write(
    found: Sequence[ExplainedRecord], count: int, folder: Path, title: str, note: str
) -> Path:
    """Writes the page and returns its path.

    Args:
      found: the examples.
      count: number of strongest words per example.
      folder: created if it is missing.
      note: text about the examples.

    Raises:
      UserError: the folder is a file.
    """
    make_folder(folder)
    reading = (
        "Beside each item its strongest words with their values. ✓: a word of the texts that go "
        f"with it, as {summary(found)}. Below, the score of each text and the words that matched, "
        "with their shares of the score."
    )
    cards = tag("div", (_card(example, count) for example in found), class_="gallery")
    body = [tag("p", note), tag("p", reading, class_="note"), cards]
    write_bytes(folder / PAGE, page(title, body).encode())
    return folder / PAGE


def summary(found: Sequence[ExplainedRecord]) -> str:
    """Formats the share of the strongest words that occur in the record's texts."""
    share = float(np.mean([example.right for example in found])) if found else 0.0
    return f"{percent(share)} of the {TOP} strongest words of {count_of(len(found), 'record')} are"


def _card(example: ExplainedRecord, count: int) -> Html:
    rows = [(word, value, number(value, 3)) for word, value in example.words[:count]]
    pairs = (_pair(text, common) for text, common in example.pairs)
    picture = not isinstance(example.item, str | tuple)
    return tag(
        "article",
        _picture(example) if picture else _text(shown(example.item)),
        value_bars(rows, example.own),
        tag("ol", pairs, class_="pairs"),
        _unseen(example.unseen),
        class_="seen" if picture else "seen text",
    )


def _picture(example: ExplainedRecord) -> Html:
    image = Image.fromarray(np.ascontiguousarray(example.item))
    small = max(image.size) <= SIDE / 2
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    name = f"record {example.record:,}"
    drawn = tag("img", src=data_uri(image), alt=name, class_="small" if small else None)
    return tag("figure", drawn, tag("figcaption", name, class_="note"))


def _pair(text: str, common: Any) -> Html:
    shares = [[word, share] for word, _, share in common.words[:MATCHED]]
    none = tag("p", "no word in common", class_="note")
    return tag(
        "li",
        tag("span", "score ", number(common.score, 4), class_="score"),
        _text(text),
        matched(shares) or none,
    )


def _text(text: str) -> Html:
    cut = text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
    return tag("span", tag("bdi", cut), class_="words", dir="auto")


def _unseen(words: Sequence[str]) -> Html | None:
    if not words:
        return None
    remaining = len(words) - UNSEEN
    more = f" and {remaining:,} more" if remaining > 0 else ""
    return tag(
        "p", f"In its texts, not among its terms: {' · '.join(words[:UNSEEN])}{more}", class_="note"
    )
