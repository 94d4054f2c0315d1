"""Generated scenes: two coloured shapes in relation, with captions. Nothing is downloaded.

A scene is two objects (8 shapes x 8 colours x 2 sizes), one of 4 relations and one of 4 grey
backgrounds, with noise and position jitter. Record i of a split depends on (seed, split, i) alone.

A pair of kinds is an unordered {(shape, colour), (shape, colour)}. A fixed hash keeps about 10 % of
the pairs for test and 3 % for validation: those never appear together in training. Test and
validation scenes are unique whichever object a caption names first ("a big red circle left of a
small blue square" is "a small blue square right of a big red circle"), so that each of their
captions belongs to exactly one image. The zero-shot splits `colours` and `shapes` show two objects
that share the label, from test pairs.
"""

import functools
import hashlib
from collections.abc import Iterator

import numpy as np

from big_retrieval.data.sources import BaseSource, Record
from big_retrieval.data.synthetic import shapes
from big_retrieval.errors import UserError

SHAPES = tuple(shapes.SHAPES)
COLOURS = tuple(shapes.COLOURS)
SIZES = ("big", "small")
RELATIONS = ("left of", "right of", "above", "below")
COUNTS = {"train": 20_000, "validation": 500, "test": 1_000, "colours": 400, "shapes": 400}
CAPTIONS = 5  # a record

TEMPLATES = (
    "a {a} {relation} a {b}",
    "a {a} is {relation} a {b}",
    "there is a {a} {relation} a {b}",
    "the {a} is {relation} the {b}",
    "a picture of a {a} {relation} a {b}",
    "a {a} can be seen {relation} a {b}",
)

_KINDS = len(SHAPES) * len(COLOURS)  # kind = shape * len(COLOURS) + colour
_BLOCK = 1024  # records that are drawn at a time
_LABELS = {"colours": "colour", "shapes": "shape"}
_SALT = "scenes-8"  # chosen so that every class has several test pairs


@functools.cache
def pairs_of(part: str) -> np.ndarray:
    """The pairs of kinds of one part: "train", "validation" or "test".

    Returns:
      int64 [pairs, 2], kind = shape * 8 + colour, first <= second; read-only.
    """
    chosen = []
    for first in range(_KINDS):
        for second in range(first, _KINDS):
            digest = hashlib.sha256(f"{_SALT}:{first}:{second}".encode()).digest()
            share = int.from_bytes(digest[:8], "big") / 2**64
            home = "test" if share < 0.10 else "validation" if share < 0.13 else "train"
            if home == part:
                chosen.append((first, second))
    pairs = np.array(chosen)  # [pairs, 2]
    pairs.flags.writeable = False
    return pairs


