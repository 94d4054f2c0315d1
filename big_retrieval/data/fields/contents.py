"""Keys that are equal for equal texts or images, and ids computed from them.

Keys are hashable: a text after `normalize_text`, a pair of title and text, or the digest of an
image's bytes or pixels.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from big_retrieval.data.images.decoding import Encoded
from big_retrieval.data.sources import Record
from big_retrieval.data.text.normalize import normalize_text

if TYPE_CHECKING:
    from big_retrieval.data.fields.reader import Drawing, FieldReader
    from big_retrieval.data.negatives import Negative

NONE = -1  # no id


@dataclass(frozen=True)
class ContentIds:
    """Settings for the content ids of training rows; see `row_ids`.

    Attributes:
      query, document: fields of each side.
      queries, documents: ids per row: one for the drawn value, the others for its record's values.
      negatives: document field that reads hard negatives; empty for none.
      count: K, hard negatives per row.
    """

    query: tuple[str, ...]
    document: tuple[str, ...]
    queries: int = 1
    documents: int = 1
    negatives: str = ""
    count: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the int32 arrays of a batch, with the shape of one row."""
        shapes: dict[str, tuple[int, ...]] = {
            "query_id": (self.queries,) if self.queries > 1 else (),
            "document_id": (self.documents,) if self.documents > 1 else (),
        }
        return shapes | ({"negatives_id": (self.count,)} if self.negatives else {})


def text_key(text: str | tuple[str, str]) -> Hashable:
    """Returns the key of a text, or of a title and a text; ignores an empty title."""
    if isinstance(text, str):
        return normalize_text(text)
    title, body = map(normalize_text, text)
    return (title, body) if title else body


def image_key(value: Any) -> bytes | None:
    """Returns the digest of an image's bytes or pixels; None for other values."""
    if isinstance(value, Encoded):
        value = value.data
    if isinstance(value, bytes | bytearray | memoryview):
        return hashlib.blake2b(value, digest_size=16).digest()
    if isinstance(value, np.ndarray) and value.dtype != object:
        form = hashlib.blake2b(f"{value.dtype} {value.shape}".encode(), digest_size=16)
        form.update(np.ascontiguousarray(value).data)
        return form.digest()
    return None


def key_id(content: Hashable) -> int:
    """Returns 31 bits of a key's digest: two keys collide with probability 2^-31."""
    values = content if isinstance(content, tuple) else (content,)
    digest = hashlib.blake2b(digest_size=4)
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little") >> 1


def row_ids(
    ids: ContentIds,
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
    negatives: Sequence["Negative"] = (),
) -> dict[str, np.ndarray]:
    """Returns the ids of one training row, equal for equal contents.

    A side with one field has the id of the drawn value, followed by ids of the record's other
    values. A side with several fields has one id for all drawn values together.

    Args:
      negatives: at most `ids.count` hard negatives.

    Returns:
      The arrays of `ContentIds.shapes`, int32; -1 for no id.
    """
    query = _side_ids(ids.query, readers, record, drawing)
    document = _side_ids(ids.document, readers, record, drawing)
    out = {"query_id": _padded(query, ids.queries), "document_id": _padded(document, ids.documents)}
    out = {name: x if len(x) > 1 else x[0] for name, x in out.items()}
    if ids.negatives:
        titled = bool(readers[ids.negatives].field.title)
        keys = [text_key(negative.as_text(titled)) for negative in negatives]
        out["negatives_id"] = _padded(list(map(key_id, keys)), ids.count)
    return out


def _padded(ids: list[int], length: int) -> np.ndarray:
    return np.array((ids + [NONE] * length)[:length], np.int32)


def _side_ids(
    names: Sequence[str],
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
) -> list[int]:
    """Returns the ids of a side's contents, the drawn value first; [] if unknown."""
    drawn: list[Hashable] = []
    other_contents: list[Hashable] = []
    for name in names:
        reader = readers[name]
        if reader.field.optional and reader.lacks(record):
            drawn.append("")
            continue
        contents = reader.record_contents(record, drawing)
        if not contents:
            return []
        index = drawing.texts[name].number if name in drawing.texts else 0
        drawn.append(contents[index])
        other_contents = [content for content in contents if content != contents[index]]
    if not any(drawn):
        return []
    if len(names) > 1:
        return [key_id(tuple(str(key_id(content)) for content in drawn))]
    return [key_id(content) for content in dict.fromkeys([*drawn, *other_contents])]
