"""What tells whether two records hold the same text or image, and the ids made of it.

Contents are plain values that can be compared and hashed: a text as `normalize_text` has it, a
title and a text, the path of an image, or the digest of an image's bytes or pixels.
"""

import hashlib
import os
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
    """Which ids training rows are given by what they hold; see `row_ids`.

    Attributes:
      query: the fields of queries.
      document: the fields of documents.
      queries: ids of a row, its own query's and those of others in the record; at least 1.
      documents: the same of documents.
      negatives: the document field that hard negatives are read like; "": there are none.
      count: K, hard negatives of a row.
    """

    query: tuple[str, ...]
    document: tuple[str, ...]
    queries: int = 1
    documents: int = 1
    negatives: str = ""
    count: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The int32 arrays of a batch, and the shape of one row in each."""
        found: dict[str, tuple[int, ...]] = {
            "query_id": (self.queries,) if self.queries > 1 else (),
            "document_id": (self.documents,) if self.documents > 1 else (),
        }
        return found | ({"negatives_id": (self.count,)} if self.negatives else {})


def of_text(text: str | tuple[str, str]) -> Hashable:
    """The key of a text, or of a title and a text; an empty title is none."""
    if isinstance(text, str):
        return normalize_text(text)
    title, body = map(normalize_text, text)
    return (title, body) if title else body


def of_image(value: Any) -> Hashable | None:
    """The path of an image, or the digest of its file's content or of its pixels; None: unknown.

    Args:
      value: what a record or the cell of a table holds.
    """
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, Encoded):
        value = value.data
    if isinstance(value, bytes | bytearray | memoryview):
        return hashlib.blake2b(value, digest_size=16).digest()
    if isinstance(value, str | os.PathLike):
        return str(value) or None
    if isinstance(value, np.ndarray) and value.dtype != object:
        form = hashlib.blake2b(f"{value.dtype} {value.shape}".encode(), digest_size=16)
        form.update(np.ascontiguousarray(value).data)
        return form.digest()
    return None


def number(content: Hashable) -> int:
    """31 bits of the digest of a content; different ones share a number once in 2^31 pairs."""
    parts = content if isinstance(content, tuple) else (content,)
    found = hashlib.blake2b(digest_size=4)
    for part in parts:
        each = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        found.update(len(each).to_bytes(8, "little") + each)
    return int.from_bytes(found.digest(), "little") >> 1


def row_ids(
    ids: ContentIds,
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
    negatives: Sequence["Negative"] = (),
) -> dict[str, np.ndarray]:
    """The ids of one training row, equal where contents are.

    Of a side with one field they are those of the value that was drawn and then of the record's
    other values; of a side with several fields there is one, of all that was drawn together.

    Args:
      ids: which are wanted.
      readers: field name -> how it is read.
      record: what the source gives.
      drawing: which of the record's texts was drawn.
      negatives: the hard negatives that were drawn, at most `ids.count`.

    Returns:
      The arrays of `ContentIds.shapes`, int32; -1 where there is no id.
    """
    out = {}
    for side, names, most in (
        ("query", ids.query, ids.queries), ("document", ids.document, ids.documents),
    ):  # fmt: skip
        found = _numbers(names, readers, record, drawing)[:most]
        padded = found + [NONE] * (most - len(found))
        out[f"{side}_id"] = np.array(padded if most > 1 else padded[0], np.int32)
    if ids.negatives:
        titled = bool(readers[ids.negatives].field.title)
        texts = [(each.title, each.text) if titled else each.text for each in negatives]
        found = [number(of_text(text)) for text in texts]
        out["negatives_id"] = np.array(found + [NONE] * (ids.count - len(found)), np.int32)
    return out


def _numbers(
    names: Sequence[str],
    readers: Mapping[str, "FieldReader"],
    record: Record,
    drawing: "Drawing",
) -> list[int]:
    """The numbers of a side's contents, the drawn one first; [] where they are not known."""
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
