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

from big_retrieval.data.fields.contents import of_image
from big_retrieval.data.images.decoding import Encoded, picture
from big_retrieval.data.sources import RecordSource, evenly_spaced, is_absent
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged
from big_retrieval.runtime.progress import progress_bar

log = logging.getLogger(__name__)
SAMPLED = 100  # records
MANY = 50_000  # records above which reading all of them is worth a message
SHARE = 0.1  # of the records, for validation
MOST = 1000  # records for validation
NEAR = 1.5  # a first group of at most this multiple of the wanted records is taken


@dataclass
class RecordSample:
    """Facts about some records.

    Attributes:
      words: column -> words of each text.
      sides: short sides of the images, in pixels; 0 for an image that cannot be decoded.
      lists: number of texts that are lists written as text, such as '["a", "b"]'.
    """

    words: dict[str, list[int]] = field(default_factory=dict)
    sides: list[int] = field(default_factory=list)
    lists: int = 0

    def add(self, texts: Mapping[str, Sequence[str]], image: Any) -> None:
        """Adds a record: its texts by column, and its image or None."""
        for name, own in texts.items():
            self.words.setdefault(name, []).extend(len(text.split()) for text in own)
            self.lists += sum(text.strip().startswith(("['", '["')) for text in own)
        if image is not None:
            try:
                self.sides.append(min(picture(image).shape[:2]))
            except Exception:  # of a decoder
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
      images: key of the image of each; 0 for none.
      texts: keys of the texts of each.
      dropped: number of records that cannot be used.
      first: location and reason of the first of them.
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
    """Reads records and their images as a whole.

    Args:
      image: True if records need an image.
      columns: columns in which records need a text.
    """
    keys, progress = RecordKeys(), None
    if len(rows) > MANY:
        log.info(f"reading all {len(rows):,} records once, to keep copies in one split")
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
        plain = (normalize_text(x, ignore_case=True) for own in texts.values() for x in own)
        keys.texts.append([hash_of(text.encode("utf-8", "replace")) for text in plain])
        if index in sampled:
            keys.sample.add(texts, record["image"] if image else None)
    return keys


def _image_key(value: Any) -> tuple[int, str]:
    """Returns the key of an image, and the reason if it cannot be used."""
    if isinstance(value, Encoded):
        try:
            with Image.open(io.BytesIO(value.data)):
                pass
        except Exception:  # Pillow raises anything
            return 0, "a broken image"
    content = of_image(value)
    return (0, "there is no image") if content is None else (hash_of(content), "")


def hash_of(data: bytes) -> int:
    """Returns 64 bits of a digest, equal in every run."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def split_off(keys: RecordKeys) -> tuple[np.ndarray, np.ndarray, str]:
    """Chooses whole groups of records for validation, by a hash of their contents.

    The order of the records makes no difference.

    Returns:
      Indices of the records for training and for validation, int64 each, in order; and what keeps
      both apart.
    """
    count, has_images = len(keys.rows), any(keys.images)
    wanted = min(MOST, max(1, round(SHARE * count)))
    images = [[("image", x)] if x else [] for x in keys.images]
    texts = [[("text", x) for x in own] for own in keys.texts]
    both = [x + y for x, y in zip(images, texts, strict=True)]
    apart = f"no {'image and no ' * has_images}text is on both sides"
    chosen = _choose(groups_of(both), keys, wanted)
    if len(chosen) < 0.5 * wanted:
        first = images if has_images else [own[:1] for own in texts]
        chosen = _choose(groups_of(first), keys, wanted)
        different = len({x for own in keys.texts for x in own})
        apart = (
            f"texts repeat ({different:,} different ones in {count:,} records), so they are on "
            f"both sides, but no {'image' if has_images else 'first text'} is"
        )
    mask = np.zeros(count, bool)
    mask[chosen] = True
    rows = np.array(keys.rows, np.int64)
    return rows[~mask], rows[mask], apart


def groups_of(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """Returns the group of each record, int64 [n]; keys link the records of a group."""
    first: dict[Hashable, int] = {}
    pairs = [
        (record, first.setdefault(key, record)) for record, own in enumerate(keys) for key in own
    ]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    links = scipy.sparse.coo_array((np.ones(len(ends), bool), tuple(ends.T)), (len(keys),) * 2)
    return connected_components(links, directed=False)[1].astype(np.int64)


def _choose(groups: np.ndarray, keys: RecordKeys, wanted: int) -> np.ndarray:
    """Returns records of groups in the order of their hashes until there are enough, int64 [k]."""
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.unique(groups[order], return_index=True)[1][1:])
    members.sort(key=lambda group: min(_mark(keys, record) for record in group))
    found, taken = [], 0
    for group in members:
        if taken + len(group) <= (wanted if taken else NEAR * wanted):
            found.append(group)
            taken += len(group)
        if taken >= wanted:
            break
    return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _mark(keys: RecordKeys, record: int) -> int:
    """Returns a hash of the contents of a record."""
    parts = (keys.images[record], *sorted(keys.texts[record]))
    return hash_of(b"".join(part.to_bytes(8, "little") for part in parts))
