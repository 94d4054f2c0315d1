"""Listings and drawings of `big-retrieval explain`."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from big_retrieval.data.formats.pictures import IMAGES
from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.explain.pages import Drawing, Listing
from big_retrieval.explain.patches import Patches, look, rectangle
from big_retrieval.explain.words import (
    Side,
    bags_of,
    check_mode,
    choose_field,
    lexical_fields,
    represent,
    shared,
    strongest,
    words_of,
)
from big_retrieval.report import heat_maps
from big_retrieval.report.numbers import number
from big_retrieval.runtime.messages import count_of
from big_retrieval.sparse import listing

if TYPE_CHECKING:
    from big_retrieval.inference.load import TrainedModel

FAINT = 4  # words below 1 / FAINT of the picture's largest value are drawn paler
MAPS = 4  # words drawn on an image by default
READING = (  # text on a page of explanations
    "A value says how strongly the model sees a word. A query and a document share a word if both "
    "have a value for it; the product of the two values is a part of the score. The redder a "
    "patch, the larger the word's value there. Weak words of a picture stay pale."
)


@dataclass(frozen=True)
class Item:
    """Text, or path of an image, to explain."""

    value: str
    modality: str  # "text" or "image"
    field: str

    @property
    def title(self) -> str:
        """Title of its listings."""
        return f"{self.field}: {self.value}"


def make_item(
    model: "TrainedModel", value: str, modality: str, field: str | None, other: str = ""
) -> Item:
    """Returns a text or image with its field; `field` and `other` are as in `choose_field`."""
    field = choose_field(model.config, field, modality, other)
    if modality == "text" and not value.strip():
        raise UserError(f"The text for field {field!r} is empty.")
    return Item(value, modality, field)


def partner(model: "TrainedModel", value: str, field: str | None, first: Item) -> Item:
    """Returns the item of --with: an image (a file, for models of images), or a text."""
    images = lexical_fields(model.config, "image")
    modality = "image" if Path(value).is_file() and images else "text"
    if field is not None and field in model.config.encoded:
        modality = model.config.fields[field].modality
    elif modality == "text" and images and Path(value).suffix.lower() in IMAGES:
        raise UserError(
            f"--with={value} has the name of an image, but no such file exists. Give an existing "
            "file, or --with_field for a text."
        )
    return make_item(model, value, modality, field, other=first.field)


def explain(
    model: "TrainedModel",
    items: Sequence[Item],
    other: Item | None = None,
    *,
    patches: Sequence[str] = (),
    maps: Sequence[str] = (),
    draw: bool = False,
    mode: str = "parametric",
) -> Iterator[Listing]:
    """Yields listings of items, of the document that they are compared with, and of shared words.

    Args:
      items: items to explain; they are the queries if `other` is given.
      other: document to compare each item with, listed once.
      patches: rectangles of patches, with a listing each.
      maps: words whose values at each patch are listed. Their heat maps replace the maps of the
        strongest words and of the words shared with `other`.
      draw: True for pictures.
      mode: search mode; "bag" and "binary" list one side as a bag of words.
    """
    bag = None
    if other is not None:
        for item in items:
            bag = check_mode(model, item.field, other.field, mode)

    @functools.lru_cache(maxsize=2)  # images of a query and its document
    def see(item: Item) -> Patches:
        return look(model, item.value, item.field)

    def list_item(item: Item, side: Side) -> Iterator[Listing]:
        if item.modality == "text":
            yield _list_text(model, item, side if side == bag else None)
        else:
            seen = see(item) if draw or patches or maps else None
            yield from _list_image(model, item, seen, patches, maps, draw)

    for index, item in enumerate(items):
        yield from list_item(item, "query")
        if other is not None:
            if index == 0:
                yield from list_item(other, "document")
            yield _list_shared(model, item, other, mode, see if draw and not maps else None)


def _list_text(model: "TrainedModel", item: Item, bag: Side | None) -> Listing:
    names = words_of(model, item.field)
    bow = bags_of(model, [item.value], item.field, bag or "document")
    row = bow if bag else represent(model, [item.value], item.field)
    words = listing.strongest(row, names, None)
    title, note = item.title, f"{len(words):,} of {len(names):,} terms are not 0"
    if bag:
        title += ", bag of words"
    elif bow.nnz:
        note += f", {len(np.intersect1d(row.indices, bow.indices)):,} of them words of the text"
    else:
        note += ", none of them words of the text: the vocabulary has none of its words"
    return Listing("text", title, words, note=note)


def _list_image(
    model: "TrainedModel",
    item: Item,
    seen: Patches | None,
    patches: Sequence[str],
    maps: Sequence[str],
    draw: bool,
) -> Iterator[Listing]:
    """Lists the words of an image, and with `seen` also the words of patch rectangles."""
    words = strongest(model, item.value, item.field, None)
    note = f"{len(words):,} of {len(words_of(model, item.field)):,} terms are not 0"
    if seen is None:
        yield Listing("image", item.title, words, note=note)
        return
    drawings = []
    if draw:
        picture = Image.fromarray(heat_maps.enlarged(seen.picture))
        drawings = [("picture", "as the model sees it", picture)]
        drawings += _heat_maps(seen, maps or [word for word, _ in words[:MAPS]])
    map_lines = []
    for word in maps:
        map_lines.append(f"{word!r} at each patch")
        map_lines += ["  " + " ".join(f"{x:8.4f}" for x in row) for row in seen.map(word).tolist()]
    yield Listing("image", item.title, words, note=note, lines=map_lines, drawings=drawings)
    for text in patches:
        mask = rectangle(text, seen.side)
        note = f"{int(mask.sum())} of {mask.size} patches"
        marked = pictures.marked(seen.picture, mask)
        yield Listing(
            "patches",
            f"{item.title}, patches {text}",
            seen.strongest(mask, None),
            note=note,
            drawings=[("patches", "the selected patches", marked)] if draw else [],
        )


def _list_shared(
    model: "TrainedModel",
    item: Item,
    other: Item,
    mode: str,
    see: Callable[[Item], Patches] | None,
) -> Listing:
    common = shared(model, item.value, other.value, item.field, other.field, mode=mode)
    words = [(word, product) for word, product, _ in common.words]
    drawings: list[Drawing] = []
    for side in (item, other):
        if see is not None and side.modality == "image":
            maps = _heat_maps(see(side), [word for word, _ in words[:MAPS]])
            # With two images, each has a map of every word.
            drawings += [(f"{n}-with" if drawings else n, text, x) for n, text, x in maps]
    suffix = "" if mode == "parametric" else f" (mode {mode})"
    note = f"{count_of(len(words), 'word')} in common; the score is {number(common.score)}{suffix}"
    title = f"shared: {item.value} × {other.value}"
    shares = [share for *_, share in common.words]
    return Listing("shared", title, words, shares, note=note, drawings=drawings)


def _heat_maps(seen: Patches, map_words: Sequence[str]) -> list[Drawing]:
    full = float(seen.values.max()) / FAINT
    out = []
    for word in map_words:
        values = seen.map(word)
        largest = float(values.max())
        picture = heat_maps.heat(seen.picture, values, max(largest, full))
        out.append((f"heat-{word}", f"{word}: at most {number(largest, 3)}", picture))
    return out
