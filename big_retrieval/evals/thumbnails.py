"""What examples show of a record: a shortened text, or a small picture that fits in a page."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import RecordSource, column_of, place_of
from big_retrieval.errors import UserError

SIDE = 96  # pixels, of the longer side at most
MOST_CHARACTERS = 300  # of a text
UNREADABLE = "cannot be read"


def show_item(source: RecordSource, reader: FieldReader, record: int, place: int) -> dict[str, Any]:
    """What a reader sees of one image or text of a record.

    Args:
      source: the records.
      reader: of the field.
      record: index.
      place: of the text in its record.

    Returns:
      `record`; for a text `text` with, where it was cut short, `characters`; for an image
      `picture` (a data URI), `size` [width, height] of the original where it can be read and `id`
      where the record has one; for all else where it stands, as `text`.
    """
    if reader.field.modality == "text":
        try:
            found = source_texts(source, record, reader)[place]
            text = found if isinstance(found, str) else " · ".join(filter(None, found))
        except UserError:
            text = UNREADABLE
        cut = {"characters": len(text)} if len(text) > MOST_CHARACTERS else {}
        return {"record": record, "text": text[:MOST_CHARACTERS], **cut}
    if reader.field.modality != "image":
        return {"record": record, "text": place_of(source, record)}
    try:
        row = source[record]
        image = transforms.picture(column_of(row, reader.field.column, source.name))  # [H, W, 3]
    except UserError:
        return {"record": record, "picture": data_uri(unreadable())}
    name = row.get("id")
    own = {"id": name[:MOST_CHARACTERS]} if isinstance(name, str) else {}
    size = [int(image.shape[1]), int(image.shape[0])]
    return {"record": record, "picture": data_uri(shrink(image)), "size": size, **own}


def shrink(image: np.ndarray) -> Image.Image:
    """An image [H, W, 3] with its longer side at most `SIDE`; the whole of it, uncropped."""
    small = Image.fromarray(np.ascontiguousarray(image))
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small


def unreadable() -> Image.Image:
    """A grey tile that says so."""
    tile = Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    draw = ImageDraw.Draw(tile)
    middle = (SIDE / 2, SIDE / 2)
    words = UNREADABLE.replace(" ", "\n", 1)
    font = ImageFont.load_default()
    draw.multiline_text(middle, words, "white", font, anchor="mm", align="center")
    return tile


def data_uri(image: Image.Image) -> str:
    """An image as a data URI, as PNG or JPEG, whichever is smaller."""
    found = []
    for kind, options in (
        ("png", {"optimize": True}),
        ("jpeg", {"quality": 82, "optimize": True}),
    ):
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        found.append((len(stream.getvalue()), kind, stream.getvalue()))
    _, kind, data = min(found)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
