"""A kind of field of your own, with a tower that reads it and a head behind the tower.

    big-retrieval train --config=examples/letters.py:runlocal

A field says which column it reads, which arrays one value of it becomes, and how those of a batch
are stacked; a tower says which kinds of fields it reads. This field counts the letters of a
record's captions, which a model can tell images from, though worse than from words. A field of
texts is better made from `config.TextField`, and arrays of one shape need no code at all: see
`config.ArrayField`.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.data.fields.reader import Drawing, FieldReader, Tools
from big_retrieval.data.sources import as_texts, column_of

SIZE = 26  # letters


@config.register("field")
@dataclass(frozen=True)
class Letters(config.Field, FieldReader):
    """How often each letter stands in the texts of a column."""

    modality: ClassVar[str] = "letters"  # towers say which they read
    type: Literal["letters"] = "letters"
    side: str = "query"
    tower: str = "letters"
    column: str = "captions"
    scale: float = 1.0  # of a letter's count
    weight: float = 1.0
    optional: bool = False
    head: config.Head = dataclasses.field(default_factory=config.Projection)

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if self.scale <= 0:
            yield f"{path}.scale is {self.scale}; it must be positive."

    def shapes(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """The arrays of a batch: shape of one row, and type."""
        return {"counts": ((SIZE,), "float32")}

    def build(self, tools: Tools) -> "Letters":
        """What reads records; `tools` has the tokenizer, for fields that need it."""
        return self

    def draw(self, name: str, record: dict[str, Any], drawing: Drawing) -> np.ndarray:
        """Counts of one record in training, float32 [26]."""
        return self._count(column_of(record, self.column, drawing.source), drawing.place)

    def value(self, source: Any, index: int, number: int) -> np.ndarray:
        """The same of record `index` of a source in an evaluation."""
        return self._count(source[index][self.column], source.place(index))

    def _count(self, given: Any, place: str) -> np.ndarray:
        text = "".join(as_texts(given, "", place)).lower()
        letters = [ord(letter) - ord("a") for letter in text if "a" <= letter <= "z"]
        return self.scale * np.bincount(letters, minlength=SIZE).astype(np.float32)

    def stack(self, values: Sequence[np.ndarray | None]) -> dict[str, np.ndarray]:
        """The arrays of `Letters.shapes`, of a batch; None where a record has no value."""
        absent = np.zeros(SIZE, np.float32)
        return {"counts": np.stack([absent if value is None else value for value in values])}


@config.register("tower")
@dataclass(frozen=True)
class Dense(config.Tower):
    """One dense layer over a vector."""

    modality: ClassVar[str] = "letters"
    type: Literal["dense_layer"] = "dense_layer"
    width: int = 64

    def reads(self, field: config.Field) -> bool:
        """Letters, and array fields as well."""
        return super().reads(field) or field.type == "array"

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> "DenseModule":
        """What computes it."""
        return DenseModule(self.width, **module)


class DenseModule(nn.Module):
    """The arrays of a field -> positions [B, 1, width]."""

    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, counts: jax.Array, *, train: bool = False, rows: Any = None) -> jax.Array:
        """Counts [B, 26], or the vector [B, N] of an array field."""
        return nn.Dense(self.width, dtype=self.dtype)(counts)[:, None]


@config.register("head")
@dataclass(frozen=True)
class TwoLayers(config.Head):
    """A network of two layers instead of a projection."""

    type: Literal["two_layers"] = "two_layers"
    dim: int = 64
    inner: int = 128

    def runlocal(self) -> "TwoLayers":
        """As small as projections become, which give the other sides their dimensions."""
        return dataclasses.replace(self, dim=16, inner=32)

    def build(self, terms: Any, **module: Any) -> "TwoLayersModule":
        """What computes it."""
        return TwoLayersModule(self, **module)


class TwoLayersModule(nn.Module):
    """Positions [B, M, W] -> what the topology projects, [B, M, dim]."""

    part: TwoLayers
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Layer, GELU, layer."""
        return nn.Dense(self.part.dim)(nn.gelu(nn.Dense(self.part.inner)(tokens)))


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes, asked by texts and by letters. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.towers.letters = recipe.entry(Dense())
    c.fields.letters = recipe.entry(Letters(), scale=0.1, head=TwoLayers())
    c.evals.letters = recipe.entry(config.Retrieval(), query="letters")
    return recipe.runlocal(c) if args.runlocal else c
