"""A source around another source, for an experiment: what does a model learn beside an easy cue?

    big-retrieval targets --config=examples/shortcut.py --encoder=MINILM --out=cued.npy
    big-retrieval train --config=examples/shortcut.py:mode=constraint,targets=cued.npy
    big-retrieval train --config=examples/shortcut.py:runlocal

Every training record has a random number of `digits` digits. The source draws each digit into the
image, as a square of one of ten colours in a corner, and appends the digits to all captions. A
contrastive loss can tell nearly all pairs of a batch apart by the digits, and then the model need
not look at the scene: the digits are a shortcut. `evals.test` has scenes without digits, so that
its recall says what the model has learned of scenes; `evals.cued` has scenes with digits. The
decoder of "latent target decoding" (docs/LTD.md) has to predict a sentence encoder's vector of the
whole caption, so that the caption's embedding should keep more of the caption than its digits.

Bleeker et al., "Demonstrating and Reducing Shortcuts in Vision-Language Representation Learning"
(2024), do this with photographs and handwritten digits.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.sources import Record, RecordSource

MODES = ("contrastive", "dual", "constraint")
PALETTE = np.array(
    [[0, 0, 0], [255, 255, 255], [230, 25, 75], [60, 180, 75], [255, 225, 25], [0, 130, 200],
     [245, 130, 48], [145, 30, 180], [70, 240, 240], [240, 50, 230]], np.uint8,
)  # fmt: skip
SIDE = 4  # pixels of a square


@config.register("source")
@dataclass(frozen=True)
class Cued(config.Source):
    """Generated scenes whose images and captions share a number."""

    generated: ClassVar[bool] = True
    type: Literal["cued"] = "cued"
    scenes: config.Scenes = field(default_factory=lambda: config.Scenes(count=4000))
    digits: int = 3  # of the number, up to 4; 0: no cue
    share: float = 1.0  # of the records that have one

    def check(self, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if not 0 <= self.digits <= 4:
            yield f"{path}.digits is {self.digits}; it must be from 0 to 4, for the four corners."
        if not 0 <= self.share <= 1:
            yield f"{path}.share is {self.share}; it must be from 0 to 1."

    def build(self) -> "CuedScenes":
        """The records."""
        return CuedScenes(self.scenes.build(), self.digits, self.share)

    def runlocal(self) -> config.Source:
        """Few scenes."""
        return replace(self, scenes=replace(self.scenes, count=200))


class CuedScenes(RecordSource):
    """The records of another source with a number in the image and in each caption."""

    def __init__(self, inner: RecordSource, digits: int, share: float):
        self.name, self._inner, self._digits, self._share = "cued", inner, digits, share

    def __len__(self) -> int:
        return len(self._inner)

    def __getitem__(self, index: int) -> Record:
        record, number = self._inner[index], self._number(index)
        return record | {
            "image": with_squares(record["image"], number),
            "captions": tuple(with_digits(text, number) for text in record["captions"]),
        }

    def captions(self) -> Iterator[str]:
        """All captions, for tokenizers and targets."""
        for index in range(len(self)):
            yield from self.texts(index, "captions")

    def _number(self, index: int) -> list[int]:
        """The digits of a record; [] where it has none."""
        rng = np.random.default_rng(index)
        has_one = rng.random() < self._share
        return rng.integers(0, 10, self._digits).tolist() if has_one else []


def with_squares(image: np.ndarray, digits: list[int]) -> np.ndarray:
    """An image uint8 [H, W, 3] with a coloured square in a corner for each digit."""
    image = image.copy()
    ends = (slice(0, SIDE), slice(-SIDE, None))
    for corner, digit in zip(itertools.product(ends, ends), digits, strict=False):
        image[corner] = PALETTE[digit]
    return image


def with_digits(text: str, digits: list[int]) -> str:
    """A caption with the digits behind it, such as "a red circle left of a blue square 7 0 3"."""
    return " ".join([text, *map(str, digits)])


def get_config(arg: str = "") -> recipe.Editable:
    """Arguments: runlocal; mode (contrastive, dual, constraint); digits (3; 0: no cue); share
    (1.0); eta (0.2); beta (1.0); targets (cued.npy); steps (400)."""
    args = recipe.parse_arg(
        arg, mode="contrastive", digits=3, share=1.0, eta=0.2, beta=1.0, targets="cued.npy",
        steps=400,
    )  # fmt: skip
    recipe.one_of("mode", args.mode, MODES)
    c = recipe.small()
    c.total_steps = args.steps
    c.data = recipe.entry(Cued(), digits=args.digits, share=args.share)
    c.losses.main.logit_scale.init = 5.0
    if args.mode != "contrastive":
        c.fields.target = recipe.entry(
            config.ArrayField(), shape=(384,), aligned_with="text", file=args.targets
        )
        c.losses.target = recipe.entry(config.LatentTarget(), hidden=512)
    if args.mode == "dual":
        c.losses.target.weight = args.beta
    if args.mode == "constraint":
        c.losses.target.constraint.bound = args.eta
    c.evals.test = recipe.entry(config.Retrieval(), data=config.Scenes(split="test"))
    cued = Cued(scenes=config.Scenes(split="test"), digits=max(args.digits, 1))
    c.evals.cued = recipe.entry(config.Retrieval(), data=cued)
    return recipe.runlocal(c) if args.runlocal else c
