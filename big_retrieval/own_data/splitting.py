"""A validation part: records that share an image or a text with none that is trained on."""

import hashlib
import os
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse.csgraph import connected_components

from big_retrieval.data.formats.tables import Table
from big_retrieval.data.sources import is_absent
from big_retrieval.data.text.normalize import normalize_text
from big_retrieval.errors import Damaged
from big_retrieval.own_data.columns import is_image_file, verdict_of

SHARE = 0.1  # of the records, for validation
MOST = 1000  # records that are validated on
BLOCK = 2**14  # bytes at a file's start and end that tell it from others
NEAR = 1.5  # of the wanted records: a group that brings more is left to training


@dataclass
class RecordKeys:
    """What records share.

    Attributes:
      rows: numbers of the usable records.
      image: hash of each one's image; 0: none.
      texts: hashes of each one's texts.
      dropped: why records cannot be used -> how many.
      root: the folder that paths of image files start from.
      files: hash of an image -> the first file that has it.
      others: usable record -> its image file, where another file has its hash, too.
    """

    rows: list[int] = field(default_factory=list)
    image: list[int] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    root: Path = Path()
    files: dict[int, str] = field(default_factory=dict)
    others: dict[int, str] = field(default_factory=dict)

    def drop(self, why: str) -> None:
        """Counts a record that cannot be used."""
        self.dropped[why] = self.dropped.get(why, 0) + 1

    def add(self, row: int, image: int, file: Any, texts: list[int]) -> None:
        """Takes a usable record; `file` is the path of its image, or no text."""
        if isinstance(file, str) and self.files.setdefault(image, file) != file:
            self.others[len(self.rows)] = file
        self.rows.append(row)
        self.image.append(image)
        self.texts.append(texts)

    def copies(self) -> dict[str, str]:
        """The whole path of each image file that is a copy of an earlier one -> that one's."""
        found = {}
        for record, file in self.others.items():
            first = self.files.get(self.image[record])  # None where `tell_apart` has told it apart
            if first is not None:
                found[str(self.root / file)] = str(self.root / first)
        return found


def keys_of(
    table: Table, image: Sequence[str], texts: Sequence[str], root: Path, score: str = "",
    least: float = 0.0,
) -> RecordKeys:  # fmt: skip
    """Reads all records.

    Args:
      table: the rows.
      image: columns of the image, of which the first one there counts; empty: there is none.
      texts: columns that each record must have a text in.
      root: the folder that image paths start from.
      score: a column of numbers, or of "yes" and "no"; "": there is none.
      least: the lowest score of records that count.
    """
    found = RecordKeys(root=root)
    wanted = {*image, *texts, score} - {""}
    for index in range(len(table)):
        try:
            row = table.row(index, wanted)
        except Damaged:
            found.drop("cannot be read")
            continue
        said = [list(_texts(row.get(column))) for column in texts]
        if not all(said):
            found.drop(f"have no {' or no '.join(texts)}")
            continue
        if score and not (verdict_of(row.get(score)) or 0.0) >= least:
            found.drop(f"have {score!r} below {least:g}")
            continue
        pixels, value = 0, None
        if image:
            value = next((row[x] for x in image if row.get(x) is not None), None)
            if isinstance(value, dict):
                value = value.get("bytes") or value.get("path")
            pixels, why = image_key(value, root)
            if why:
                found.drop(why)
                continue
        hashes = [hash_of(text.encode("utf-8", "replace")) for x in said for text in x]
        found.add(index, pixels, value, hashes)
    return found


def tell_apart(splits: Iterable[RecordKeys]) -> None:
    """Gives image files that differ in their middle alone hashes of their own.

    Those of uncompressed pictures of one size do. Only files that share a hash are read whole.

    Args:
      splits: all records that are compared; changed in place.
    """
    splits = list(splits)
    seen, shared = set[int](), set[int]()  # hashes, and those that perhaps several files have
    for keys in splits:
        shared |= {keys.image[record] for record in keys.others} | (seen & keys.files.keys())
        seen |= keys.files.keys()
    named: dict[int, set[str]] = {image: set() for image in shared}
    for keys in splits:
        for image in shared & keys.files.keys():
            named[image].add(os.path.join(keys.root, keys.files[image]))
        for record, file in keys.others.items():
            named[keys.image[record]].add(os.path.join(keys.root, file))
    whole: dict[str, int] = {}
    for files in (each for each in named.values() if len(each) > 1):
        own = {file: _whole(file) for file in files}
        whole |= own if len(set(own.values())) > 1 else {}
    if not whole:
        return
    for keys in splits:
        for record, image in enumerate(keys.image):
            if (file := keys.others.get(record, keys.files.get(image))) is not None:
                keys.image[record] = whole.get(os.path.join(keys.root, file), image)


