"""Heads: what becomes of a tower's vectors, the embeddings that are compared."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.ranges import AtLeast0, AtLeast1, Positive
from big_retrieval.config.registry import Part, register, required
from big_retrieval.config.torch_form import TorchContext, TorchForm, keys
from big_retrieval.config.towers import Activation

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.sparse.terms import Terms

LOCAL_TOP_K = 16  # terms that a gate leaves in `runlocal`, of the about 50 words of scenes
_IN_PYTORCH = (  # keys of lexical heads that its module has there
    "tied", "transform", "layer_norm", "epsilon", "use_bias", "activation", "pooling",
    "pooling_top_k", "pool_padding", "normalise", "top_k",
)  # fmt: skip


class Head(Part):
    """The base of all heads: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("head")`. The
    attributes below may be keys of it.

    Attributes:
      lexical: whether embeddings have a number for every term of a vocabulary (`Lexical` and its
        subclasses): they are then sparse in evaluations, and explained by words.
      reads_positions: whether it reads all positions of a row, not its class tokens.
      dim: N of the embeddings; None: the width of the tower.
      normed: whether it has batch norms (`models.batch_norm.BatchNorm`), with running averages.
      whole_batch: whether a row's embedding depends on all rows of the batch in training.
      by_slice: whether it depends on the rows of their micro-batch.
      across: whether fields of any modality and width may share it, as its module has a part of its
        own for each.
    """

    kind: ClassVar[str] = "head"
    lexical: ClassVar[bool] = False
    reads_positions: ClassVar[bool] = False
    normed: ClassVar[bool] = False
    across: ClassVar[bool] = False
    dim: Any = None
    whole_batch: Any = False
    by_slice: Any = False

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:
        """What is wrong with its keys in this config, a sentence each.

        Args:
          config: of the run.
          field: the name of the field behind whose tower it stands.
          path: of this head, such as `config.fields.text.head`.
        """
        del config, field, path
        yield from ()

    def embedding_shape(self, config: "Config", field: str, vocab_size: int) -> tuple[int, int]:
        """The shape (M, N) of the field's embeddings.

        Args:
          config: checked.
          field: the name of the field.
          vocab_size: of the tokenizer, where the config leaves it open.
        """
        del vocab_size
        tower = config.towers[config.fields[field].tower]
        return tower.tokens, self.dim or tower.width

    @required
    def build(self, terms: "Terms | None", **module: Any) -> Any:
        """Its Linen module.

        Args:
          terms: of a lexical head.
          **module: `name`, `parent` and `dtype` of the module.
        """
        raise NotImplementedError

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """Raw embeddings [B, M, N], which the topology projects; called in the model, traced by
        jax.

        Args:
          module: that of `build`.
          tower: the tower's module.
          tokens: what the tower gave, [B, M, W].
          arrays: the field's arrays.
          **call: `field`, its name; `train` and `rows`, as a tower is given them.
        """
        del tower, arrays, call
        return module(tokens)

    def runlocal(self) -> "Head":
        """The same, small, for `:runlocal`."""
        return self


@register("head")
@dataclass(frozen=True)
class Projection(Head):
    """The projection from class tokens to embeddings; shared by all tokens, without bias."""

    type: Literal["projection"] = "projection"
    dim: AtLeast1 | None = 512  # per class token; None: the tokens themselves, no projection
    spheres: int | None = None  # one class token only: its `dim` is cut into this many blocks
    # of what the tower gives: its class tokens ("tower"); or of one that gives all positions, for a
    # lexical head beside this one, the first or the mean
    pool: Literal["tower", "first", "mean"] = "tower"

    @property
    def reads_positions(self) -> bool:  # type: ignore
        return self.pool != "tower"

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:
        name = config.fields[field].tower
        tower, spheres = config.towers[name], self.spheres
        dim = self.dim or tower.width
        if spheres is None:
            return
        if tower.class_tokens > 1 and self.pool == "tower":
            yield (
                f"{path}.spheres is for towers with one class token; config.towers.{name} has "
                f"{tower.class_tokens}, each a sub-sphere already: set it to None."
            )
        elif spheres < 1 or dim % spheres:
            yield f"{path}.dim {dim} is no multiple of {path}.spheres {spheres}."

    def embedding_shape(self, config: "Config", field: str, vocab_size: int) -> tuple[int, int]:
        tokens, dim = super().embedding_shape(config, field, vocab_size)
        tokens = tokens if self.pool == "tower" else 1
        return (self.spheres, dim // self.spheres) if self.spheres else (tokens, dim)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """See `Head`; pools positions where the tower does not."""
        if self.pool == "first":
            tokens = tokens[:, :1]
        elif self.pool == "mean":
            from big_retrieval.models.class_tokens import mean_of_positions

            tokens = mean_of_positions(tokens, arrays.get("mask"))
        return module(tokens)

    def build(self, terms: "Terms | None", **module: Any) -> Any:
        from big_retrieval.models.heads import ProjectionHead

        return ProjectionHead(self, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        width, _ = context.shapes.get("kernel", (None, None))
        arguments = {"width": width, **keys(self, "dim", "spheres", "pool")}
        pooled = ("mask",) if self.pool == "mean" else ()
        return TorchForm("ProjectionHead", arguments, call=("tokens", *pooled))

    def runlocal(self) -> "Projection":
        if self.dim is None:  # the tower's own width
            return self
        if self.spheres:  # keep the blocks, shorten each
            return dataclasses.replace(self, dim=self.spheres * min(16, self.dim // self.spheres))
        return dataclasses.replace(self, dim=min(16 if self.dim < 512 else 64, self.dim))


@register("head")
@dataclass(frozen=True)
class Lexical(Head):
    """One number for every word piece, pooled over a text or an image's patches (SPLADE, VDR)."""

    lexical: ClassVar[bool] = True
    reads_positions: ClassVar[bool] = True
    type: Literal["lexical"] = "lexical"
    tied: bool = True  # terms are the rows of the tower's word table; False: an own kernel
    transform: Literal["none", Activation] = "none"  # a dense layer with it, as BERT's has
    layer_norm: bool = True  # in front of the terms; False where the tower ends with one
    epsilon: Positive = 1e-5  # of that norm
    use_bias: bool = False  # of the terms
    bias_init: float = 0.0  # what it starts at; below 0, few terms are active at first
    activation: Literal["elu1p", "log1p_relu", "log1p_log1p_relu", "relu"] = "log1p_relu"
    pooling: Literal["max", "mean"] = "max"  # over the positions
    pooling_top_k: int | None = None  # mean: of only so many of the largest; None: of all
    pool_padding: bool = False  # padding takes part, as in the VDR authors' code
    # the word pieces that are terms: "all", "words" (no special or unused ones), "ascii" (those
    # of words in ASCII), or ids from a number on, such as "1000-"
    terms: str = "all"
    normalise: bool = False  # to norm 1 over the terms
    # the gate of evaluations, indexes and searches (VDR, Eq. 4): it keeps the `top_k` largest terms
    # (None: all above 0), and with `keep_input_terms` also the terms of the text itself
    top_k: AtLeast0 | None = None
    keep_input_terms: bool = True

    def check(self, config: "Config", field: str, path: str) -> Iterator[str]:
        from big_retrieval.sparse.terms import check_rule

        part = config.fields[field]
        alone = all(each.head.lexical for each in config.encoded.values())
        if alone and config.topology != "inner":
            yield (
                f"{path}.type 'lexical' is scored by inner products: set config.topology to "
                f"'inner' instead of {config.topology!r}."
            )
        if self.tied and not config.towers[part.tower].word_table:
            yield f"{path}.tied: {part.modality or part.type}s have no word table; set it to False."
        if self.bias_init and not self.use_bias:
            yield (
                f"{path}.bias_init is {self.bias_init}, but there is no bias: set use_bias to True."
            )
        if self.pooling_top_k is not None and (self.pooling != "mean" or self.pooling_top_k < 1):
            yield (
                f"{path}.pooling_top_k is {self.pooling_top_k}; it is for pooling 'mean' and "
                "at least 1, or None."
            )
        if self.top_k == 0 and not (self.keep_input_terms and part.modality == "text"):
            own = f", or {path}.keep_input_terms to True" if part.modality == "text" else ""
            yield f"{path}.top_k is 0, which leaves no term: set it to 1 or more{own}."
        if problem := check_rule(self.terms):
            yield f"{path}.terms is {problem}."

    def embedding_shape(self, config: "Config", field: str, vocab_size: int) -> tuple[int, int]:
        """(1, V), where V is 0 as long as nothing tells it."""
        from big_retrieval.sparse.terms import terms_of_size

        # Images have as many terms as the texts that they are compared with.
        towers = (config.towers[config.fields[field].tower], *config.towers.values())
        rows = next(filter(None, (tower.vocab_size for tower in towers)), vocab_size)
        return 1, len(terms_of_size(self.terms, rows)) if rows else 0

    def build(self, terms: "Terms | None", **module: Any) -> Any:
        from big_retrieval.models.lexical import LexicalHead

        assert terms is not None
        return LexicalHead(self, terms.ids, **module)

    def pytorch(self, context: TorchContext) -> TorchForm:
        import numpy as np

        terms = context.terms
        tables = context.table if self.tied else {"": context.shapes["kernel"]}
        table, (rows, width) = next(iter(tables.items()))
        arguments = {"width": width, "terms": len(terms), **keys(self, *_IN_PYTORCH)}
        call, buffers = ["tokens", "mask=mask"], {}
        if self.tied:
            call.append(f"table=self.{table}")
        if self.tied and len(terms) < rows:
            buffers["rows"], arguments["some_rows"] = np.asarray(terms.ids), True
        if self.top_k is not None and self.keep_input_terms:
            buffers["term_of"], arguments["words"] = terms.table, len(terms.table)
            call.append("ids=ids")
        fixed = self.pooling_top_k is not None  # the smaller of this and of the positions
        return TorchForm("LexicalHead", arguments, tuple(call), buffers, fixed_length=fixed)

    def embed(
        self, module: Any, tower: Any, tokens: Any, arrays: Mapping[str, Any], **call: Any
    ) -> Any:
        """[B, 1, V] of all positions [B, L, W], those of the mask where there is one."""
        table = tower.word_table() if self.tied else None
        return module(tokens, arrays.get("mask"), table)[:, None]

    def runlocal(self) -> "Lexical":
        """Its size is the vocabulary's."""
        return (
            self
            if self.top_k is None
            else dataclasses.replace(self, top_k=min(self.top_k, LOCAL_TOP_K))
        )
