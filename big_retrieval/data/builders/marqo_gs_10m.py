"""Marqo-GS-10M as a data set of TensorFlow Datasets, without TensorFlow and without the network.

    python -m big_retrieval.data.builders.marqo_gs_10m --manual_dir=FOLDER [--data_dir=FOLDER]

`--manual_dir` holds the download in one of its two forms:

    query_0_product_id_0.csv, ..., corpus_1.json, corpus_2.json, and the images in a folder
    in_domain*.parquet, novel_query*.parquet, ... (perhaps in a folder), with the images inside

A source of judged pairs then reads it by `path="tfds:marqo_gs_10m/in_domain"`.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as library

from big_retrieval.cli.option_groups import CommonOptions
from big_retrieval.data.formats.open_files import file_table
from big_retrieval.data.formats.tables import check_columns
from big_retrieval.data.stores.ingest import open_store
from big_retrieval.data.stores.json_files import json_object_reader
from big_retrieval.errors import UserError

tfds: Any = library  # it loads its parts when asked, which types cannot see

FILES = {  # split -> (file of its pairs, file of its documents)
    "in_domain": ("query_0_product_id_0.csv", "corpus_1.json"),
    "novel_query": ("query_1_product_id_0.csv", "corpus_1.json"),
    "novel_document": ("query_0_product_id_1.csv", "corpus_2.json"),
    "zero_shot": ("query_1_product_id_1.csv", "corpus_2.json"),
}
NEEDED = ("query", "product_id", "score_linear")
NO_IMAGE = "pairs_without_image"  # in the metadata: split -> how many

Row = dict[str, Any]


class MarqoGs10m(tfds.core.GeneratorBasedBuilder):
    """Queries and the products that they led to, with scores from 1 to 100."""

    name = "marqo_gs_10m"
    code_path = None  # TFDS seeks checksums of downloads there, with a library it does not require
    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "The four splits, a row a pair."}  # noqa: RUF012 - TFDS wants it so
    MANUAL_DOWNLOAD_INSTRUCTIONS = (
        "Download Marqo-GS-10M (huggingface.co/datasets/Marqo/marqo-GS-10M, or the archives that "
        "github.com/marqo-ai/GCL lists) and give its folder as manual_dir."
    )

    def _info(self) -> Any:
        text = tfds.features.Text
        features = {
            "query": text(),
            "query_id": text(doc="the query itself where the files have no id"),
            "product_id": text(),
            "title": text(doc="empty: there is none"),
            "image": tfds.features.Tensor(
                shape=(), dtype=np.object_, doc="content of the image file; empty: there is none"
            ),
            "score_linear": tfds.features.Scalar(np.float64, doc="101 - rank; 100 is the best"),
            "position": tfds.features.Scalar(np.int64, doc="the rank, from 1; 0: not given"),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            description="Queries and ranked products with titles and images (GCL, Section 3).",
            features=tfds.features.FeaturesDict(features),
            homepage="https://github.com/marqo-ai/GCL",
            metadata=tfds.core.MetadataDict({NO_IMAGE: {}}),
            disable_shuffling=True,  # as in the files; training shuffles by itself
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        folder = Path(dl_manager.manual_dir)
        return {split: self._generate_examples(folder, split) for split in found_splits(folder)}

    def _generate_examples(self, folder: Path, split: str) -> Iterator[tuple[int, Row]]:
        missing = 0
        for number, example in enumerate(examples(folder, split)):
            missing += not example["image"]
            yield number, example
        self.info.metadata[NO_IMAGE][split] = missing


def found_splits(folder: Path) -> list[str]:
    """The splits whose files are in the folder.

    Raises:
      UserError: there is none.
    """
    found = [
        split for split in FILES if _parquet(folder, split) or (folder / FILES[split][0]).is_file()
    ]
    if not found:
        raise UserError(
            f"{folder} has neither {FILES['in_domain'][0]} nor in_domain*.parquet; give the folder "
            "of the downloaded Marqo-GS-10M as --manual_dir."
        )
    return found


def examples(folder: Path, split: str) -> Iterator[Row]:
    """The pairs of a split, as the features say.

    Raises:
      UserError: a file that is damaged, lacks a column, or has a row without a query, a product or
        a score; the file and the row are named.
    """
    parquet, (pairs, documents) = _parquet(folder, split), FILES[split]
    corpus = {} if parquet else _corpus(folder / documents)
    for table in map(file_table, parquet or [folder / pairs]):
        check_columns(table, NEEDED)
        for index in range(len(table)):
            row, place = table.row(index), table.place(index)
            for column in NEEDED:
                if row.get(column) in (None, ""):
                    raise UserError(f"{place} has no {column}; correct the file.")
            known = corpus.get(row["product_id"], {})
            row = {**known, **{key: value for key, value in row.items() if value}}
            try:
                score, position = float(row["score_linear"]), int(float(row.get("position") or 0))
            except ValueError as problem:
                raise UserError(f"{place}: {problem}; correct the file.") from None
            yield {
                "query": str(row["query"]),
                "query_id": str(row.get("query_id") or row["query"]),
                "product_id": str(row["product_id"]),
                "title": str(row.get("title") or ""),
                "image": _image(folder, row),
                "score_linear": score,
                "position": position,
            }


def _parquet(folder: Path, split: str) -> list[Path]:
    return sorted(folder.rglob(f"{split}*.parquet"))


def _corpus(path: Path) -> dict[str, Row]:
    """What the file of documents says of each product, which the pairs may leave open."""
    if not path.is_file():
        return {}
    table = open_store([path], json_object_reader(path, "product_id"))
    return {row["product_id"]: row for row in map(table.row, range(len(table)))}


def _image(folder: Path, row: Row) -> bytes:
    """The image inside of the row, or the file by its path or else its name in `images`."""
    image, local = row.get("image"), row.get("image_local")
    if isinstance(image, bytes | dict):
        return (image.get("bytes") if isinstance(image, dict) else image) or b""
    if not isinstance(local, str) or not local:
        return b""
    paths = (folder / local, folder / "images" / Path(local).name)
    return next((path.read_bytes() for path in paths if path.is_file()), b"")


def prepare(manual_dir: Path, data_dir: Path | None = None) -> Any:
    """Writes the data set as ArrayRecord files, where it is not there already.

    Args:
      manual_dir: the folder of the download.
      data_dir: where data sets go; None: TFDS's default.

    Returns:
      The builder, whose `info` has counts and `data_path`.

    Raises:
      UserError: as `examples`.
    """
    if not manual_dir.is_dir():
        raise UserError(f"--manual_dir {manual_dir} is no folder.")
    builder = MarqoGs10m(data_dir=data_dir, file_format="array_record")
    config = tfds.download.DownloadConfig(manual_dir=manual_dir)
    builder.download_and_prepare(download_config=config)
    return builder


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrepareOptions(CommonOptions):
    """Options of this module."""

    manual_dir: Path | None = None  # Folder of the download
    data_dir: Path | None = None  # Where data sets go; TFDS's default if empty


def main(options: PrepareOptions) -> None:
    """The command line; prints what was written."""
    if options.manual_dir is None:
        raise UserError(f"--manual_dir is missing. {MarqoGs10m.MANUAL_DOWNLOAD_INSTRUCTIONS}")
    builder = prepare(options.manual_dir, options.data_dir)
    for split, info in builder.info.splits.items():
        missing = builder.info.metadata[NO_IMAGE].get(split, 0)
        print(f"{split:15} {info.num_examples:>12,} pairs, {missing:,} of them without an image")
    absent = [split for split in FILES if split not in builder.info.splits]
    if absent:
        print(f"not in the folder: {', '.join(absent)}")
    print(f"to train on them: --config.data.path=tfds:{builder.data_path}/in_domain")


if __name__ == "__main__":
    import sys

    from big_retrieval import cli

    cli.run({"": main}, sys.argv[1:], name="marqo_gs_10m", doc=__doc__ or "")
