"""Reader of tar shards in the layout of WebDataset and img2dataset.

A sample is a group of consecutive members with the same name before the first dot: 000012.jpg,
000012.txt, 000012.json. Texts are copied into the store. Other members stay in the shard and are
read with one seek.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from big_retrieval.data.sources import Record, as_utf8
from big_retrieval.data.stores.blocks import FileRow, Reader, in_blocks
from big_retrieval.data.stores.json_files import checked_object, parse_json
from big_retrieval.data.stores.store import HEADER
from big_retrieval.data.stores.values import Pointer, header_digest
from big_retrieval.errors import UserError
from big_retrieval.io.handles import RandomAccessFile

LARGEST_MEMBER = 256 * 2**20  # bytes; a damaged header may contain any size
MOST_ENDINGS = 64  # with more, names of samples contain dots: the shard is rejected
FEW_MEMBERS = 8  # a larger shard is rejected if most of its members have dotted endings


@in_blocks
def read_tar(path: Path) -> Iterator[FileRow | str]:
    """Yields the samples of a shard.

    A row has the name of the sample as `__key__`, the members `txt` and `cls` as str, the keys of
    its JSON member as `json:<key>`, and other members by their ending as bytes. A shard that is not
    a tar file, is compressed or has no sample is one damaged row. If a shard is cut short, its last
    sample is skipped, because members may be missing.
    """
    samples = _Samples(path)
    reason = "the shard has no sample; fetch it again or leave it out"
    try:
        yield from samples
    except tarfile.ReadError as error:
        reason = f"not a tar file ({error}); unpack compressed shards first"
    if samples.is_cut:
        yield f"{path} is cut short: its first {samples.count:,} samples are used"
    if not samples.count:
        yield {}, 1, reason, 0


TAR = Reader(read_tar, "sample", key="__key__", copied_share=0)


class _Samples:
    """Rows of a shard: `count` so far. `is_cut` is True if the end of the shard is missing."""

    def __init__(self, path: Path):
        self._path, self._file = path, RandomAccessFile(path)
        self._size = path.stat().st_size
        self.count, self.is_cut = 0, False
        self._endings: dict[str, str] = {}  # ending -> a file name with it

    def __iter__(self) -> Iterator[FileRow]:
        key, members = None, []
        for name, ending, member in self._members():
            if name != key and key is not None:
                yield self._row(key, members)
                members = []
            key = name
            members.append((ending, member))
        if key is not None and not self.is_cut:
            yield self._row(key, members)

    def _members(self) -> Iterator[tuple[str, str, tarfile.TarInfo]]:
        """Yields the sample's name, the ending and the header of each member."""
        members = 0
        with tarfile.open(self._path, "r:") as shard:
            try:
                for member in shard:
                    folder, _, name = member.name.rpartition("/")
                    stem, dot, ending = name.partition(".")
                    ending = as_utf8(ending).lower()  # the name of a column
                    if not member.isfile() or not dot or not stem or member.size > LARGEST_MEMBER:
                        continue
                    if member.offset_data + member.size > self._size:
                        self.is_cut = True
                        return
                    self._endings[ending] = name
                    if len(self._endings) > MOST_ENDINGS:
                        raise self._dots()
                    members += 1
                    yield f"{folder}/{stem}" if folder else stem, ending, member
                    shard.members = []  # type: ignore  # tarfile would keep all members
            except tarfile.ReadError:
                self.is_cut = True
                return
            dotted = sum("." in ending for ending in self._endings)
            if members > FEW_MEMBERS and dotted > members // 2:
                raise self._dots()
            end = self._file.read(shard.offset, shard.offset + HEADER)
            self.is_cut = end != bytes(HEADER)  # a tar file ends with zeros

    def _dots(self) -> UserError:
        name = next((self._endings[x] for x in self._endings if "." in x), "a.b.jpg")
        return UserError(
            f"{self._path}: names of its files have several dots, such as {name!r}. A sample's "
            "name ends at the first dot, as in WebDataset: rename the files."
        )

    def _row(self, key: str, members: list[tuple[str, tarfile.TarInfo]]) -> FileRow:
        row: Record = {"__key__": key}
        size, reason = 0, None
        for ending, member in members:
            start, length = member.offset_data, member.size
            size += HEADER + -(-length // HEADER) * HEADER  # contents use blocks of 512 bytes
            if ending in ("txt", "cls"):
                row[ending] = self._content(start, length).decode("utf-8", "replace").strip()
            elif ending == "json":
                values, error = parse_json(self._content(start, length))
                if isinstance(values, dict):
                    values, error = checked_object(values)
                    row |= {f"json:{name}": value for name, value in values.items()}
                reason = error and f"its JSON is {error}"
            else:
                header = self._file.read(start - HEADER, start)
                row[ending] = Pointer(start, length, header_digest(header))
        self.count += 1
        return {"__key__": key} if reason else row, self.count, reason, size

    def _content(self, start: int, length: int) -> bytes:
        return self._file.read(start, start + length)
