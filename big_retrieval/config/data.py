"""The configuration of where records come from and how they are read; see `big_retrieval.config`.

Every source gives records with the images in the column `image` and the texts in the column
`captions`, whatever its own names for them, and its other columns as they are.
"""

from dataclasses import dataclass, field
from typing import Literal

from big_retrieval.config.texts import Beir, Dpr, Triples

SceneSplit = Literal["train", "validation", "test", "colours", "shapes"]


@dataclass(frozen=True)
class Scenes:
    """Generated images of two coloured shapes in relation, with captions."""

    type: Literal["scenes"] = "scenes"
    split: SceneSplit = "train"
    size: int = 32
    count: int | None = None  # None: all of the split
    seed: int = 0


@dataclass(frozen=True)
class Pairs:
    """Own records: JSON Lines, CSV, TSV, Parquet or npz files, or shards made by `convert`."""

    type: Literal["pairs"] = "pairs"
    path: str = ""  # a file, several ("pairs/*.parquet"), or a folder of array_record shards
    image: str = "image"  # column of paths, encoded bytes or arrays; empty: no images
    text: str = "captions"  # column of one text or a list of texts; empty: no texts
    separator: str = ""  # between the texts of one cell; empty: a cell is one text
    root: str = ""  # folder that image paths start from; empty: that of the file
    where: tuple[str, ...] = ()  # such as "split=train": only rows with this value
    join: str = ""  # another file, whose columns are added
    on: str = ""  # the column whose value both files share
    how_to_get: str = ""  # said when `path` does not exist


@dataclass(frozen=True)
class Tar:
    """Tar shards in the layout of WebDataset and img2dataset, read by index."""

    type: Literal["tar"] = "tar"
    path: str = ""  # "shards/*.tar" or "shards/{00000..00331}.tar"
    image: tuple[str, ...] = ("jpg", "jpeg", "png", "webp")  # endings; the first one there counts
    text: str = "txt"  # ending; or "json:caption", a key of the sample's JSON file
    index: str = ""  # folder of the index files; empty: beside the shards
    how_to_get: str = ""


@dataclass(frozen=True)
class Tfds:
    """A TensorFlow Datasets data set prepared as ArrayRecord; needs no TensorFlow."""

    type: Literal["tfds"] = "tfds"
    name: str = ""  # such as "coco_captions" or "imagenet2012:5.1.0"
    split: str = "train"  # slices too: "train[:1%]"
    folder: str = ""  # data_dir; empty: that of TFDS
    image: str = "image"  # feature; empty: no images
    text: str = ""  # feature, such as "captions/text"; empty: no texts
    how_to_get: str = ""


@dataclass(frozen=True)
class Karpathy:
    """Flickr30k or COCO by a Karpathy split file and a folder of images."""

    type: Literal["karpathy"] = "karpathy"
    path: str = ""  # dataset_flickr30k.json or dataset_coco.json
    images: str = ""  # folder; empty: that of the file
    split: str = "train"  # several: "train+restval"
    captions: int = 5  # of an image, at most; 0: all
    how_to_get: str = ""


@dataclass(frozen=True)
class Graded:
    """Judged pairs of queries and documents, with how well they fit.

    A record is a pair with the columns of its query and its document; evaluations rank all
    documents for each query.
    """

    type: Literal["graded"] = "graded"
    # the pairs: CSV, TSV, JSONL, Parquet, {query: {document: score}} in JSON, qrels, or a prepared
    # data set: "tfds:marqo_gs_10m/in_domain"; `queries` and `documents` can be one, too
    path: str = ""
    query: str = "query_id"  # column of the query's id in the pairs; or of the text itself
    document: str = "document_id"  # column of the document's id in the pairs
    score: str = "score"  # column of the score, rank or clicks
    score_from: Literal["score", "rank", "clicks"] = (
        "score"  # rank 1: s_max; clicks: by their order
    )
    s_max: float = 100.0  # of scores from ranks and clicks
    where: tuple[str, ...] = ()  # such as "split=train": only pairs with this value
    queries: str = ""  # file with a row a query; empty: its columns are those of the pairs
    query_key: str = ""  # its column of ids; empty: named as in the pairs
    documents: str = ""  # file with a row a document; empty: its columns are those of the pairs
    document_key: str = ""
    where_documents: tuple[str, ...] = ()  # such as "corpus=A": the documents that are ranked
    text: tuple[str, ...] = ("query", "title")  # columns of texts, of queries and documents
    image: str = ""  # column of the documents' images: a path, bytes, or one or several keys
    images: str = ""  # file (npz, Parquet, ...) of the images with these keys
    image_key: str = "image_id"  # its column of keys
    image_value: str = "images"  # its column of images
    root: str = ""  # folder that image paths start from; empty: that of the documents' file
    drop: bool = False  # leave out pairs whose query or document is unknown, counted, not an error
    # of a pair that is there with different scores: an error, or which one counts
    twice: Literal["refuse", "max", "min", "mean", "first"] = "refuse"
    negative: Literal["refuse", "zero"] = "refuse"  # what a score below 0 is: an error, or 0
    least: float = 0.0  # pairs of lower scores are left out; 1 keeps what fits, to train on
    rename: tuple[str, ...] = ()  # columns, before all else: "queries.text=query", "pairs.pid=id"
    how_to_get: str = ""


@dataclass(frozen=True)
class GradedScenes:
    """Generated judged pairs: queries such as "red circle" and scenes with images and titles."""

    type: Literal["graded_scenes"] = "graded_scenes"
    split: Literal["in_domain", "novel_query", "novel_document", "zero_shot"] = "in_domain"
    size: int = 32
    count: int = 400  # documents
    seed: int = 0


OneSource = Scenes | Pairs | Tar | Tfds | Karpathy | Graded | GradedScenes | Beir | Dpr | Triples


@dataclass(frozen=True)
class Part:
    """One source of a mixture."""

    source: OneSource = field(default_factory=Pairs)
    weight: float | None = None  # share of the examples; None in all parts: by their records


@dataclass(frozen=True)
class Mixture:
    """Several sources in fixed shares; each is shuffled on its own."""

    type: Literal["mixture"] = "mixture"
    parts: dict[str, Part] = field(default_factory=dict)


Source = OneSource | Mixture


@dataclass(frozen=True)
class HardNegatives:
    """Further documents that every training pair brings, wrong ones for its query."""

    count: int = 0  # K, of a pair; drawn from its record's list, padded where that is shorter
    # column of a list of texts, or of {"title": ..., "text": ..., "pool": 0}: lower pools first
    column: str = "negatives"
    field: str = ""  # the text field of the documents that they are read like; empty: the only one


@dataclass(frozen=True)
class Loader:
    """How records are read, and what becomes of damaged ones."""

    threads: int = 2
    workers: int = 0  # processes; 0: threads only
    prefetch: int = 4  # batches
    decoder: Literal["pillow", "opencv"] = "pillow"  # opencv: faster, other pixels
    reduced: bool = True  # decode JPEG files at half, a quarter, ... where that is large enough
    max_damaged: float = 0.01  # share of damaged records that ends a run
