"""Keys that are equal if two records hold the same text or image, and ids computed from them.

Keys are hashable values: a text after `normalize_text`, a title and a text, or the digest of an
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
    """Ids of training rows by their contents; see `row_ids`.

    Attributes:
      queries: number of query ids per row, for the drawn query and others of the record; at least
        1.
      documents: number of document ids per row.
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


def of_text(text: str | tuple[str, str]) -> Hashable:
    """Returns the key of a text, or of a title and a text; an empty title is ignored."""
    if isinstance(text, str):
        return normalize_text(text)
    title, body = map(normalize_text, text)
    return (title, body) if title else body


def of_image(value: Any) -> bytes | None:
    """Returns the digest of an image's bytes or pixels; None if the value is no image."""
    if isinstance(value, Encoded):
        value = value.data
    if isinstance(value, bytes | bytearray | memoryview):
        return hashlib.blake2b(value, digest_size=16).digest()
    if isinstance(value, np.ndarray) and value.dtype != object:
        form = hashlib.blake2b(f"{value.dtype} {value.shape}".encode(), digest_size=16)
        form.update(np.ascontiguousarray(value).data)
        return form.digest()
    return None


def number(content: Hashable) -> int:
    """Returns 31 bits of a key's digest; two keys collide once in 2^31 pairs."""
    parts = content if isinstance(content, tuple) else (content,)
    digest = hashlib.blake2b(digest_size=4)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return int.from_bytes(digest.digest(), "little") >> 1


def row_ids(
    ids: ContentIds,
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
    negatives: Sequence["Negative"] = (),
) -> dict[str, np.ndarray]:
    """Returns the ids of one training row, equal if the contents are equal.

    A side with one field has the id of the drawn value, followed by ids of the record's other
    values. A side with several fields has one id, for all drawn values together.

    Args:
      negatives: at most `ids.count` hard negatives.

    Returns:
      The arrays of `ContentIds.shapes`, int32; -1 for no id.
    """
    out = {}
    for side, names, most in (
        ("query", ids.query, ids.queries), ("document", ids.document, ids.documents),
    ):  # fmt: skip
        numbers = _numbers(names, readers, record, drawing)[:most]
        padded = numbers + [NONE] * (most - len(numbers))
        out[f"{side}_id"] = np.array(padded if most > 1 else padded[0], np.int32)
    if ids.negatives:
        titled = bool(readers[ids.negatives].field.title)
        texts = [(x.title, x.text) if titled else x.text for x in negatives]
        numbers = [number(of_text(text)) for text in texts]
        out["negatives_id"] = np.array(numbers + [NONE] * (ids.count - len(numbers)), np.int32)
    return out


def _numbers(
    names: Sequence[str],
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
) -> list[int]:
    """Returns the ids of a side's contents, the drawn value first; [] if unknown."""
    chosen: list[Hashable] = []
    others: list[Hashable] = []
    for name in names:
        reader = readers[name]
        if reader.field.optional and reader.lacks(record):
            chosen.append("")
            continue
        contents = reader.record_contents(record, drawing)
        if not contents:
            return []
        place = drawing.texts[name].number if name in drawing.texts else 0
        chosen.append(contents[place])
        others = [each for each in contents if each != contents[place]]
    if not any(chosen):
        return []
    if len(names) > 1:
        return [number(tuple(str(number(each)) for each in chosen))]
    return [number(each) for each in dict.fromkeys([*chosen, *others])]
