"""Listings and drawings of `big-retrieval explain`."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from big_retrieval.errors import UserError
from big_retrieval.evals import heat_maps
from big_retrieval.explain import pictures
from big_retrieval.explain.pages import Listing
from big_retrieval.explain.patches import Patches, check_word, look, rectangle
from big_retrieval.explain.words import (
    Side,
    bag_side,
    bags_of,
    check_field,
    check_mode,
    lexical_fields,
    represent,
    shared,
    words_of,
)
from big_retrieval.report.numbers import count_of, number
from big_retrieval.sparse import listing

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

FAINT = 4  # a word is drawn at full strength from 1 / FAINT of the picture's strongest value
MAPS = 4  # words drawn on an image by default
READING = (  # text on a page of explanations
    "A value says how strongly the model sees a word; a query and a document share a word where "
    "both have a value for it, and the product of the two values is a part of the score. Red "
    "patches are where a word comes from: the redder, the larger its value there. Words that the "
    "picture hardly has stay pale."
)
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True)
class Asked:
    """Text or image to explain.

    Attributes:
      value: the text, or the path of the image.
      kind: "text" or "image".
      field: field name.
    """

    value: str
    kind: str
    field: str

    @property
    def title(self) -> str:
        """Title of its listings."""
        return f"{self.field}: {self.value}"


Seeing = Callable[[Asked], Patches]


def asked(
    model: "TrainedModel", value: str, kind: str, field: str | None, other: str = ""
) -> Asked:
    """Returns a text or image with its field.

    Args:
      value: the text or the path of the image.
      kind: "text" or "image".
      field: field name; None for the first lexical one of this kind, queries first.
      other: field to avoid if there is another one.

    Raises:
      UserError: the field is missing.
    """
    if field is None:
        fields = lexical_fields(model.config, kind)
        preferred = [name for name in fields if name != other] or fields
        field = preferred[0] if preferred else ""
        if not preferred and lexical_fields(model.config):
            have = ", ".join(lexical_fields(model.config))
            raise UserError(
                f"the model has no lexical {kind} field; its lexical fields are {have}."
            )
    check_field(model.config, field, kind)
    return Asked(value, kind, field)


def partner(model: "TrainedModel", value: str, field: str | None, first: Asked) -> Asked:
    """Returns the item of --with: an image if it is a file and the model has images, else a text.

    Raises:
      UserError: the value looks like a missing image file, or the field is missing.
    """
    images = lexical_fields(model.config, "image")
    kind = "image" if Path(value).is_file() and images else "text"
    if field is not None and field in model.config.encoded:
        kind = model.config.fields[field].modality
    elif kind == "text" and images and Path(value).suffix.lower() in ENDINGS:
        raise UserError(
            f"--with {value} is called like an image, but there is no such file; give one that is "
            "there, or --with_field for a text."
        )
    return asked(model, value, kind, field, other=first.field)


def check_asked(
    model: "TrainedModel", items: Sequence[Asked], other: Asked | None, maps: Sequence[str] = ()
) -> None:
    """Checks the items before anything is encoded.

    Raises:
      UserError: a text is empty, or a word of `maps` is not a term.
    """
    for item in (*items, *([other] if other else [])):
        if item.kind == "text" and not item.value.strip():
            raise UserError(f"the text for field {item.field!r} is empty; give it a word.")
        for word in maps if item.kind == "image" else ():
            check_word(word, words_of(model, item.field))


def explain(
    model: "TrainedModel",
    items: Sequence[Asked],
    other: Asked | None = None,
    *,
    patches: Sequence[str] = (),
    maps: Sequence[str] = (),
    draw: bool = False,
    mode: str = "parametric",
) -> Iterator[Listing]:
    """Yields listings of items, of the item that they are compared with, and of shared words.

    Args:
      items: items to explain; they are the queries if there is `other`.
      other: document to compare each item with, listed once.
      patches: rectangles of patches, with a listing each.
      maps: words to draw on images; empty for the strongest, or for those shared with `other`.
      draw: True for pictures.
      mode: search mode; "bag" and "binary" list one side as a bag of words.

    Raises:
      UserError: an image cannot be read, or a rectangle or a word does not exist.
    """
    bag = bag_side(mode) if other is not None else None
    if other is not None:
        for item in items:
            check_mode(model, item.field, other.field, mode)

    @functools.lru_cache(maxsize=2)  # images of a query and its document
    def seeing(item: Asked) -> Patches:
        return look(model, item.value, item.field)

    options: dict[str, Any] = {"patches": patches, "maps": maps, "draw": draw, "seeing": seeing}
    for index, item in enumerate(items):
        yield from _alone(model, item, bag="query" if bag == "query" else None, **options)
        if other is None:
            continue
        if index == 0:
            side = "document" if bag == "document" else None
            yield from _alone(model, other, bag=side, **options)
        yield _pair(model, item, other, mode, seeing if draw and not maps else None)


def _alone(
    model: "TrainedModel",
    item: Asked,
    *,
    bag: Side | None,
    patches: Sequence[str],
    maps: Sequence[str],
    draw: bool,
    seeing: Seeing,
) -> Iterator[Listing]:
    """Yields the words of a text or an image, and of its patches."""
    names = words_of(model, item.field)
    bow = None
    if item.kind == "text":
        bow = bags_of(model, [item.value], item.field, bag or "document")
    row = represent(model, [item.value], item.field) if bag is None else bow
    words = listing.strongest(row, names, None)
    note = f"{len(words):,} of {len(names):,} terms are not 0"
    if bow is not None and bag is None:
        note += _input_terms(row, bow)
    title = f"{item.title}, bag of words" if bag else item.title
    if item.kind == "text" or not (draw or patches):
        yield Listing(item.kind, title, words, note=note)
        return
    seen, drawings = seeing(item), []
    if draw:
        picture = Image.fromarray(heat_maps.enlarged(seen.picture))
        drawings = [("picture", "as the model sees it", picture)]
        drawings += _heat_maps(seen, maps or [word for word, _ in words[:MAPS]])
    yield Listing(item.kind, title, words, note=note, drawings=drawings)
    for text in patches:
        yield _group(seen, item, text, draw)


def _input_terms(row: Any, bow: Any) -> str:
    """Formats the number of an embedding's terms that are words of the text."""
    if not bow.nnz:
        return ", none a word of the text: the vocabulary has none of its words"
    return f", {len(np.intersect1d(row.indices, bow.indices)):,} of them words of the text"


