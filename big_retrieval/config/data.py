"""The configuration of where records come from and how they are read; see `big_retrieval.config`.

Every source gives records with the images in the column `image` and the texts in the column
`captions`, whatever its own names for them, and its other columns as they are.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive, Share
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source, check_drawn, check_terms, not_empty

if TYPE_CHECKING:
    from big_retrieval.config.evals import ZeroShot
    from big_retrieval.config.run import Config
    from big_retrieval.data.sources import RecordSource

SceneSplit = Literal["train", "validation", "test", "colours", "shapes"]
# What a record is: an image with its captions, of which training draws one in each epoch, or one
# caption with its image, so that an epoch has every caption once.
Each = Literal["images", "captions"]
MOST_SCENES = 10_000_000  # their parameters are held in memory
SCENE_COLUMNS = {"image": "image", "text": "captions"}  # modality of a field -> column
SCENE_LABELS = {"colours": ("colour", 8), "shapes": ("shape", 8)}  # split -> column, classes


@register("source")
@dataclass(frozen=True)
class Scenes(Source):
    """Generated images of two coloured shapes in relation, with captions."""

    generated: ClassVar[bool] = True
    has_negatives: ClassVar[bool] = False
    type: Literal["scenes"] = "scenes"
    split: SceneSplit = "train"
    size: int = 32
    count: int | None = None  # None: all of the split
    seed: int = 0

    def check(self, path: str) -> Iterator[str]:
        yield from check_drawn(self, path, MOST_SCENES, ", or None")

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, each in config.fields.items():
            column = SCENE_COLUMNS.get(each.modality)
            if column and each.column != column:
                yield (
                    f"config.fields.{name}.column is {each.column!r}; generated scenes have theirs "
                    f"in {column!r}."
                )

    def check_classes(self, evaluator: "ZeroShot", path: str) -> Iterator[str]:
        own = bool(evaluator.classes and evaluator.prompts)
        label, count = SCENE_LABELS.get(self.split, ("", 0))
        if evaluator.label != label and not own:
            splits = ", ".join(f"{name!r} for {split}" for split, (name, _) in SCENE_LABELS.items())
            yield (
                f"{path}.label is {evaluator.label!r}, which {path}.data.split {self.split!r} "
                f"lacks (labels: {splits}); change one of them."
            )
        given = len(evaluator.classes)
        if evaluator.label == label and given and given != count:
            yield f"{path}.classes has {given} names; label {label!r} needs {count}."

    def build(self) -> "RecordSource":
        from big_retrieval.data.synthetic import scenes

        return scenes.SceneRecords(self.split, size=self.size, count=self.count, seed=self.seed)


@register("source")
@dataclass(frozen=True)
class Pairs(Source):
    """Own records: JSON Lines, CSV, TSV, Parquet or npz files, or shards made by `convert`."""

    type: Literal["pairs"] = "pairs"
    # a file, several ("pairs/*.parquet"), or a folder of array_record shards or of pictures
    path: str = ""
    image: str = "image"  # column of paths, encoded bytes or arrays; empty: no images
    text: str = "captions"  # column of one text or a list of texts; empty: no texts
    each: Each = "images"
    separator: str = ""  # between the texts of one cell; empty: a cell is one text
    root: str = ""  # folder that image paths start from; empty: that of the file
    where: tuple[str, ...] = ()  # such as "split=train": only rows with this value
    rows: str = ""  # .npy file of the numbers of the rows to read, from 0; empty: all
    join: str = ""  # another file, whose columns are added
    on: str = ""  # the column whose value both files share
    how_to_get: str = ""  # said when `path` does not exist

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "file with your pairs")
        if not self.image and not self.text:
            yield (
                f"{path}.image and {path}.text are both empty: name a column in one of them. Pairs "
                f"of texts have no image; give {path}.text the column that a vocabulary is learned "
                "from, such as 'question', and each field its own (config.fields.<name>.column)."
            )
        if bool(self.join) != bool(self.on):
            yield (
                f"{path}.join and {path}.on go together: a file, and the column that both files "
                "have."
            )
        if self.rows and self.where:
            yield f"{path}.rows and {path}.where both choose rows; leave one of them empty."
        if self.each == "captions" and not self.text:
            yield f"{path}.each is 'captions', but {path}.text is empty; name their column."
        yield from check_terms(self, path, "where")

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import open_files

        return open_files.pairs(self)

    def without_texts(self) -> "Pairs":
        """See `Source`; where there is nothing else than texts, they stay."""
        return dataclasses.replace(self, text="") if self.image else self


@register("source")
@dataclass(frozen=True)
class Tar(Source):
    """Tar shards in the layout of WebDataset and img2dataset, read by index."""

    type: Literal["tar"] = "tar"
    path: str = ""  # "shards/*.tar" or "shards/{00000..00331}.tar"
    image: tuple[str, ...] = ("jpg", "jpeg", "png", "webp")  # endings; the first one there counts
    text: str = "txt"  # ending; or "json:caption", a key of the sample's JSON file
    index: str = ""  # folder of the index files; empty: beside the shards
    rows: str = ""  # .npy file of the numbers of the samples to read, from 0; empty: all
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "shards")

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import open_files

        return open_files.tar(self)


@register("source")
@dataclass(frozen=True)
class Tfds(Source):
    """A TensorFlow Datasets data set prepared as ArrayRecord; needs no TensorFlow."""

    type: Literal["tfds"] = "tfds"
    name: str = ""  # such as "coco_captions" or "imagenet2012:5.1.0"
    split: str = "train"  # slices too: "train[:1%]"
    folder: str = ""  # data_dir; empty: that of TFDS
    image: str = "image"  # feature; empty: no images
    text: str = ""  # feature, such as "captions/text"; empty: no texts
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        if not self.name and not self.folder:
            yield f"{path}.name is empty; give that of a TFDS data set, or its folder."

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import open_files

        return open_files.tfds(self)


@register("source")
@dataclass(frozen=True)
class Karpathy(Source):
    """Flickr30k or COCO by a Karpathy split file and a folder of images, of their regions, or both.

    With `regions`, records have the columns `regions` [R, F] and `boxes` [R, 4] (`RegionField`).
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["karpathy"] = "karpathy"
    path: str = ""  # dataset_flickr30k.json or dataset_coco.json
    # folder; empty: that of the file, or one in it; with `regions`: no images
    images: str = ""
    regions: str = ""  # folder that `big-retrieval data regions` wrote; empty: no regions
    split: str = "train"  # several: "train+restval", as published models for COCO are trained
    captions: int = 5  # of an image, at most; 0: all
    each: Each = "images"
    skip_missing: bool = False  # leave images out that are missing, instead of an error
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "split file")

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import captioned

        return captioned.karpathy(self)


