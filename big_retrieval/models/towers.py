"""The whole model: every field goes through its tower and head and becomes points."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from big_retrieval import similarity
from big_retrieval.batch import Reps
from big_retrieval.columns import Columns, Words, columns_of, columns_of_size
from big_retrieval.config import Bert, Config, Field, Head, Lexical, ResNet, ViT
from big_retrieval.models.bert import TextTransformer
from big_retrieval.models.heads import Projection
from big_retrieval.models.lexical import LexicalHead
from big_retrieval.models.resnet import ResidualNetwork
from big_retrieval.models.vit import VisionTransformer

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}


class RetrievalModel(nn.Module):
    """Towers and heads of all fields.

    The parameter tree has one entry per tower (`image/...`) and one per head (`image_head/...`).

    Attributes:
      towers: tower name -> its configuration.
      fields: field name -> its configuration.
      topology: name of the topology that points belong to.
      vocab_size: rows of the text towers' word table, where their config leaves it open.
      columns: field with a lexical head of its own -> which word pieces that has.
      dtype: of the towers' computations; parameters are float32.
    """

    towers: Mapping[str, ViT | Bert | ResNet]
    fields: Mapping[str, Field]
    topology: str
    vocab_size: int
    columns: Mapping[str, Columns] = dataclasses.field(default_factory=dict)
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        inputs: Mapping[str, Mapping[str, jax.Array]],
        *,
        train: bool = False,
        rows: jax.Array | None = None,
    ) -> Reps:
        """Encodes the fields that are given, one side or both.

        Args:
          inputs: field name -> arrays, as in `Batch.fields`.
          train: whether dropout is on and batch norms go by the batch.
          rows: int32 [B], the rows' numbers in the global batch, which their random bits depend
            on; None: 0 to B - 1.

        Returns:
          Reps with points [B, M, N], float32, of every given field; [B, 1, V] of lexical ones, with
          the words of texts.
        """
        topology = similarity.topology(self.topology)
        towers = {
            name: make_tower(
                tower, self.vocab_size, dtype=self.dtype, name=name, **self._longest(name)
            )
            for name, tower in self.towers.items()
        }
        heads: dict[str, Projection | LexicalHead] = {}
        points, words = {}, {}
        for name in sorted(inputs.keys() & self.fields.keys()):  # targets are the losses'
            field, arrays = self.fields[name], inputs[name]
            tower: Any = towers[field.tower]
            given = field.inputs(arrays, self.dtype)
            tokens = tower(*given, train=train, rows=rows)  # [B, M, D]
            owner = field.shares_head or name
            if owner not in heads:
                config, columns = self.fields[owner].head, self.columns.get(owner)
                heads[owner] = make_head(config, columns, dtype=self.dtype, name=f"{owner}_head")
            raw = self._raw_points(heads[owner], tower, tokens, arrays)  # [B, M, N]
            points[name] = topology.project(raw)
            if owner in self.columns and "ids" in arrays:
                table = jnp.asarray(self.columns[owner].table)
                words[name] = jnp.where(arrays["mask"], table[arrays["ids"]], -1)  # [B, L]
        return Reps(points=points, words=words)

    def _raw_points(
        self, head: Any, tower: Any, tokens: jax.Array, arrays: Mapping[str, jax.Array]
    ) -> jax.Array:
        """A field's tokens [B, M, W] behind its head."""
        if isinstance(head, Projection):
            return head(tokens)  # [B, M, N]
        table = tower.word_table() if head.tied else None
        return head(tokens, arrays.get("mask"), table)[:, None]  # [B, 1, V]

    @nn.nowrap
    def _longest(self, tower: str) -> dict[str, int]:
        """`max_length` of a text tower: the longest text of the fields that it reads."""
        if not isinstance(self.towers[tower], Bert):
            return {}
        fields = [f for f in self.fields.values() if f.tower == tower]
        lengths = [f.length for f in fields if f.modality == "text"]
        return {"max_length": max(lengths)} if lengths else {}

    @nn.nowrap
    def forward_flops(self) -> int:
        """Operations of the matrix products of one row of a batch, all fields, forward."""
        total = 0
        for name, field in self.fields.items():
            tower = self.towers[field.tower]
            size = field.size if field.modality == "image" else field.length
            total += make_tower(tower, self.vocab_size, parent=None).flops(size)
            total += head_flops(field, tower, self.columns.get(field.shares_head or name))
        return total

    @nn.nowrap
    def example_inputs(self) -> dict[str, dict[str, jax.Array]]:
        """Inputs of one row, to draw parameters with."""
        out: dict[str, dict[str, jax.Array]] = {}
        for name, field in self.fields.items():
            shapes = field.shapes().items()
            out[name] = {key: jnp.ones((1, *shape), dtype) for key, (shape, dtype) in shapes}
        return out