def _pair(
    model: "TrainedModel", item: Asked, other: Asked, mode: str, seeing: Seeing | None
) -> Listing:
    """Lists the shared words of a query and a document, with heat maps of the strongest."""
    common = shared(model, item.value, other.value, item.field, other.field, mode=mode)
    listed = [(word, value) for word, value, _ in common.words]
    drawings: list[tuple[str, str, Image.Image]] = []
    for side in (item, other):
        if seeing is not None and side.kind == "image":
            drawings += _heat_maps(seeing(side), [word for word, _ in listed[:MAPS]])
    suffix = "" if mode == "parametric" else f" (mode {mode})"
    note = f"{count_of(len(listed), 'word')} in common; the score is {number(common.score)}{suffix}"
    title = f"shared: {item.value} × {other.value}"
    shares = [share for *_, share in common.words]
    return Listing("shared", title, listed, shares, log=True, note=note, drawings=drawings)


def map_tables(model: "TrainedModel", item: Asked, words: Sequence[str]) -> list[str]:
    """Formats the values of words at the patches of an image as lines of text."""
    seen = look(model, item.value, item.field)
    out = []
    for word in words:
        rows = [" ".join(f"{value:8.4f}" for value in row) for row in seen.map(word).tolist()]
        out.append("\n  ".join([f"{item.title}: {word!r} at each patch", *rows]))
    return out


def _heat_maps(seen: Patches, words: Sequence[str]) -> list[tuple[str, str, Image.Image]]:
    """Draws the heat maps of words; weak words are pale."""
    full = float(seen.values.max()) / FAINT
    out = []
    for word in words:
        values = seen.map(word)
        largest = float(values.max())
        picture = heat_maps.heat(seen.picture, values, max(largest, full))
        out.append((f"heat-{word}", f"{word}: at most {number(largest, 3)}", picture))
    return out


def _group(seen: Patches, item: Asked, text: str, draw: bool) -> Listing:
    """Lists the words of a rectangle of patches."""
    mask = rectangle(text, seen.side)
    drawings = []
    if draw:
        drawings = [("patches", "the chosen patches", pictures.marked(seen.picture, mask))]
    title = f"{item.title}, patches {text}"
    note = f"{int(mask.sum())} of {mask.size} patches"
    return Listing("patches", title, seen.strongest(mask, None), note=note, drawings=drawings)
