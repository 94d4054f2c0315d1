"""What `big-retrieval explain` lists and draws."""

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

FAINT = 4  # a word is drawn at full strength from this part of the picture's strongest value on
MAPS = 4  # words that are drawn on an image unless named
READING = (  # how to read a page of explanations
    "A value says how strongly the model sees a word; a query and a document share a word where "
    "both have a value for it, and the product of the two values is a part of the score. Red "
    "patches are where a word comes from: the redder, the larger its value there. Words that the "
    "picture hardly has stay pale."
)
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


@dataclass(frozen=True)
class Asked:
    """A text or an image to explain.

    Attributes:
      value: the text, or the image's file.
      kind: "text" or "image".
      field: which field it is.
    """

    value: str
    kind: str
    field: str

    @property
    def title(self) -> str:
        """What a reader calls it."""
        return f"{self.field}: {self.value}"


Seeing = Callable[[Asked], Patches]


def asked(
    model: "TrainedModel", value: str, kind: str, field: str | None, other: str = ""
) -> Asked:
    """A text or image with its field.

    Args:
      model: of which the fields are.
      value: the text or the file.
      kind: "text" or "image".
      field: the field; None: the only lexical one of this kind, of two texts the query's.
      other: a field that it is not, if there is another choice.

    Raises:
      UserError: the model has no such field.
    """
    if field is None:
        known = lexical_fields(model.config, kind)
        left = [name for name in known if name != other] or known
        field = left[0] if left else ""
        if not left and lexical_fields(model.config):
            have = ", ".join(lexical_fields(model.config))
            raise UserError(
                f"the model has no lexical {kind} field; its lexical fields are {have}."
            )
    check_field(model.config, field, kind)
    return Asked(value, kind, field)


def partner(model: "TrainedModel", value: str, field: str | None, first: Asked) -> Asked:
    """What --with names: an image where that is a file and the model reads images, else a text.

    Raises:
      UserError: it is called like an image but not there, or the model has no such field.
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
    """Looks for mistakes before anything is encoded.

    Raises:
      UserError: a text is empty, or a word of `maps` is no term.
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
    """The listings of texts and images, of what they are compared with, and of what they share.

    Args:
      model: with lexical heads.
      items: what is explained; in front of `other` they are the queries.
      other: what each of them is compared with, listed once.
      patches: rectangles of patches, each listed by itself.
      maps: words to draw on images; (): the strongest, and of two sides those that they share.
      draw: whether pictures are wanted.
      mode: of the search: "bag" and "binary" list a side as the bag of its words.

    Raises:
      UserError: an image cannot be read, or patches or a word are none.
    """
    bag = bag_side(mode) if other is not None else None
    if other is not None:
        for item in items:
            check_mode(model, item.field, other.field, mode)

    @functools.lru_cache(maxsize=2)  # the images of a query and its document
    def seeing(item: Asked) -> Patches:
        return look(model, item.value, item.field)

    how: dict[str, Any] = {"patches": patches, "maps": maps, "draw": draw, "seeing": seeing}
    for place, item in enumerate(items):
        yield from _alone(model, item, bag="query" if bag == "query" else None, **how)
        if other is None:
            continue
        if not place:
            yield from _alone(model, other, bag="document" if bag == "document" else None, **how)
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
    """The words of a text or an image, and those of its patches."""
    names = words_of(model, item.field)
    own = None
    if item.kind == "text":
        own = bags_of(model, [item.value], item.field, bag or "document")
    row = represent(model, [item.value], item.field) if bag is None else own
    words = listing.strongest(row, names, None)
    note = f"{len(words):,} of {len(names):,} terms are not 0"
    if own is not None and bag is None:
        note += _input_terms(row, own)
    title = f"{item.title}, bag of words" if bag else item.title
    if item.kind == "text" or not (draw or patches):
        yield Listing(item.kind, title, words, note=note)
        return
    seen, drawings = seeing(item), []
    if draw:
        whole = Image.fromarray(heat_maps.enlarged(seen.picture))
        drawings = [("picture", "as the model sees it", whole)]
        drawings += _heat_maps(seen, maps or [word for word, _ in words[:MAPS]])
    yield Listing(item.kind, title, words, note=note, drawings=drawings)
    for place in patches:
        yield _group(seen, item, place, draw)


def _input_terms(row: Any, own: Any) -> str:
    """How many terms of a text's embedding are among the text's own words."""
    if not own.nnz:
        return ", none a word of the text: the vocabulary has none of its words"
    return f", {len(np.intersect1d(row.indices, own.indices)):,} of them words of the text"


def _pair(
    model: "TrainedModel", item: Asked, other: Asked, mode: str, seeing: Seeing | None
) -> Listing:
    """What a query and a document share, and where their images have the strongest of it."""
    common = shared(model, item.value, other.value, item.field, other.field, mode=mode)
    listed = [(word, value) for word, value, _ in common.words]
    drawings: list[tuple[str, str, Image.Image]] = []
    for each in (item, other):
        if seeing is not None and each.kind == "image":
            drawings += _heat_maps(seeing(each), [word for word, _ in listed[:MAPS]])
    asked = "" if mode == "parametric" else f" (mode {mode})"
    note = f"{count_of(len(listed), 'word')} in common; the score is {number(common.score)}{asked}"
    title = f"shared: {item.value} × {other.value}"
    shares = [share for *_, share in common.words]
    return Listing("shared", title, listed, shares, log=True, note=note, drawings=drawings)


def map_tables(model: "TrainedModel", item: Asked, words: Sequence[str]) -> list[str]:
    """The values of words at the patches of an image, as lines of text."""
    seen = look(model, item.value, item.field)
    out = []
    for word in words:
        rows = [" ".join(f"{value:8.4f}" for value in row) for row in seen.map(word).tolist()]
        out.append("\n  ".join([f"{item.title}: {word!r} at each patch", *rows]))
    return out


def _heat_maps(seen: Patches, words: Sequence[str]) -> list[tuple[str, str, Image.Image]]:
    """Where words come from; of a word that the picture hardly has, pale."""
    least = float(seen.values.max()) / FAINT
    out = []
    for word in words:
        values = seen.map(word)
        most = float(values.max())
        picture = heat_maps.heat(seen.picture, values, max(most, least))
        out.append((f"heat-{word}", f"{word}: at most {number(most, 3)}", picture))
    return out


def _group(seen: Patches, item: Asked, place: str, draw: bool) -> Listing:
    """The words of a rectangle of patches."""
    chosen = rectangle(place, seen.side)
    marked = (
        [("patches", "the chosen patches", pictures.marked(seen.picture, chosen))] if draw else []
    )
    title = f"{item.title}, patches {place}"
    note = f"{int(chosen.sum())} of {chosen.size} patches"
    return Listing("patches", title, seen.strongest(chosen, None), note=note, drawings=marked)
