"""The networks that read an image or a text."""

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu"]
Remat = Literal["none", "block", "dots"]


@dataclass(frozen=True)
class ViT:
    """A pre-LN vision transformer with M class tokens."""

    type: Literal["vit"] = "vit"
    patch: int = 16
    width: int = 768
    depth: int = 12
    heads: int = 12
    mlp: int = 3072
    class_tokens: int = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # the class tokens, one mean of the patches, or all patches (for lexical heads)
    pool: Literal["first", "mean", "none"] = "first"
    norm_first: bool = True  # a norm in front of the first layer: CLIP's have one
    patch_bias: bool = False
    epsilon: float = 1e-5  # of all norms
    activation: Activation = "gelu"
    dropout: float = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"  # what the backward pass computes again
    scan: bool = False  # one compiled layer instead of `depth` (same numbers, same names)


@dataclass(frozen=True)
class Bert:
    """A text transformer with M class tokens: BERT's kind, or CLIP's (pre, causal, last)."""

    type: Literal["bert"] = "bert"
    width: int = 512
    depth: int = 12
    heads: int = 8
    mlp: int = 2048
    class_tokens: int = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # copies of one end, one mean of the text, or all positions (for lexical heads)
    pool: Literal["first", "last", "mean", "none"] = "first"
    norm: Literal["post", "pre"] = "post"
    final_norm: bool = True  # a norm behind the last layer: BERT has none
    causal: bool = False
    token_types: int = 0  # rows of BERT's table of segments
    relative_positions: int = 0  # buckets of a bias by distance: MPNet's 32
    epsilon: float = 1e-5
    activation: Activation = "gelu"
    dropout: float = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"
    scan: bool = False
    vocab_size: int | None = None  # None: the tokenizer's


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

VIT_SIZES = {  # patch, width, depth, heads, mlp
    "Ti/16": (16, 192, 12, 3, 768),
    "S/16": (16, 384, 12, 6, 1536),
    "B/32": (32, 768, 12, 12, 3072),
    "B/16": (16, 768, 12, 12, 3072),
    "L/14": (14, 1024, 24, 16, 4096),
}
