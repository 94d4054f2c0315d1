"""The residual networks among the towers."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.batch_norms import BatchNormed
from big_retrieval.config.ranges import AtLeast1
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Tower

if TYPE_CHECKING:
    from big_retrieval.config.run import Config


@register("tower")
@dataclass(frozen=True)
class ResNet(BatchNormed, Tower):
    """A residual network (v1.5, as torchvision has it) with batch norm: one vector an image."""

    modality: ClassVar[str] = "image"
    computed_by: ClassVar[tuple[str, ...]] = ("blocks", "bottleneck", "stem")
    type: Literal["resnet"] = "resnet"
    blocks: tuple[AtLeast1, ...] = (3, 4, 6, 3)  # of each stage
    bottleneck: bool = True  # blocks of three convolutions (1, 3, 1 pixels wide), else of two
    stem: AtLeast1 = 64  # channels of the first convolution; each later stage has twice as many
    remat: Literal["none", "block"] = "none"  # what the backward pass computes again

    @property
    def depth(self) -> int:
        """Blocks."""
        return sum(self.blocks)

    @property
    def width(self) -> int:
        """Channels of the last stage, the width of the vector."""
        return self.stem * 2 ** (len(self.blocks) - 1) * (4 if self.bottleneck else 1)

    def check(self, config: "Config", path: str) -> Iterator[str]:
        if not self.blocks:
            yield f"{path}.blocks is (); it needs at least 1 stage."
        yield from self.check_slices(config, path)

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        if head.reads_positions:
            yield (
                f"{head_path}.type is {head.type!r}, which reads patches of a 'vit' tower, not of "
                "a 'resnet'."
            )

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        from big_retrieval.models.resnet import ResidualNetwork

        return ResidualNetwork(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("ResidualNetwork", keys(self, *self.computed_by))

    def describe(self) -> str:
        return f"stages of {', '.join(map(str, self.blocks))} blocks, width {self.width}"

    def runlocal(self) -> "ResNet":
        return dataclasses.replace(self, stem=16, blocks=(1,) * len(self.blocks))


RESNET_SIZES = {  # blocks of each stage, bottleneck
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
