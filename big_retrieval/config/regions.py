"""The towers that read regions of images, as a detector gives them: features and boxes."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.batch_norms import BatchNormed
from big_retrieval.config.ranges import AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Activation, Remat, Tower
from big_retrieval.config.transformers import Transformer

if TYPE_CHECKING:
    from big_retrieval.config.run import Config


@register("tower")
@dataclass(frozen=True)
class RegionGraph(BatchNormed, Tower):
    """The image encoder of VSRN ("Visual Semantic Reasoning for Image-Text Matching").

    Regions exchange what they hold along a graph of all pairs, layer by layer; a GRU then reads
    them in their order. One vector an image.
    """

    modality: ClassVar[str] = "regions"
    computed_by: ClassVar[tuple[str, ...]] = ("width", "depth", "normalise_regions")
    type: Literal["region_graph"] = "region_graph"
    width: AtLeast1 = 1024
    depth: AtLeast1 = 4  # graph layers
    # projected regions to length 1 before the graph; VSRN's code does not for Flickr30k
    normalise_regions: bool = True

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from self.check_slices(config, path)

    def positions(self, field: Any) -> int:
        return _regions(field)

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        from big_retrieval.models.regions import RegionGraphNetwork

        return RegionGraphNetwork(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        sizes = {"dim": context.shapes["fc/kernel"][0]}
        return TorchForm("RegionGraphNetwork", sizes | keys(self, *self.computed_by))

    def describe(self) -> str:
        return f"{self.depth} graph layers and a GRU of width {self.width}"

    def at_depth(self, depth: int) -> "RegionGraph":
        return dataclasses.replace(self, depth=depth)

    def runlocal(self) -> "RegionGraph":
        return dataclasses.replace(self, width=min(64, self.width), depth=min(2, self.depth))


@register("tower")
@dataclass(frozen=True)
class RegionTransformer(Transformer):
    """The image encoder of TERN: a transformer over regions with their boxes, all positions.

    In front of the regions stands a position of zeros, whose output a head reads.
    """

    modality: ClassVar[str] = "regions"
    computed_by: ClassVar[tuple[str, ...]] = (
        "width", "depth", "heads", "mlp", "epsilon", "activation",
    )  # fmt: skip
    inner_dropout: ClassVar[bool] = True
    class_tokens = 1
    pool = "none"
    norm = "post"
    type: Literal["region_transformer"] = "region_transformer"
    width: AtLeast1 = 2048
    depth: AtLeast1 = 4
    heads: AtLeast1 = 4
    mlp: AtLeast1 = 2048
    activation: Activation = "relu"
    epsilon: Positive = 1e-5  # of all norms
    dropout: ShareBelow1 = 0.1
    remat: Remat = "none"  # what the backward pass computes again
    scan: bool = False  # one compiled layer instead of `depth` (same numbers, same names)

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        if not head.reads_positions:
            yield (
                f"{head_path}.type is {head.type!r}, which reads one vector, but {path} gives all "
                "positions: take a 'shared_transformer', or a projection with pool 'first'."
            )

    def positions(self, field: Any) -> int:
        return _regions(field) + 1

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        from big_retrieval.models.regions import RegionTransformerNetwork

        return RegionTransformerNetwork(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        sizes = {"dim": context.shapes["fc1/kernel"][0] - 5}  # beside a box and its area
        return TorchForm("RegionTransformerNetwork", sizes | keys(self, *self.computed_by))


def _regions(field: Any) -> int:
    """R, of a field of regions."""
    (count, _), _ = field.shapes()["features"]
    return count