@register("source")
@dataclass(frozen=True)
class Precomputed(Source):
    """Regions and captions in the files that VSRN and SCAN publish.

    The folder holds for each split `<split>_ims.npy` [images or captions, R, F] and
    `<split>_caps.txt`, a caption a line, those of an image one behind the other. Records have
    `captions`, the column `regions` (`RegionField`) and no boxes.
    """

    has_negatives: ClassVar[bool] = False
    type: Literal["precomputed"] = "precomputed"
    path: str = ""  # the folder, such as f30k_precomp
    split: str = "train"  # or dev, test, testall
    captions: AtLeast1 = 5  # of an image
    each: Each = "images"
    how_to_get: str = ""

    def check(self, path: str) -> Iterator[str]:
        yield from not_empty(self, path, "folder with <split>_ims.npy and <split>_caps.txt")

    def build(self) -> "RecordSource":
        from big_retrieval.data.formats import captioned

        return captioned.precomputed(self)


@dataclass(frozen=True)
class MixturePart:
    """One source of a mixture."""

    source: Source = field(default_factory=Pairs)
    weight: Positive | None = None  # share of the examples; None in all parts: by their records


@register("source")
@dataclass(frozen=True)
class Mixture(Source):
    """Several sources in fixed shares; each is shuffled on its own."""

    type: Literal["mixture"] = "mixture"
    parts: dict[str, MixturePart] = field(default_factory=dict)

    def check(self, path: str) -> Iterator[str]:
        if not self.parts:
            yield f"{path}.parts is empty; give it at least one source."
        weights = {name: part.weight for name, part in self.parts.items()}
        without = [name for name, weight in weights.items() if weight is None]
        if without and len(without) < len(weights):
            yield f"{path}.parts.{without[0]}.weight is None; give all parts a weight, or none."
        for name, part in self.parts.items():
            if isinstance(part.source, Mixture):
                yield f"{path}.parts.{name}.source is a mixture, too; give {path} its parts."
            yield from part.source.check(f"{path}.parts.{name}.source")

    def build(self) -> "RecordSource":
        from big_retrieval.data import build, mixture

        sources = {name: build.make_source(part.source) for name, part in self.parts.items()}
        return mixture.MixedSource(
            sources, {name: part.weight for name, part in self.parts.items()}
        )

    def inside(self) -> Iterator[Source]:
        for part in self.parts.values():
            yield from part.source.inside()


@dataclass(frozen=True)
class HardNegatives:
    """Further documents that every training pair brings, wrong ones for its query."""

    count: AtLeast0 = 0  # K, of a pair; drawn from its record's list, padded where that is shorter
    # column of a list of texts, or of {"title": ..., "text": ..., "pool": 0}: lower pools first
    column: str = "negatives"
    field: str = ""  # the text field of the documents that they are read like; empty: the only one


@dataclass(frozen=True)
class Loader:
    """How records are read, and what becomes of damaged ones."""

    threads: AtLeast1 = 2
    workers: AtLeast0 = 0  # processes; 0: threads only
    prefetch: AtLeast1 = 4  # batches
    decoder: Literal["pillow", "opencv"] = "pillow"  # opencv: faster, other pixels
    reduced: bool = True  # decode JPEG files at half, a quarter, ... where that is large enough
    max_damaged: Share = 0.01  # share of damaged records that ends a run
