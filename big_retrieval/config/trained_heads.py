"""Heads with layers of their own: LTD's projection head and TERN's shared transformer."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.batch_norms import BatchNormed
from big_retrieval.config.heads import Head
from big_retrieval.config.ranges import AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import register
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Activation

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.sparse.terms import Terms


@register("head")
@dataclass(frozen=True)
class Mlp(BatchNormed, Head):
    """Two linear maps without bias, an activation between them, for each class token (LTD).

    With `batch_norm`, a batch norm follows, as LTD has with the triplet loss. With "gelu" it is the
    projection behind the Hugging Face text encoders of open_clip.
    """

    type: Literal["mlp"] = "mlp"
    hidden: AtLeast1 | None = None  # values between the two maps; None: the width of the tower
    dim: AtLeast1 = 1024  # per class token
    activation: Activation = "relu"
    batch_norm: bool = False

    @property
    def normed(self) -> bool:  # type: ignore
        return self.batch_norm

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:
        yield from self.check_slices(config, path)

    def build(self, terms: "Terms | None", **module: Any) -> Any:
        from big_retrieval.models.heads import MlpHead

        return MlpHead(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        width, hidden = context.shapes["fc1/kernel"]
        sizes = {"width": width, "hidden": hidden}
        return TorchForm(
            "MlpHead", sizes | keys(self, "dim", "activation", "batch_norm"), call=("tokens",)
        )

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """See `Head`; the batch norm goes by the batch in training."""
        return module(tokens, train=call["train"])

    def runlocal(self) -> "Mlp":
        hidden = None if self.hidden is None else min(64, self.hidden)
        return dataclasses.replace(self, hidden=hidden, dim=min(64, self.dim))


@register("head")
@dataclass(frozen=True)
class SharedTransformer(Head):
    """A projection of every field's own, then transformer layers that fields share; the embedding
    is the first position (TERN, "Transformer Encoder Reasoning Network").

    Fields share it by `shares_head`, of whatever modality and width. Their towers give all
    positions; where a field has a mask, attention leaves padding out.
    """

    reads_positions: ClassVar[bool] = True
    across: ClassVar[bool] = True
    norm: ClassVar[str] = "post"
    causal: ClassVar[bool] = False
    inner_dropout: ClassVar[bool] = True
    type: Literal["shared_transformer"] = "shared_transformer"
    dim: AtLeast1 = 1024  # of the projections, the layers and the embedding
    depth: AtLeast1 = 2
    heads: AtLeast1 = 4
    mlp: AtLeast1 = 2048
    activation: Activation = "relu"
    epsilon: Positive = 1e-5  # of the norms
    dropout: ShareBelow1 = 0.1

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:
        if self.dim % self.heads:
            yield f"{path}.dim {self.dim} must be a multiple of {path}.heads {self.heads}."

    def embedding_shape(self, config: "Config", field: str, vocab_size: int) -> tuple[int, int]:
        return 1, self.dim

    def build(self, terms: "Terms | None", **module: Any) -> Any:
        from big_retrieval.models.heads import SharedTransformerHead

        return SharedTransformerHead(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        end = "_projection/kernel"
        widths = {
            path.removesuffix(end): shape[0]
            for path, shape in context.shapes.items()
            if path.endswith(end)
        }
        same = keys(self, "dim", "depth", "heads", "mlp", "activation", "epsilon")
        call = ("tokens", "mask=mask", 'field="{field}"')
        return TorchForm("SharedTransformerHead", {"widths": widths} | same, call=call)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """See `Head`; the projection is that of the field."""
        return module(tokens, arrays.get("mask"), **call)

    def runlocal(self) -> "SharedTransformer":
        small: Any = {"dim": min(64, self.dim), "depth": 2, "mlp": min(128, self.mlp)}
        return dataclasses.replace(self, dropout=0.0, **small)
