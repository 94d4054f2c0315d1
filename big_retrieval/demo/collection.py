"""The documents that a demo searches: their texts, and their pictures as small files."""

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from big_retrieval.data.damage import record_at
from big_retrieval.data.formats.records import IMAGE, load_image
from big_retrieval.data.images import transforms
from big_retrieval.data.sources import BaseSource, Record, RecordSource, is_absent, place_of
from big_retrieval.data.stores.store import Store
from big_retrieval.errors import Damaged, UserError
from big_retrieval.report.thumbnails import unreadable

SIDE = 320  # pixels of a picture's longer side, at most
CACHE = 32 * 2**20  # bytes of pictures that are kept


class SourceRecords(BaseSource):
    """A source of a run's config, as documents of files are read (`retrieval/documents.py`).

    The id of a document is the number of its record, as ids of the source may occur twice.

    Args:
      source: the records.
      image: the column of the image; "": none.
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
        """Where a record stands, for messages."""
        return place_of(self._source, index)

    @property
    def table(self) -> "SourceRecords":
        """The records themselves, which `documents.read_row` asks for what is shown."""
        return self

    def row(self, index: int, columns: Sequence[str] | None = None) -> Record:
        """A record; of a column with several texts the first one, if columns are named."""
        row = self[index]
        for name in columns or ():
            if isinstance(row.get(name), list | tuple):
                row[name] = next((text for text in row[name] if isinstance(text, str)), None)
        return row


@dataclass
class DemoDocuments:
    """The documents, by number.

    Attributes:
      name: what a reader calls them.
      ids: of the documents.
      shown: the beginning of each text.
      store: rows as of `DocumentRow.stored`; None: there are neither whole texts nor pictures.
      records: records of the images that are not files; None for none.
    """

    name: str
    ids: Sequence[str]
    shown: Sequence[str]
    store: Store | None = None
    records: Any = None
    _pictures: "OrderedDict[int, tuple[str, bytes]]" = field(default_factory=OrderedDict)
    _held: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def has_texts(self) -> bool:
        """True if whole texts are stored."""
        return self.store is not None and "text" in self.store.names

    @property
    def has_pictures(self) -> bool:
        """True if documents have images that can be read."""
        names = () if self.store is None else self.store.names
        return "image" in names or ("inside" in names and self.records is not None)

    def text(self, number: int) -> str:
        """Returns the text of a document with its title; its beginning if no more is stored."""
        row = {} if self.store is None else self.store.row(number, ("text",))
        return row.get("text") or self.shown[number]

    def image(self, number: int) -> Any:
        """Returns the image of a document, not decoded; None for none.

        Raises:
          Damaged: it cannot be read.
        """
        if self.store is None:
            return None
        row = self.store.row(number, ("row", "image", "inside"))
        if "image" in row:
            return load_image(row["image"], Path("/"), f"document {self.ids[number]}")
        if self.records is None or "inside" not in row:
            return None
        with record_at(place_of(self.records, row["row"])):
            return self.records[row["row"]].get(IMAGE)

    def picture(self, number: int) -> tuple[str, bytes] | None:
        """The image of a document as a small file: its type and content; None: it has none.

        The last `CACHE` bytes of pictures are kept. Safe in threads.
        """
        with self._lock:
            if number in self._pictures:
                self._pictures.move_to_end(number)
                return self._pictures[number]
        try:
            image = self.image(number)
            if image is None:
                return None
            found = small_file(Image.fromarray(transforms.picture(image)))
        except (Damaged, UserError):
            found = small_file(unreadable())
        with self._lock:
            if number not in self._pictures:
                self._pictures[number] = found
                self._held += len(found[1])
            while self._held > CACHE:
                self._held -= len(self._pictures.popitem(last=False)[1][1])
        return found


def small_file(image: Image.Image, side: int = SIDE) -> tuple[str, bytes]:
    """An image as a small file: its type, and its content as PNG or JPEG, whichever is smaller.

    Args:
      image: in RGB.
      side: pixels of its longer side, at most; smaller images are enlarged by a whole factor, so
        that their pixels stay sharp.
    """
    factor = side // max(image.size)
    if factor > 1:
        image = image.resize(
            (image.width * factor, image.height * factor), Image.Resampling.NEAREST
        )
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    found: list[tuple[int, str, bytes]] = []
    for kind, options in (("png", {}), ("jpeg", {"quality": 85})):
        stream = io.BytesIO()
        image.save(stream, kind, **options)
        found.append((len(stream.getvalue()), f"image/{kind}", stream.getvalue()))
    _, kind, data = min(found)
    return kind, data
