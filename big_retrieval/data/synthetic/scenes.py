"""Generated scenes: two colored shapes in relation, with captions. Nothing is downloaded.

A scene has two objects (8 shapes x 8 colors x 2 sizes), one of 4 relations and one of 4 grey
backgrounds, with noise and position jitter. Record i of a split depends on (seed, split, i) alone.

A pair of kinds is an unordered {(shape, color), (shape, color)}. A fixed hash reserves about 10% of
the pairs for test and 3% for validation; these pairs never appear in training. Test and validation
scenes are unique for both orders of the objects ("a big red circle left of a small blue square"
equals "a small blue square right of a big red circle"), so each caption belongs to exactly one
image. The zero-shot splits `colours` and `shapes` show two objects with one label, from test pairs.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np

from big_retrieval.config.ranges import Range, Seed
from big_retrieval.config.registry import register
from big_retrieval.config.sources import Source
from big_retrieval.data.sources import Record, RecordSource
from big_retrieval.data.synthetic import shapes
from big_retrieval.data.synthetic.scene_parameters import (
    COLOURS,
    COUNTS,
    LABELS,
    SHAPES,
    draw_parameters,
    stream_of,
)

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.evals.zeroshot import ZeroShot

SceneSplit = Literal["train", "validation", "test", "colours", "shapes"]
MOST_SCENES = 10_000_000  # parameters of all scenes are in memory
SCENE_COLUMNS = {"image": "image", "text": "captions"}  # modality of a field -> column
SIZES = ("big", "small")
RELATIONS = ("left of", "right of", "above", "below")
CAPTIONS = 5  # per record

TEMPLATES = (
    "a {a} {relation} a {b}",
    "a {a} is {relation} a {b}",
    "there is a {a} {relation} a {b}",
    "the {a} is {relation} the {b}",
    "a picture of a {a} {relation} a {b}",
    "a {a} can be seen {relation} a {b}",
)


@register("source")
@dataclass(frozen=True)
class Scenes(Source):
    """Generated images of two coloured shapes in relation, with captions."""

    generated: ClassVar[bool] = True
    has_negatives: ClassVar[bool] = False
    type: Literal["scenes"] = "scenes"
    split: SceneSplit = "train"
    size: Annotated[int, Range(16)] = 32
    count: Annotated[int, Range(1, MOST_SCENES)] | None = None  # None for all records of the split
    seed: Seed = 0

    def check_training(self, config: "Config") -> Iterator[str]:
        for name, field in config.fields.items():
            column = SCENE_COLUMNS.get(field.modality)
            if column and field.column != column:
                yield (
                    f"config.fields.{name}.column is {field.column!r}; generated scenes need "
                    f"{column!r}."
                )

    def check_classes(self, evaluator: "ZeroShot", path: str) -> Iterator[str]:
        has_classes = bool(evaluator.classes and evaluator.prompts)
        label, names = LABELS.get(self.split, ("", ()))
        if evaluator.label != label and not has_classes:
            splits = ", ".join(f"{name!r} for {split}" for split, (name, _) in LABELS.items())
            yield (
                f"{path}.label is {evaluator.label!r}, which {path}.data.split {self.split!r} "
                f"lacks (labels: {splits}); change one of them."
            )
        count = len(evaluator.classes)
        if evaluator.label == label and count and count != len(names):
            yield f"{path}.classes has {count} names; label {label!r} needs {len(names)}."

    def build(self) -> "SceneRecords":
        return SceneRecords(self.split, size=self.size, count=self.count, seed=self.seed)


def _prompts(label: str) -> tuple[str, ...]:
    """Returns 16 prompts in the style of the captions, with balanced other attributes."""
    prompts = []
    for i in range(16):
        template = TEMPLATES[i % len(TEMPLATES)]
        sizes = SIZES[i // 4 % 2], SIZES[i % 2]
        if label == "colour":
            a, b = (f"{{}} {SHAPES[j % 8]}" for j in (i, 3 * i + 2 + i // 8))
        else:
            a, b = (f"{COLOURS[j % 8]} {{}}" for j in (i, 3 * i + 2 + i // 8))
        relation = RELATIONS[(i + i // 8) % 4]
        prompts.append(template.format(a=f"{sizes[0]} {a}", b=f"{sizes[1]} {b}", relation=relation))
    return tuple(prompts)


class SceneRecords(RecordSource):
    """Records of one split.

    Columns: `image` uint8 [size, size, 3], `captions` (5 texts), `id`, `relation`, `background`,
    `first_shape`, `first_colour`, `first_size` and the same with `second_`, all indices into the
    tuples of this module; in the zero-shot splits also `colour` or `shape`.

    Args:
      split: "train", "validation", "test", "colours" or "shapes".
      size: side of the images in pixels, at least 16.
      count: number of records; None for the default of the split. A larger count keeps the first
        records.
      seed: another seed gives other scenes, with the same held-out pairs.
    """

    def __init__(self, split: str, *, size: int = 32, count: int | None = None, seed: int = 0):
        self.name = f"scenes-{split}"
        self.split, self.size, self.seed = split, size, seed
        self._count = COUNTS[split] if count is None else count
        self._objects, self._floats = draw_parameters(split, self._count, seed)
        label, names = LABELS.get(split, ("", ()))
        self.classes = {label: names} if label else {}
        self.prompts = {label: _prompts(label)} if label else {}

    def __reduce__(self) -> tuple:
        make = functools.partial(SceneRecords, size=self.size, count=self._count, seed=self.seed)
        return make, (self.split,)

    def __len__(self) -> int:
        return self._count

    @property
    def objects(self) -> np.ndarray:
        """Contents of the records: kinds (2), sizes (2) and relation, int64 [n, 5]."""
        return self._objects

    def __getitem__(self, index: int) -> Record:
        self.check_index(index)
        objects = self._drawn(index)
        background = int(self._floats[index][0] * len(shapes.BACKGROUNDS))
        record: Record = {
            "image": shapes.draw_scene(self.size, background, objects, self._noise(index)),
            "captions": self._captions(index),
            "id": f"{self.name}-{index:06d}",
            "relation": int(self._objects[index][4]),
            "background": background,
        }
        for prefix, (shape, colour, extent, _, _) in zip(("first", "second"), objects, strict=True):
            record[f"{prefix}_shape"], record[f"{prefix}_colour"] = shape, colour
            record[f"{prefix}_size"] = extent
        if self.split in LABELS:
            label = LABELS[self.split][0]
            record[label] = record[f"first_{label}"]
        return record

    def _drawn(self, index: int) -> list[shapes.Object]:
        """Returns the first and the second object of a record."""
        first, second, first_size, second_size, relation = self._objects[index].tolist()
        places = _places(relation, self._floats[index][1:5].tolist())
        return [
            (kind // len(COLOURS), kind % len(COLOURS), extent, x, y)
            for kind, extent, (x, y) in zip(
                (first, second), (first_size, second_size), places, strict=True
            )
        ]

    def covers(self, index: int) -> np.ndarray:
        """Returns the coverage of each pixel by both objects, float32 [2, size, size]."""
        self.check_index(index)
        return np.stack([shapes.cover(self.size, x) for x in self._drawn(index)])

    def phrases(self, index: int) -> tuple[str, str]:
        """Returns the first and the second object in words, such as "big red circle"."""
        self.check_index(index)
        first, second, first_size, second_size, _ = self._objects[index].tolist()
        return _phrase(first, first_size), _phrase(second, second_size)

    def captions(self) -> Iterator[str]:
        for index in range(self._count):
            yield from self._captions(index)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        return self._captions(index) if column == "captions" else super().texts(index, column)

    def _noise(self, index: int) -> np.random.Generator:
        key = np.array([self.seed, stream_of(self.split)], np.uint64)
        counter = np.array([0, 0, 1, index], np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def _captions(self, index: int) -> tuple[str, ...]:
        first, second, first_size, second_size, relation = self._objects[index].tolist()
        a, b = _phrase(first, first_size), _phrase(second, second_size)
        views = ((a, b, relation), (b, a, relation ^ 1))
        draws = self._floats[index]
        texts = []
        order = np.argsort(draws[5 : 5 + len(TEMPLATES)])[:CAPTIONS].tolist()
        for position, template in enumerate(order):
            a, b, seen = views[(position + int(draws[13] * 2)) % 2]
            texts.append(TEMPLATES[template].format(a=a, b=b, relation=RELATIONS[seen]))
        return tuple(texts)


def _phrase(kind: int, extent: int) -> str:
    return f"{SIZES[extent]} {COLOURS[kind % len(COLOURS)]} {SHAPES[kind // len(COLOURS)]}"


def _places(relation: int, jitter: list[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the centres (x, y) of the first and second object as shares of the side."""
    along = [0.26 + 0.03 * (2 * jitter[0] - 1), 0.74 + 0.03 * (2 * jitter[1] - 1)]
    across = [0.5 + 0.08 * (2 * jitter[2] - 1), 0.5 + 0.08 * (2 * jitter[3] - 1)]
    if relation % 2:  # right of, below: the first object comes second
        along.reverse()
    points = zip(along, across, strict=True) if relation < 2 else zip(across, along, strict=True)
    first, second = points
    return first, second