def make_tower(
    config: ViT | Bert | ResNet, vocab_size: int, **module: Any
) -> VisionTransformer | TextTransformer | ResidualNetwork:
    """The module of a tower's configuration.

    Args:
      config: kind and sizes.
      vocab_size: rows of a text tower's word table, where its config leaves it open.
      **module: `name`, `parent` and `dtype` of the module.
    """
    options = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    del options["type"]
    if isinstance(config, ViT):
        return VisionTransformer(**options, **module)
    if isinstance(config, ResNet):
        del options["batch_stats"]  # the trainer's
        return ResidualNetwork(**options, **module)
    options["vocab_size"] = config.vocab_size or vocab_size
    return TextTransformer(**options, **module)


def make_head(
    config: Head | Lexical, columns: Columns | None, **module: Any
) -> Projection | LexicalHead:
    """The module of a head's configuration.

    Args:
      config: kind and sizes.
      columns: of a lexical head.
      **module: `name`, `parent` and `dtype` of the module.
    """
    if isinstance(config, Head):
        return Projection(dim=config.dim, spheres=config.spheres, **module)
    assert columns is not None
    return LexicalHead(
        columns.ids,
        tied=config.tied,
        activation=config.activation,
        pooling=config.pooling,
        pooling_top=config.pooling_top,
        mask_padding=not config.pool_padding,
        transform=config.transform,
        layer_norm=config.layer_norm,
        epsilon=config.epsilon,
        use_bias=config.use_bias,
        bias_init=config.bias_init,
        normalise=config.normalise,
        **module,
    )


def head_flops(field: Field, tower: ViT | Bert | ResNet, columns: Columns | None) -> int:
    """Operations of a field's head, forward, for one row of a batch.

    Args:
      field: its configuration.
      tower: of the tower that it reads with.
      columns: of a lexical head.
    """
    head = make_head(field.head, columns, parent=None)
    if isinstance(head, Projection):
        return head.flops(tower.width, tower.class_tokens)
    if field.modality == "image":
        assert isinstance(tower, ViT)
        return head.flops(tower.width, (field.size // tower.patch) ** 2)
    return head.flops(tower.width, field.length)


def make_model(config: Config, vocab_size: int, words: Words | None = None) -> RetrievalModel:
    """The model of a checked config.

    Args:
      config: checked.
      vocab_size: the tokenizer's.
      words: the tokenizer; None: which word pieces are columns does not matter, but how many are.
    """
    return RetrievalModel(
        towers=config.towers,
        fields=config.encoded,
        topology=config.topology,
        vocab_size=vocab_size,
        columns=lexical_columns(config, vocab_size, words),
        dtype=DTYPES[config.dtype],
    )


def lexical_columns(
    config: Config, vocab_size: int, words: Words | None = None
) -> dict[str, Columns]:
    """The columns of every lexical head, by the field that owns it; see `make_model`.

    Raises:
      UserError: a rule that leaves no column, or heads with different ones.
    """
    found = {}
    sizes = [tower.vocab_size for tower in config.towers.values() if isinstance(tower, Bert)]
    for name, part in config.encoded.items():
        if not isinstance(part.head, Lexical) or part.shares_head:
            continue
        tower, rule = config.towers[part.tower], part.head.columns
        # Images have as many columns as the texts that they are compared with.
        rows = tower.vocab_size if isinstance(tower, Bert) else next(filter(None, sizes), None)
        if words is None or (rule == "all" and rows):
            special = () if words is None else tuple(sorted(words.special_ids))
            whole = columns_of_size(rule, rows or vocab_size)
            found[name] = dataclasses.replace(whole, special=special)
        else:
            found[name] = columns_of(rule, words)
    return found


TRAINING_ONLY = ("scalars", "losses")  # parameters of the losses


def of_model(params: Any) -> Any:
    """The part of the parameters that the model owns."""
    return {name: part for name, part in params.items() if name not in TRAINING_ONLY}


def with_stats(params: Any, batch_stats: Any) -> Any:
    """Parameters and running averages as one tree, the averages under `batch_stats` if any."""
    return {**params, "batch_stats": batch_stats} if batch_stats else params


def variables(weights: Any) -> dict[str, Any]:
    """What the model is applied to: the collections in a tree of `with_stats`."""
    params = of_model(weights)
    batch_stats = of_model(params.pop("batch_stats", {}))
    return {"params": params, "batch_stats": batch_stats}
