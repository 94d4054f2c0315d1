"""Shortened texts and small pictures of records, for examples."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from big_retrieval.data.fields.reader import FieldReader
from big_retrieval.data.fields.texts import source_texts
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import RecordSource, column_of
from big_retrieval.errors import UserError

SIDE = 96  # pixels of the longer side
MOST_CHARACTERS = 300  # of a text
UNREADABLE = "cannot be read"


def show_item(source: RecordSource, reader: FieldReader, record: int, index: int) -> dict[str, Any]:
    """Returns one image, or the text with this index, of a record as JSON values.

    Returns:
      `record` (its index) and,
      - for a text, `text`, and `characters` if it was shortened;
      - for an image, `picture` (a data URI), `size` [width, height] of the original if it can be
        read, and `id` if the record has one;
      - else the record's location as `text`.
    """
    if reader.field.modality == "text":
        try:
            value = source_texts(source, record, reader)[index]
            text = value if isinstance(value, str) else " · ".join(filter(None, value))
        except UserError:
            text = UNREADABLE
        cut = {"characters": len(text)} if len(text) > MOST_CHARACTERS else {}
        return {"record": record, "text": text[:MOST_CHARACTERS], **cut}
    if reader.field.modality != "image":
        return {"record": record, "text": source.place(record)}
    try:
        row = source[record]
        image = transforms.picture(column_of(row, reader.field.column, source.name))  # [H, W, 3]
    except UserError:
        return {"record": record, "picture": data_uri(unreadable())}
    name = row.get("id")
    by_id = {"id": name[:MOST_CHARACTERS]} if isinstance(name, str) else {}
    size = [int(image.shape[1]), int(image.shape[0])]
    return {"record": record, "picture": data_uri(shrink(image)), "size": size, **by_id}


def shrink(image: np.ndarray) -> Image.Image:
    """Shrinks an image [H, W, 3] to a longer side of at most `SIDE` pixels, uncropped."""
    small = Image.fromarray(np.ascontiguousarray(image))
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small


def unreadable() -> Image.Image:
    """Draws the gray tile of an unreadable image."""
    tile = Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    message, font = UNREADABLE.replace(" ", "\n", 1), ImageFont.load_default()
    draw = ImageDraw.Draw(tile)
    draw.multiline_text((SIDE / 2, SIDE / 2), message, "white", font, anchor="mm", align="center")
    return tile


def data_uri(image: Image.Image) -> str:
    """Encodes an image as PNG or JPEG, whichever is smaller, in a data URI."""
    png, jpeg = io.BytesIO(), io.BytesIO()
    image.save(png, "png", optimize=True)
    image.save(jpeg, "jpeg", quality=82, optimize=True)
    files = ("jpeg", jpeg.getvalue()), ("png", png.getvalue())
    image_type, data = min(files, key=lambda file: len(file[1]))
    return f"data:image/{image_type};base64,{base64.b64encode(data).decode()}"
