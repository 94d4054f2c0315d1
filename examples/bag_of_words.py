"""A text tower of your own: the mean of a text's word vectors, and one dense layer.

    big-retrieval train --config=examples/bag_of_words.py:runlocal
    big-retrieval evaluate --run=RUN --plugins=examples/bag_of_words.py

A tower is a frozen dataclass, whose fields are its keys, and a Linen module that its `build` makes.
The module is called with what the field hands it, here ids and mask, and gives vectors
[B, M, width] for the head behind it. Nothing else has to be said: what a step costs (`--plan`,
the MFU) is counted by tracing the module.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from big_retrieval import config
from big_retrieval.config import recipe


@config.register("tower")
@dataclass(frozen=True)
class BagOfWords(config.Tower):
    """The mean of word vectors, which forgets the order of the words."""

    modality: ClassVar[str] = "text"  # of the fields that it reads
    type: Literal["bag_of_words"] = "bag_of_words"
    width: int = 256  # W, of what comes out; heads and losses ask for it
    words: int = 128  # width of the word vectors

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        for key in ("width", "words"):
            if getattr(self, key) < 1:
                yield f"{path}.{key} is {getattr(self, key)}; it must be at least 1."

    def build(self, vocab_size: int, fields: Sequence[Any], **module: Any) -> "MeanOfWords":
        """The module; `vocab_size` is the tokenizer's, `fields` those that this tower reads."""
        return MeanOfWords(vocab_size, self.words, self.width, **module)

    def runlocal(self) -> "BagOfWords":
        """The same, small."""
        return replace(self, width=64, words=32)


class MeanOfWords(nn.Module):
    """Word ids -> one vector a text; `dtype` is that of the run's computations."""

    vocab_size: int
    words: int
    width: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, ids: jax.Array, mask: jax.Array, *, train: bool = False, rows: Any = None
    ) -> jax.Array:
        """ids int32 [B, L], mask bool [B, L] -> [B, 1, W]; `train` and `rows` are for dropout."""
        vectors = nn.Embed(self.vocab_size, self.words, dtype=self.dtype, name="words")(ids)
        present = mask[..., None].astype(self.dtype)  # [B, L, 1]
        mean = jnp.sum(vectors * present, axis=1) / jnp.maximum(jnp.sum(present, axis=1), 1)
        return nn.Dense(self.width, dtype=self.dtype, name="out")(mean)[:, None]  # [B, 1, W]


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.towers.text = recipe.entry(BagOfWords())
    return recipe.runlocal(c) if args.runlocal else c