def _unique_scenes(part: str) -> np.ndarray:
    """All canonical scenes of a part: [scenes, 5] of kinds (2), sizes (2) and relation."""
    scenes = set()
    for first, second in pairs_of(part).tolist():
        for a, b in ((first, second), (second, first)):
            for sizes in range(4):
                scenes.update((a, b, sizes // 2, sizes % 2, relation) for relation in (0, 2))
    return np.array(sorted(scenes))  # [scenes, 5]


def _label_pairs(label: str) -> list[np.ndarray]:
    """Per class the test pairs (or, without one, training pairs) that share it: [pairs, 2] each."""

    def value(kinds: np.ndarray) -> np.ndarray:
        return kinds % len(COLOURS) if label == "colour" else kinds // len(COLOURS)

    found = []
    for number in range(len(COLOURS if label == "colour" else SHAPES)):
        for part in ("test", "train"):
            pairs = pairs_of(part)
            pairs = pairs[(value(pairs) == number).all(1)]  # [pairs, 2]
            if len(pairs):
                found.append(pairs)
                break
    return found


def _prompts(label: str) -> tuple[str, ...]:
    """Sixteen prompts in the style of the captions that use every other attribute alike."""
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


class SceneRecords(BaseSource):
    """The records of one split.

    Columns: `image` uint8 [size, size, 3], `captions` (5 texts), `id`, `relation`, `background`,
    `first_shape`, `first_colour`, `first_size` and the same with `second_`, all indices into the
    tuples of this module; in the zero-shot splits also `colour` or `shape`.

    Args:
      split: "train", "validation", "test", "colours" or "shapes".
      size: side of the images in pixels, at least 16.
      count: records; None takes the split's own number. More records leave the first as they are.
      seed: another seed gives other scenes; the held-out pairs stay.

    Raises:
      UserError: an unknown split, a size below 16 or more unique scenes than there are.
    """

    def __init__(self, split: str, *, size: int = 32, count: int | None = None, seed: int = 0):
        if split not in COUNTS:
            raise UserError(f"scenes: split {split!r} is unknown; known: {', '.join(COUNTS)}.")
        if size < 16:
            raise UserError(f"scenes: size {size} is too small to tell shapes apart; use >= 16.")
        if not 0 <= seed < 2**64:
            raise UserError(f"scenes: seed {seed} is out of range; use 0 or more.")
        self.name = f"scenes-{split}"
        self.split, self.size, self.seed = split, size, seed
        self._count = COUNTS[split] if count is None else count
        if self._count < 1:
            raise UserError(f"scenes: count {count} leaves no records; use 1 or more.")
        self._objects, self._floats = _parameters(split, self._count, seed)
        label = _LABELS.get(split)
        names = {"colours": COLOURS, "shapes": SHAPES}
        self.classes = {label: names[split]} if label else {}
        self.prompts = {label: _prompts(label)} if label else {}

    def __reduce__(self) -> tuple:
        return functools.partial(SceneRecords, size=self.size, count=self._count, seed=self.seed), (
            self.split,
        )

    def __len__(self) -> int:
        return self._count

    @property
    def objects(self) -> np.ndarray:
        """What the records show: kinds (2), sizes (2) and relation, int64 [n, 5]."""
        return self._objects

    def __getitem__(self, index: int) -> Record:
        self.check_index(index)
        objects = self._drawn(index)
        kind = int(self._floats[index][0] * len(shapes.BACKGROUNDS))
        record: Record = {
            "image": shapes.draw(self.size, kind, objects, self._noise(index)),
            "captions": self._captions(index),
            "id": f"{self.name}-{index:06d}",
            "relation": int(self._objects[index][4]),
            "background": kind,
        }
        for prefix, (shape, colour, extent, _, _) in zip(("first", "second"), objects, strict=True):
            record[f"{prefix}_shape"], record[f"{prefix}_colour"] = shape, colour
            record[f"{prefix}_size"] = extent
        if self.split in _LABELS:
            record[_LABELS[self.split]] = record[f"first_{_LABELS[self.split]}"]
        return record

    def _drawn(self, index: int) -> list[shapes.Object]:
        """The first and the second object of a record."""
        first, second, first_size, second_size, relation = self._objects[index].tolist()
        places = _places(relation, self._floats[index][1:5].tolist())
        return [
            (number // len(COLOURS), number % len(COLOURS), extent, x, y)
            for number, extent, (x, y) in zip(
                (first, second), (first_size, second_size), places, strict=True
            )
        ]

    def covers(self, index: int) -> np.ndarray:
        """How much of each pixel the first and the second object cover, float32 [2, size, size]."""
        self.check_index(index)
        return np.stack([shapes.cover(self.size, each) for each in self._drawn(index)])

    def phrases(self, index: int) -> tuple[str, str]:
        """The first and the second object in words, such as "big red circle"."""
        self.check_index(index)
        first, second, first_size, second_size, _ = self._objects[index].tolist()
        return _phrase(first, first_size), _phrase(second, second_size)

    def captions(self) -> Iterator[str]:
        """All captions, record after record."""
        for index in range(self._count):
            yield from self._captions(index)

    def texts(self, index: int, column: str) -> tuple[str, ...]:
        """The texts of one record; draws no image for the captions.

        Raises:
          UserError: there is no such column of texts.
        """
        return self._captions(index) if column == "captions" else super().texts(index, column)

    def _noise(self, index: int) -> np.random.Generator:
        key = np.array([self.seed, _stream(self.split)], np.uint64)
        counter = np.array([0, 0, 1, index], np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def _captions(self, index: int) -> tuple[str, ...]:
        first, second, first_size, second_size, relation = self._objects[index].tolist()
        a, b = _phrase(first, first_size), _phrase(second, second_size)
        views = ((a, b, relation), (b, a, relation ^ 1))
        draws = self._floats[index]
        texts = []
        order = np.argsort(draws[5 : 5 + len(TEMPLATES)])[:CAPTIONS].tolist()
        for place, template in enumerate(order):
            a, b, seen = views[(place + int(draws[13] * 2)) % 2]
            texts.append(TEMPLATES[template].format(a=a, b=b, relation=RELATIONS[seen]))
        return tuple(texts)


def _phrase(kind: int, extent: int) -> str:
    return f"{SIZES[extent]} {COLOURS[kind % len(COLOURS)]} {SHAPES[kind // len(COLOURS)]}"


def _stream(split: str) -> int:
    """The split's place in the random numbers; fixed for good."""
    return list(COUNTS).index(split)


def _places(relation: int, jitter: list[float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Centres (x, y) of the first and second object as shares of the side."""
    along = [0.26 + 0.03 * (2 * jitter[0] - 1), 0.74 + 0.03 * (2 * jitter[1] - 1)]
    across = [0.5 + 0.08 * (2 * jitter[2] - 1), 0.5 + 0.08 * (2 * jitter[3] - 1)]
    if relation % 2:  # right of, below: the first object comes second
        along.reverse()
    points = zip(along, across, strict=True) if relation < 2 else zip(across, along, strict=True)
    first, second = points
    return first, second


def _uniform(split: str, seed: int, count: int, width: int) -> np.ndarray:
    """Draws [0, 1) by blocks, so that a row depends on its index alone: [count, width]."""
    key = np.array([seed, _stream(split)], np.uint64)
    blocks = []
    for block in range(-(-count // _BLOCK)):
        counter = np.array([0, 0, 0, block], np.uint64)
        rng = np.random.Generator(np.random.Philox(counter=counter, key=key))
        blocks.append(rng.random((_BLOCK, width)))
    return np.concatenate(blocks)[:count]  # [count, width]


def _parameters(split: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """What the records show: kinds, sizes and relation [count, 5], and uniform draws [count, 14].

    Of the draws, 0 is the background, 1-4 the jitter, 5-12 order the templates, 13 picks the point
    of view of the first caption.
    """
    draws = _uniform(split, seed, count, 19)  # [count, 19]
    own, rest = draws[:, :5], draws[:, 5:]
    if split in ("test", "validation"):
        scenes = _unique_scenes(split)  # [scenes, 5]
        if count > len(scenes):
            raise UserError(
                f"scenes: count {count} is too much; {split} has {len(scenes)} unique scenes."
            )
        key = np.array([seed, 16 + _stream(split)], np.uint64)
        order = np.random.Generator(np.random.Philox(key=key)).permutation(len(scenes))
        chosen = scenes[order[:count]]  # [count, 5]
        swap = own[:, 0] < 0.5  # tell half of them from the right or lower object
        swapped = chosen[:, [1, 0, 3, 2, 4]] + np.array([0, 0, 0, 0, 1])
        return np.where(swap[:, None], swapped, chosen), rest
    if split == "train":
        pairs = pairs_of("train")
        kinds = pairs[(own[:, 0] * len(pairs)).astype(np.int64)]  # [count, 2]
    else:
        groups = _label_pairs(_LABELS[split])
        kinds = np.stack(
            [
                groups[i % len(groups)][int(own[i, 0] * len(groups[i % len(groups)]))]
                for i in range(count)
            ]
        )  # [count, 2]
    swap = own[:, 1] < 0.5
    kinds = np.where(swap[:, None], kinds[:, ::-1], kinds)
    others = (own[:, 2:5] * np.array([2, 2, 4])).astype(np.int64)  # [count, 3]
    return np.concatenate([kinds, others], axis=1), rest  # [count, 5], [count, 14]
