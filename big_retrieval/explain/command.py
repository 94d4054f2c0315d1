"""What `python -m big_retrieval.explain` lists and draws."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from big_retrieval.errors import UserError
from big_retrieval.explain import pictures
from big_retrieval.explain.items import evenly, open_data, spec_of, values_of
from big_retrieval.explain.patches import Patches, look, rectangle
from big_retrieval.explain.show import Part
from big_retrieval.explain.usage import box
from big_retrieval.explain.words import (
    check_field,
    lexical_fields,
    shared,
    strongest,
    usage,
    words_of,
)
from big_retrieval.report.numbers import number

if TYPE_CHECKING:
    from big_retrieval.loading import TrainedModel

MAPS = 4  # words that are drawn on an image unless named
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
BOXED = 100  # columns of a box plot, as in Figure 7 of the paper


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
    if field is not None and field in model.config.fields:
        kind = model.config.fields[field].kind
    elif kind == "text" and images and Path(value).suffix.lower() in ENDINGS:
        raise UserError(
            f"--with {value} is called like an image, but there is no such file; give one that is "
            "there, or --with_field for a text."
        )
    return asked(model, value, kind, field, other=first.field)


def explain(
    model: "TrainedModel",
    item: Asked,
    other: Asked | None,
    *,
    patches: Sequence[str] = (),
    maps: Sequence[str] = (),
    draw: bool = False,
) -> list[Part]:
    """The listings of a text or image, of its partner, and of what they share.

    Args:
      model: with lexical heads.
      item: what is explained.
      other: what it is compared with.
      patches: rectangles of patches, each listed by itself.
      maps: words to draw on images; (): the strongest, of two sides those that they share.
      draw: whether pictures are wanted.

    Raises:
      UserError: an image cannot be read, or patches or a word are none.
    """
    both = [item] if other is None else [item, other]
    common = None
    if other is not None:
        common = shared(model, item.value, other.value, item.field, other.field)
    parts = []
    for each in both:
        words = strongest(model, each.value, each.field, None)
        seen = None
        if each.kind == "image" and (draw or patches or maps):
            seen = look(model, each.value, each.field)
        drawings: list[tuple[str, str, Image.Image]] = []
        if draw and seen is not None:
            listed = [w for w, *_ in (common.words if common else words)][:MAPS]
            drawings = _drawings(seen, maps or listed)
        columns = f"{len(words):,} of {len(words_of(model, each.field)):,} columns"
        parts.append(Part(each.kind, each.title, words, note=columns, drawings=drawings))
        for place in patches if seen is not None else ():
            parts.append(_group(seen, each, place, draw))
    if common is not None:
        listed = [(word, value) for word, value, _ in common.words]
        shares = [share for *_, share in common.words]
        note = f"{len(listed):,} words in common; the score is {number(common.score)}"
        title = f"shared: {both[0].value} × {both[1].value}"
        parts.append(Part("shared", title, listed, shares, log=True, note=note))
    return parts


def map_tables(model: "TrainedModel", item: Asked, words: Sequence[str]) -> list[str]:
    """The values of words at the patches of an image, as lines of text."""
    seen = look(model, item.value, item.field)
    out = []
    for word in words:
        rows = [" ".join(f"{value:8.4f}" for value in row) for row in seen.map(word).tolist()]
        out.append("\n  ".join([f"{item.title}: {word!r} at each patch", *rows]))
    return out


def _drawings(seen: Patches, words: Sequence[str]) -> list[tuple[str, str, Image.Image]]:
    """The picture as the model saw it, and where words come from."""
    out = [("picture", "as the model sees it", Image.fromarray(pictures.enlarged(seen.picture)))]
    for word in words:
        values = seen.map(word)
        low, high = number(float(values.min()), 3), number(float(values.max()), 3)
        out.append(
            (f"heat-{word}", f"{word}: {low} to {high}", pictures.heat(seen.picture, values))
        )
    return out


def _group(seen: Patches | None, item: Asked, place: str, draw: bool) -> Part:
    """The words of a rectangle of patches."""
    assert seen is not None
    chosen = rectangle(place, seen.side)
    marked = [("patches", "", pictures.marked(seen.picture, chosen))] if draw else []
    title = f"{item.title}, patches {place}"
    note = f"{int(chosen.sum())} of {chosen.size} patches"
    return Part("patches", title, seen.strongest(chosen, None), note=note, drawings=marked)


def vocabulary(
    model: "TrainedModel", data: str, field: str | None, count: int | None, draw: bool
) -> list[Part]:
    """How a model uses its vocabulary for a set of texts or images (VDR, Figure 7).

    Args:
      model: with lexical heads.
      data: see `items.open_data`.
      field: of the set; None: the first lexical one.
      count: records, evenly spaced; None: all.
      draw: whether the box plot is wanted.

    Raises:
      UserError: there is no such field or data, or it has no value at all.
    """
    name = field or next(iter(lexical_fields(model.config)), "")
    check_field(model.config, name)
    source = open_data(model.config, data)
    spec = spec_of(model, name)
    values = (value for _, value in values_of(source, spec, evenly(source, count)))
    found, words = usage(model, values, name), words_of(model, name)
    order = np.argsort(-found.means, kind="stable")
    listed: Any = [(words[c], float(found.means[c])) for c in order.tolist() if found.means[c]]
    strong = box(found.means, BOXED)
    boxed = min(BOXED, found.used)
    note = (
        f"{found.rows:,} of them; {found.used:,} of {len(words):,} columns are used, "
        f"{number(found.active, 4)} at a time; the strongest {boxed} have "
        f"{pictures.percent(found.weight(BOXED))} of all value"
    )
    title = f"average values of {name}, {source.name}"
    drawn = []
    if draw and not pictures.missing():
        drawn = [("box", "", pictures.box_plot(f"{title}: strongest {boxed}", strong, words))]
    outside = [
        (words[int(c)], float(value))
        for c, value in zip(strong.outside, strong.values, strict=True)
    ]
    ends = " ".join(
        number(x, 3) for x in (strong.low, strong.first, strong.median, strong.third, strong.high)
    )
    beyond = f"whisker, quartile, median, quartile, whisker: {ends}; mean {number(strong.mean, 3)}"
    return [
        Part("vocabulary", title, listed, note=note, drawings=drawn),
        Part("outside", f"outside of the box of the strongest {boxed}", outside, note=beyond),
    ]
