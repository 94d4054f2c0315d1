"""Sources of records in files: pairs in tables or folders, tar shards, prepared TFDS data sets."""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_terms, not_empty
from big_retrieval.data.formats.open_files import TRY, find_files, table_of, terms_of
from big_retrieval.data.formats.records import Each, EachCaption, Records
from big_retrieval.data.formats.views import Joined, numbered, selected
from big_retrieval.data.sources import RecordSource
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.store import Store
from big_retrieval.data.stores.tar import TAR
from big_retrieval.errors import UserError

log = logging.getLogger(__name__)
_compute: Any = pc  # pyarrow generates its functions at import; type checkers miss them


@register("source")
@dataclass(frozen=True)
class Pairs(Source):
    """Records in JSON Lines, CSV, TSV, Parquet or npz files, or in shards of `convert`."""

    type: Literal["pairs"] = "pairs"
    # a file, several ("pairs/*.parquet"), or a folder of array_record shards or of pictures
    path: str = ""
    image: str = "image"  # column of paths, encoded bytes or arrays; empty for no images
    text: str = "captions"  # column of one text or a list of texts; empty for no texts
    each: Each = "images"
    separator: str = ""  # separates texts in a cell; empty for one text per cell
    root: str = ""  # folder that image paths start from; empty for the folder of the file
    where: tuple[str, ...] = ()  # such as "split=train": only rows with this value
    rows: str = ""  # .npz or .npy file of the indices of the rows to read; empty for all rows
    join: str = ""  # another file, whose columns are added
    on: str = ""  # column of both files that joins them
    how_to_get: str = ""  # advice in the error message if `path` does not exist

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with your pairs")
        if not self.image and not self.text:
            yield (
                f"{path}.image and {path}.text are both empty: name a column in one of them. Pairs "
                f"of texts have no image; give {path}.text the column that a vocabulary is learned "
                "from, such as 'question', and each field its own (config.fields.<name>.column)."
            )
        if bool(self.join) != bool(self.on):
            yield f"{path}.join and {path}.on need each other: a file, and a column of both files."
        if self.rows and self.where:
            yield f"{path}.rows and {path}.where both choose rows; leave one of them empty."
        if self.each == "captions" and not self.text:
            yield f"{path}.each is 'captions', but {path}.text is empty; name their column."
        yield from check_terms(self, path, "where")

    def build(self) -> RecordSource:
        paths = find_files(self.path, self.how_to_get)
        table, classes = table_of(paths, image="" if self.root else self.image)
        if self.where:
            table = selected(table, terms_of(self.where))
        if self.rows:
            table = numbered(table, self.rows, self.path)
        if self.join:
            other, _ = table_of(find_files(self.join, self.how_to_get))
            table = Joined(table, other, self.on)
        records = Records(
            table,
            image=(self.image,) if self.image else (),
            text=self.text,
            separator=self.separator,
            root=self.root or paths[0].parent,
            classes=classes,
        )
        return EachCaption(records) if self.each == "captions" else records

    def without_texts(self) -> "Pairs":
        """Returns a source without texts, or this one if it has no images."""
        return dataclasses.replace(self, text="") if self.image else self


@register("source")
@dataclass(frozen=True)
class Tar(Source):
    """Tar shards in the layout of WebDataset and img2dataset, read by index."""

    type: Literal["tar"] = "tar"
    path: str = ""  # "shards/*.tar" or "shards/{00000..00331}.tar"
    image: tuple[str, ...] = ("jpg", "jpeg", "png", "webp")  # endings; the first with a file counts
    text: str = "txt"  # ending; or "json:caption", a key of the sample's JSON file
    # captions in a text: its lines, or one; auto: lines if all texts have equally many, at least 2
    texts: Literal["auto", "one", "lines"] = "auto"
    rows: str = ""  # .npz or .npy file of the indices of the samples to read; empty for all samples
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "shards")

    def build(self) -> Records:
        """Opens the shards; a shard that cannot be read is a damaged record."""
        store = open_store(find_files(self.path, self.how_to_get), TAR)
        count = _common_lines(store, self.text) if self.texts == "auto" else 0
        if count > 1:
            log.info(f"{store.name}: every sample has {count} captions, the lines of its text")
        separator = "\n" if self.texts == "lines" or count > 1 else ""
        table = numbered(store, self.rows, self.path) if self.rows else store
        return Records(table, image=self.image, text=self.text, separator=separator)


def _common_lines(store: Store, column: str) -> int:
    """Returns the number of lines in each text; 0 if the texts have different numbers."""
    counts = {
        count
        for array in store.arrays(column)
        if pa.types.is_string(array.type)
        for count in _compute.unique(_compute.count_substring(array, "\n")).to_pylist()
    } - {None}
    return counts.pop() + 1 if len(counts) == 1 else 0


@register("source")
@dataclass(frozen=True)
class Tfds(Source):
    """A TensorFlow Datasets data set prepared as ArrayRecord, without TensorFlow."""

    type: Literal["tfds"] = "tfds"
    name: str = ""  # such as "coco_captions" or "imagenet2012:5.1.0"
    split: str = "train"  # or a slice, such as "train[:1%]"
    folder: str = ""  # data_dir; empty for TFDS's default
    image: str = "image"  # feature; empty for no images
    text: str = ""  # feature, such as "captions/text"; empty for no texts
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        if not self.name and not self.folder:
            yield f"{path}.name is empty; give the name of a TFDS data set, or its folder."

    def build(self) -> Records:
        from big_retrieval.data.formats.prepared import Prepared  # TFDS takes a second to import

        try:
            table = Prepared(self.name, self.split, self.folder, self.image)
        except UserError as error:
            hint = f"{self.how_to_get}, or " if self.how_to_get else ""
            raise UserError(f"{str(error).rstrip('.')}; {hint}{TRY}.") from None
        image = (self.image,) if self.image else ()
        return Records(table, image=image, text=self.text, classes=table.classes)
