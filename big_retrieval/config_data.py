"""The configuration of where records come from and how they are read; see `big_retrieval.config`.

Every source gives records with the images in the column `image` and the texts in the column
`captions`, whatever its own names for them, and its other columns as they are.
"""

from dataclasses import dataclass, field
from typing import Literal

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


OneSource = Scenes | Pairs | Tar | Tfds | Karpathy


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


Source = Scenes | Pairs | Tar | Tfds | Karpathy | Mixture


@dataclass(frozen=True)
class Loader:
    """How records are read, and what becomes of damaged ones."""

    threads: int = 2
    workers: int = 0  # processes; 0: threads only
    prefetch: int = 4  # batches
    decoder: Literal["pillow", "opencv"] = "pillow"  # opencv: faster, other pixels
    reduced: bool = True  # decode JPEG files at half, a quarter, ... where that is large enough
    max_damaged: float = 0.01  # share of damaged records that ends a run
