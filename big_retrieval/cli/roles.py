"""Flags that describe --data: its columns (--image, --text, --query, ...) and its images."""

import os

from absl import flags

ROLES = {
    "image": "column of images: files, or their content; empty: there is none",
    "text": "column of captions",
    "query": "column of questions or queries",
    "document": "column of answers, or of the documents' texts",
    "score": "column of clicks, ranks or other scores; empty: all pairs count alike",
    "document_id": "column of the documents' ids, of judged pairs",
    "images": "folder that image paths start from; default: the folder of their table",
}
FLAGS = {
    name: flags.DEFINE_string(name, None, f"With --data: {about}") for name, about in ROLES.items()
}
flags.DEFINE_alias("answer", "document")


def data_flags() -> dict[str, str | None]:
    """Returns the values of the flags, as keys of `own_data.columns.DataFlags`."""
    values = {name: flag.value for name, flag in FLAGS.items()}
    return {**values, "images": values["images"] and os.path.abspath(values["images"])}