def _whole(file: str) -> int:
    """A hash of all of a file's content; of one that went away, of its path."""
    try:
        with open(file, "rb") as opened:
            return hash_of(hashlib.file_digest(opened, "blake2b").digest())
    except OSError:
        return hash_of(file.encode("utf-8", "surrogateescape"))


def _texts(value: Any) -> Iterator[str]:
    """The keys of the texts of a cell, whatever their capitals."""
    for text in value if isinstance(value, list | tuple | np.ndarray) else [value]:
        if not is_absent(text):
            yield normalize_text(str(text), ignore_case=True)


def hash_of(data: bytes) -> int:
    """A whole number that follows from some bytes, the same in every run."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def image_key(value: Any, root: Path) -> tuple[int, str]:
    """A hash of an image's content, and why it cannot be used, or "".

    Of a file its size, start and end are read, not all of it; see `tell_apart`.
    """
    if isinstance(value, np.ndarray):
        return hash_of(value.tobytes()), ""
    if isinstance(value, list):
        return hash_of(repr(value).encode()), ""
    if isinstance(value, bytes):
        return (hash_of(value), "") if is_image_file(value) else (0, "have a broken image")
    if not isinstance(value, str) or not value.strip():
        return 0, "have no image"
    path = root / value
    try:
        if not os.path.isfile(path):
            return 0, "name an image that is not there"
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            start = file.read(BLOCK)
            file.seek(max(0, size - BLOCK))
            data = b"%d" % size + start + file.read(BLOCK)
            file.seek(0)
            fine = is_image_file(file)
    except (OSError, ValueError):
        return 0, "have an image that cannot be read"
    return (hash_of(data), "") if fine else (0, "have a broken image")


def groups_of(keys: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """The group of each record, int64 [n]: records that share keys, directly or through others."""
    first: dict[Hashable, int] = {}
    pairs = [
        (record, first.setdefault(key, record)) for record, own in enumerate(keys) for key in own
    ]
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    links = scipy.sparse.coo_array((np.ones(len(ends), bool), tuple(ends.T)), (len(keys),) * 2)
    return connected_components(links, directed=False)[1].astype(np.int64)


def split(keys: RecordKeys) -> tuple[np.ndarray, np.ndarray, str]:
    """Chooses whole groups for validation, by a hash of what their records hold.

    The order of the rows makes no difference.

    Args:
      keys: of the usable records.

    Returns:
      The rows for training and for validation, int64 each, in order, and what keeps them apart.
    """
    count = len(keys.rows)
    wanted = min(MOST, max(1, round(SHARE * count)))
    images = [[("image", x)] if x else [] for x in keys.image]
    both = [
        own + [("text", x) for x in texts] for own, texts in zip(images, keys.texts, strict=True)
    ]
    groups, apart = groups_of(both), "no image and no text is on both sides"
    if not any(keys.image):
        apart = "no text is on both sides"
    chosen = _choose(groups, keys, wanted)
    if len(chosen) < 0.5 * wanted:
        different = len({x for texts in keys.texts for x in texts})
        groups = groups_of(images if any(keys.image) else [[x[:1]] for x in map(tuple, keys.texts)])
        apart = (
            f"texts come again and again ({different:,} different ones in {count:,} records), so "
            f"they are on both sides, but no {'image' if any(keys.image) else 'first text'} is"
        )
        chosen = _choose(groups, keys, wanted)
    mask = np.zeros(count, bool)
    mask[chosen] = True
    rows = np.array(keys.rows, np.int64)
    return rows[~mask], rows[mask], apart


def _choose(groups: np.ndarray, keys: RecordKeys, wanted: int) -> np.ndarray:
    """Records of groups in the order of their hashes, until there are enough: int64 [k]."""
    order = np.argsort(groups, kind="stable")
    _, starts = np.unique(groups[order], return_index=True)
    members = np.split(order, starts[1:])
    marks = [min(_mark(keys, record) for record in group) for group in members]
    found, taken = [], 0
    for number in sorted(range(len(members)), key=lambda x: marks[x]):
        size = len(members[number])
        if taken + size <= max(wanted, NEAR * wanted if not taken else wanted):
            found.append(members[number])
            taken += size
        if taken >= wanted:
            break
    return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)


def _mark(keys: RecordKeys, record: int) -> int:
    """A number that follows from what a record holds."""
    parts = (keys.image[record], *sorted(keys.texts[record]))
    return hash_of(b"".join(part.to_bytes(8, "little") for part in parts))
