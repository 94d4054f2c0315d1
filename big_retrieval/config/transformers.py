"""The transformers among the towers: of images and of texts."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Activation, AttentionChoice, Remat, Tower

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.interop.fit import Fitted


class Transformer(Tower):
    """What `ViT` and `Bert` have in common.

    Attributes:
      least_tokens: class tokens that it needs where all positions come out.
      inner_dropout: whether dropout is behind the activation of the MLP, too, as in PyTorch's own
        layers.
    """

    least_tokens: ClassVar[int] = 1
    inner_dropout: ClassVar[bool] = False
    heads: Any = 1
    mlp: Any = 1
    pool: Any = "first"
    norm: Any = "pre"
    causal: Any = False
    epsilon: Any = 1e-5
    activation: Any = "gelu"
    dropout: Any = 0.0
    attention: Any = "plain"

    @property
    def gives_positions(self) -> bool:
        return self.pool == "none"

    @property
    def tokens(self) -> int:
        return 1 if self.pool == "mean" else self.class_tokens

    def check(self, config: "Config", path: str) -> Iterator[str]:
        count = self.class_tokens
        if count < self.least_tokens:
            yield f"{path}.class_tokens is {count}; it must be at least {self.least_tokens}."
        if self.pool == "mean" and count > 1:
            yield (
                f"{path}.pool 'mean' makes one token; {path}.class_tokens is {count}: set it to 1."
            )
        if self.pool == "first" and count == 0:
            yield f"{path}.pool 'first' needs {path}.class_tokens of 1 or more."
        if self.attention == "kernel" and self.dropout:
            yield (
                f"{path}.attention 'kernel' has no dropout: set {path}.dropout to 0, or "
                f"{path}.attention to 'auto'."
            )
        if self.width % self.heads:
            yield f"{path}.width {self.width} must be a multiple of {path}.heads {self.heads}."

    def check_head(self, head: Any, head_path: str, path: str) -> Iterator[str]:
        if not head.reads_positions:
            if self.gives_positions:
                yield (
                    f"{path}.pool is 'none', which gives all positions: set it to 'first', 'last' "
                    f"or 'mean' for a projection, or {head_path}.type to 'lexical'."
                )
            return
        if not self.gives_positions:
            yield (
                f"{head_path}.type {head.type!r} reads all positions, but {path}.pool is "
                f"{self.pool!r}: set it to 'none'."
            )
        if self.class_tokens > self.least_tokens:
            yield (
                f"{head_path}.type {head.type!r} has no use for {path}.class_tokens "
                f"{self.class_tokens}: set it to {self.least_tokens}."
            )

    def describe(self) -> str:
        return (
            f"{self.depth} layers of width {self.width}, {self.heads} heads, {self.activation}, "
            f"pooled by {self.pool!r}"
        )

    def runlocal(self) -> "Transformer":
        small: Any = {"width": 64, "depth": 2, "heads": 2, "mlp": 256, "dropout": 0.0}
        return dataclasses.replace(self, **small)  # type: ignore

    def at_depth(self, depth: int) -> "Transformer":
        return dataclasses.replace(self, depth=depth)  # type: ignore


@register("tower")
@dataclass(frozen=True)
class ViT(Transformer):
    """A pre-LN vision transformer with M class tokens."""

    modality: ClassVar[str] = "image"
    computed_by: ClassVar[tuple[str, ...]] = (
        "patch", "width", "depth", "heads", "mlp", "pool", "norm_first", "patch_bias", "epsilon",
        "activation",
    )  # fmt: skip
    least_tokens: ClassVar[int] = 0
    type: Literal["vit"] = "vit"
    patch: AtLeast1 = 16
    width: AtLeast1 = 768
    depth: AtLeast1 = 12
    heads: AtLeast1 = 12
    mlp: AtLeast1 = 3072
    class_tokens: AtLeast0 = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # the class tokens, one mean of the patches, or all patches (for lexical heads)
    pool: Literal["first", "mean", "none"] = "first"
    norm_first: bool = True  # a norm in front of the first layer: CLIP's have one
    patch_bias: bool = False
    epsilon: Positive = 1e-5  # of all norms
    activation: Activation = "gelu"
    dropout: ShareBelow1 = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"  # what the backward pass computes again
    # one compiled layer instead of `depth` (same numbers, same names); GPUs: with remat=block only
    scan: bool = False
    # how attention is computed; same parameters. "kernel": fused (Pallas on TPU, cuDNN on GPU), an
    # error where it cannot run; "plain": by XLA; "auto": the kernel where it can run
    attention: AttentionChoice = "auto"

    def check_field(self, field: Any, field_path: str, path: str) -> Iterator[str]:
        if field.size % self.patch:
            yield (
                f"{field_path}.size {field.size} must be a multiple of {path}.patch {self.patch}."
            )

    def positions(self, field: Any) -> int:
        return (field.size // self.patch) ** 2 + self.class_tokens

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        from big_retrieval.models.vit import VisionTransformer

        return VisionTransformer(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        sizes = {"positions": context.shapes["position_embedding"][0]}
        same = keys(self, *self.computed_by, "class_tokens", "tokens_as_one")
        return TorchForm("VisionTransformer", sizes | same)

    def runlocal(self) -> "ViT":
        return dataclasses.replace(super().runlocal(), patch=8)  # type: ignore

    def fitted(self, part: Any, fields: Sequence[Any], seed: int) -> "Fitted":
        from big_retrieval.interop.fit import fit_image

        return fit_image(part, self, max(field.size for field in fields), seed)


@register("tower")
@dataclass(frozen=True)
class Bert(Transformer):
    """A text transformer with M class tokens: BERT's kind, or CLIP's (pre, causal, last)."""

    modality: ClassVar[str] = "text"
    word_table: ClassVar[str] = "token_embedding"
    computed_by: ClassVar[tuple[str, ...]] = (
        "width", "depth", "heads", "mlp", "norm", "final_norm", "causal", "token_types",
        "relative_positions", "epsilon", "activation",
    )  # fmt: skip
    type: Literal["bert"] = "bert"
    width: AtLeast1 = 512
    depth: AtLeast1 = 12
    heads: AtLeast1 = 8
    mlp: AtLeast1 = 2048
    class_tokens: AtLeast0 = 1
    tokens_as_one: bool = False  # they share the weight of a single one in attention
    # copies of one end, one mean of the text, or all positions (for lexical heads)
    pool: Literal["first", "last", "mean", "none"] = "first"
    norm: Literal["post", "pre"] = "post"
    final_norm: bool = True  # a norm behind the last layer: BERT has none
    causal: bool = False
    token_types: int = 0  # rows of BERT's table of segments
    relative_positions: int = 0  # buckets of a bias by distance: MPNet's 32
    epsilon: Positive = 1e-5
    activation: Activation = "gelu"
    dropout: ShareBelow1 = 0.0
    embedding_std: float | None = None  # of learned tables at the start; None: as published
    remat: Remat = "none"
    scan: bool = False
    # how attention is computed; same parameters. "kernel": fused (Pallas on TPU, cuDNN on GPU), an
    # error where it cannot run; "plain": by XLA; "auto": the kernel where it can run
    attention: AttentionChoice = "auto"
    vocab_size: int | None = None  # None: the tokenizer's

    def check(self, config: "Config", path: str) -> Iterator[str]:
        yield from super().check(config, path)
        if self.attention == "kernel" and self.relative_positions:
            yield (
                f"{path}.attention 'kernel' has no biases by distance: set {path}.attention to "
                f"'auto' ({path}.relative_positions is {self.relative_positions})."
            )
        if self.causal and self.pool == "first":
            yield (
                f"{path}.causal: the first token sees nothing of the text; set {path}.pool to "
                "'last' or 'mean'."
            )

    def positions(self, field: Any) -> int:
        return field.length + self.class_tokens - 1

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> Any:
        """See `Tower`; positions are as many as the longest of the fields needs."""
        from big_retrieval.models.bert import TextTransformer

        longest = max((field.length for field in fields), default=None)
        return TextTransformer(self, self.vocab_size or vocab_size, longest, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        names = {"vocab_size": "token_embedding", "positions": "position_embedding"}
        sizes = {key: context.shapes[table][0] for key, table in names.items()}
        same = keys(self, *self.computed_by, "class_tokens", "tokens_as_one", "pool")
        return TorchForm("TextTransformer", sizes | same)

    def with_vocabulary(self, size: int) -> "Bert":
        return dataclasses.replace(self, vocab_size=self.vocab_size or size)

    def runlocal(self) -> "Bert":
        return dataclasses.replace(super().runlocal(), vocab_size=None)  # type: ignore

    def fitted(self, part: Any, fields: Sequence[Any], seed: int) -> "Fitted":
        from big_retrieval.interop.fit import fit_text

        return fit_text(part, self, max(field.length for field in fields), seed)


VIT_SIZES = {  # patch, width, depth, heads, mlp
    "Ti/16": (16, 192, 12, 3, 768),
    "S/16": (16, 384, 12, 6, 1536),
    "B/32": (32, 768, 12, 12, 3072),
    "B/16": (16, 768, 12, 12, 3072),
    "L/14": (14, 1024, 24, 16, 4096),
}
