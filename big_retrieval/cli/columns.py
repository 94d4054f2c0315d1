"""The flags that name the columns of documents: --text, --title, --image, --show and --id."""

from typing import Any

from absl import flags

TEXT = flags.DEFINE_list("text", [], "Column of the text, or several; the field's by default")
TITLE = flags.DEFINE_string("title", "", "Column of the title; the field's by default")
IMAGE = flags.DEFINE_string("image", "", "Column of the image; the field's by default")
SHOW = flags.DEFINE_string("show", "", "Column that is shown with results; the text by default")
ID = flags.DEFINE_string("id", "", "Column of the ids; id, or numbers, by default")


def named() -> dict[str, Any]:
    """The columns as keys of `DocumentColumns`."""
    single = {each.name: each.value for each in (TITLE, IMAGE, SHOW, ID)}
    return {"text": tuple(TEXT.value), **single}
