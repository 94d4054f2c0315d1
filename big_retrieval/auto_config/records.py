"""Records of a source: keys of their contents, and a validation split."""

import hashlib
import io
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse
from PIL import Image
from scipy.sparse.csgraph import connected_components

from big_retrieval.data.fields.contents import image_key
from big_retrieval.data.images.decoding import Encoded, picture
from big_retrieval.data.sources import RecordSource, evenly_spaced, is_absent
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged
from big_retrieval.runtime.messages import count_of
from big_retrieval.runtime.progress import progress_bar

log = logging.getLogger(__name__)
SAMPLED = 100  # records in a sample
MANY = 50_000  # above this number of records, reading them is logged
SHARE = 0.1  # share of the records for validation
MOST = 1000  # maximum number of records for validation
NEAR = 1.5  # the first selected group may exceed the target by this factor


@dataclass
class RecordSample:
    """Facts about some records.

    Attributes:
      words: column -> number of words of each text.
      sides: short sides of the images in pixels; 0 for images that cannot be decoded.
      lists: number of texts that represent lists, such as '["a", "b"]'.
    """

    words: dict[str, list[int]] = field(default_factory=dict)
    sides: list[int] = field(default_factory=list)
    lists: int = 0

    def add(self, texts: Mapping[str, Sequence[str]], image: Any) -> None:
        """Adds a record: its texts by column, and its image or None."""
        for name, values in texts.items():
            self.words.setdefault(name, []).extend(len(text.split()) for text in values)
            self.lists += sum(text.strip().startswith(("['", '["')) for text in values)
        if image is not None:
            try:
                self.sides.append(min(picture(image).shape[:2]))
            except Exception:  # decoders raise any type
                self.sides.append(0)


def texts_in(value: Any) -> list[str]:
    """Returns the texts of a cell that are not blank."""
    values = value if isinstance(value, list | tuple | np.ndarray) else [value]
    return [str(text) for text in values if not is_absent(text)]


@dataclass
class RecordKeys:
    """Keys of usable records; records with an equal key share an image or a text.

    Attributes:
      rows: indices of the usable records.
      images: key of each record's image; 0 for no image.
      texts: keys of each record's texts.
      dropped: number of unusable records.
      first: location and reason of the first unusable record.
      sample: facts about at most `SAMPLED` of the usable records.
    """

    rows: list[int] = field(default_factory=list)
    images: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    dropped: int = 0
    first: str = ""
    sample: RecordSample = field(default_factory=RecordSample)


def read_keys(
    source: RecordSource, rows: Sequence[int], image: bool, columns: Sequence[str]
) -> RecordKeys:
    """Reads records that need a text in each of `columns`, and an image if `image` is True."""
    keys, progress = RecordKeys(), None
    if len(rows) > MANY:
        log.info(f"reading all {count_of(len(rows), 'record')} once, to keep copies in one split")
        progress = progress_bar("records", len(rows))
    sampled = {rows[i] for i in evenly_spaced(len(rows), SAMPLED).tolist()}
    for index in rows:
        if progress is not None:
            progress.update(1)
        key, record, texts = 0, {}, {}
        try:
            record = source[index]
            texts = {name: texts_in(record.get(name)) for name in columns}
            reason = next((f"there is no {name!r}" for name in columns if not texts[name]), "")
            if image and not reason:
                key, reason = _image_key(record["image"])
        except Damaged as damage:
            reason = damage.why
        if reason:
            keys.first = keys.first or f"{source.place(index)}: {reason}"
            keys.dropped += 1
            continue
        keys.rows.append(index)
        keys.images.append(key)
        plain = (normalize_text(x, ignore_case=True) for values in texts.values() for x in values)
        keys.texts.append([hash_of(text.encode("utf-8", "replace")) for text in plain])
        if index in sampled:
            keys.sample.add(texts, record["image"] if image else None)
    return keys


def _image_key(value: Any) -> tuple[int, str]:
    """Returns the key of an image, or 0 and the reason why it cannot be used."""
    if isinstance(value, Encoded):
        try:
            Image.open(io.BytesIO(value.data)).close()
        except Exception:  # Pillow raises any type
            return 0, "a broken image"
    content = image_key(value)
    return (0, "there is no image") if content is None else (hash_of(content), "")


def hash_of(data: bytes) -> int:
    """Returns 64 bits of a digest, equal in every run."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def split_off(keys: RecordKeys) -> tuple[np.ndarray, np.ndarray, str]:
    """Selects groups of records for validation by hashes of their contents, not by their order.

    Returns:
      Indices of the records for training and for validation, int64 in order; and a description.
    """
    count, has_images = len(keys.rows), any(keys.images)
    target = min(MOST, max(1, round(SHARE * count)))
    images = [[("image", x)] if x else [] for x in keys.images]
    texts = [[("text", x) for x in values] for values in keys.texts]
    both = [x + y for x, y in zip(images, texts, strict=True)]
    description = f"no {'image and no ' * has_images}text is on both sides"
    selected = _select(groups_of(both), keys, target)
    if len(selected) < 0.5 * target:
        first = images if has_images else [values[:1] for values in texts]
        selected = _select(groups_of(first), keys, target)
        distinct = len({x for values in keys.texts for x in values})
        description = (
            f"texts repeat ({distinct:,} distinct texts in {count:,} records) and are on both "
            f"sides, but no {'image' if has_images else 'first text'} is"
        )
    mask = np.zeros(count, bool)
    mask[selected] = True
    rows = np.array(keys.rows, np.int64)
    return rows[~mask], rows[mask], description


def groups_of(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Returns the group of each record, int64 [n]; keys link the records of a group."""
    first: dict[Hashable, int] = {}
    pairs = [
        (record, first.setdefault(key, record))
        for record, record_keys in enumerate(keys)
        for key in record_keys
    ]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    links = scipy.sparse.coo_array((np.ones(len(ends), bool), tuple(ends.T)), (len(keys),) * 2)
    return connected_components(links, directed=False)[1].astype(np.int64)


def _select(groups: np.ndarray, keys: RecordKeys, target: int) -> np.ndarray:
    """Returns about `target` records int64 [k]: groups in the order of their hashes."""
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.unique(groups[order], return_index=True)[1][1:])
    members.sort(key=lambda group: min(_content_hash(keys, record) for record in group))
    selected, count = [], 0
    for group in members:
        if count + len(group) <= (target if count else NEAR * target):
            selected.append(group)
            count += len(group)
        if count >= target:
            break
    return np.sort(np.concatenate(selected)) if selected else np.zeros(0, np.int64)


def _content_hash(keys: RecordKeys, record: int) -> int:
    parts = (keys.images[record], *sorted(keys.texts[record]))
    return hash_of(b"".join(part.to_bytes(8, "little") for part in parts))
