"""Configuration of towers that do not fit on the page of `config.py`, which has all names."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ResNet:
    """A residual network (v1.5, as torchvision has it) with batch norm: one vector an image."""

    type: Literal["resnet"] = "resnet"
    blocks: tuple[int, ...] = (3, 4, 6, 3)  # of each stage
    bottleneck: bool = True  # blocks of three convolutions (1, 3, 1 pixels wide), else of two
    stem: int = 64  # channels of the first convolution; each later stage has twice as many
    frozen_stats: bool = False  # training, too, normalises by the running averages, which stay
    batch_stats: Literal["batch", "slice"] = "batch"  # a slice: only under `microbatch`
    remat: Literal["none", "block"] = "none"  # what the backward pass computes again

    @property
    def class_tokens(self) -> int:
        """Vectors of an image."""
        return 1

    @property
    def pool(self) -> str:
        """How they come out of the last stage."""
        return "mean"

    @property
    def width(self) -> int:
        """Channels of the last stage, the width of the vector."""
        return self.stem * 2 ** (len(self.blocks) - 1) * (4 if self.bottleneck else 1)

    @property
    def whole_batch(self) -> bool:
        """Whether a row's vector depends on all rows of the batch in training."""
        return not self.frozen_stats and self.batch_stats == "batch"

    @property
    def by_slice(self) -> bool:
        """Whether it depends on the rows of its micro-batch."""
        return not self.frozen_stats and self.batch_stats == "slice"


RESNET_SIZES = {  # blocks of each stage, bottleneck
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
