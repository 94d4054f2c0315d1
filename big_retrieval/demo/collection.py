"""Documents of the demo: their texts, and their pictures as small files."""

import functools
import io
import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.open_files import files_of_flag, table_of
from big_retrieval.data.formats.records import IMAGE, Records, load_image
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import Record, RecordSource, is_absent
from big_retrieval.errors import Damaged, UserError
from big_retrieval.report.thumbnails import unreadable
from big_retrieval.retrieval import folder as folders
from big_retrieval.retrieval.dense import DenseIndex
from big_retrieval.retrieval.files import StoredTexts
from big_retrieval.retrieval.inverted import InvertedIndex

SIDE = 320  # maximum pixels of the longer side of a picture
CACHED = 512  # pictures in memory
PREVIEW = 260  # maximum characters of a text in a list
log = logging.getLogger(__name__)


class SourceRecords(RecordSource):
    """Adapts a source of a run's config to the records of files (`retrieval/documents.py`).

    The id of a document is its record index, because ids of a source may occur twice. `image` is
    the column of the image; "" for none.
    """

    def __init__(self, source: RecordSource, image: str):
        self.name, self._source, self._image = source.name, source, image

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Record:
        row = dict(self._source[index])
        if self._image:
            value = row.get(self._image)
            row[IMAGE] = None if is_absent(value) else value
        return row | {"id": str(index)}

    def place(self, index: int) -> str:
        return self._source.place(index)

    @property
    def table(self) -> "SourceRecords":
        """These records: `documents.read_row` reads the column to show from `records.table`."""
        return self

    def row(self, index: int, columns: Sequence[str] | None = None) -> Record:
        """Returns a record; for named columns with several texts, the first text."""
        row = self[index]
        for name in columns or ():
            if isinstance(row.get(name), list | tuple):
                row[name] = next((text for text in row[name] if isinstance(text, str)), None)
        return row


class DemoDocuments:
    """Documents of an index, by document index; safe in threads.

    Args:
      name: title of the page.
      index: its store has the whole texts, and the images or their paths.
      records: records of images that are inside other files; None if images are files.
    """

    def __init__(self, name: str, index: InvertedIndex | DenseIndex, records: Any = None):
        self.name, self.ids = name, index.ids
        self.shown = StoredTexts(index.store, "shown")
        self._store, self._records = index.store, records
        self.has_texts = "text" in self._store.names
        inside = "inside" in self._store.names and records is not None
        self.has_pictures = "image" in self._store.names or inside
        self.picture = functools.lru_cache(CACHED)(self._picture)

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, document: int) -> str:
        """Returns a document's text with its title; its beginning if no more is stored."""
        return self._store.row(document, ("text",)).get("text") or self.shown[document]

    def preview(self, document: int) -> str:
        """Returns the short text of a document that lists show."""
        if self.has_pictures or not self.has_texts:
            return self.shown[document]
        return textwrap.shorten(self.text(document), PREVIEW, placeholder=" …")

    def image(self, document: int) -> Any:
        """Returns a document's undecoded image, or None; raises `Damaged` if it cannot be read."""
        row = self._store.row(document, ("row", "image", "inside"))
        if "image" in row:
            return load_image(row["image"], Path("/"), f"document {self.ids[document]}")
        if self._records is None or "inside" not in row:
            return None
        with record_at(self._records.place(row["row"])):
            return self._records[row["row"]].get(IMAGE)

    def _picture(self, document: int) -> tuple[str, bytes] | None:
        """Returns media type and content of a document's picture, or None."""
        try:
            image = self.image(document)
            return None if image is None else small_file(transforms.picture(image))
        except (Damaged, UserError):
            return small_file(unreadable())


def open_image_records(index: InvertedIndex | DenseIndex) -> Records | None:
    """Opens images inside shards, tar files or tables; None with a warning if these changed."""
    origin: dict[str, Any] = (folders.made_from(index.folder) or {}).get("documents", {})
    column, files = origin.get("image"), index.about.files
    if not column or not files or "inside" not in index.store.names:
        return None
    try:
        table, _ = table_of(files_of_flag("data", files))
        if table.fingerprint == origin["fingerprint"]:
            return Records(table, image=(column,), text="")
        reason = "have changed"
    except (UserError, OSError) as error:
        reason = f"cannot be read ({str(error).rstrip('.')})"
    log.warning(
        f"no pictures: the files that {index.folder} was built from {reason}: {files}. Restore "
        "them, or build the index again."
    )
    return None


def small_file(picture: Any) -> tuple[str, bytes]:
    """Converts an RGB picture to (media type, content): PNG or JPEG, whichever is smaller."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    factor = SIDE // max(image.size)  # an integer, so that pixels of small pictures stay sharp
    if factor > 1:
        image = image.resize(
            (image.width * factor, image.height * factor), Image.Resampling.NEAREST
        )
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    files = []
    for name, options in (("png", {}), ("jpeg", {"quality": 85})):
        stream = io.BytesIO()
        image.save(stream, name, **options)
        files.append((f"image/{name}", stream.getvalue()))
    return min(files, key=lambda file: len(file[1]))
