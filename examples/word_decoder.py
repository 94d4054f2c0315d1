"""A loss with a network and targets of its own: which words of a caption does its embedding tell?

    python examples/word_decoder.py words.npy        # writes the words of every caption
    big-retrieval train --config=examples/word_decoder.py:words=words.npy

A linear layer has to tell from the embedding of a caption which words the caption has. The loss is
added by a weight (`mode=dual`) or held below a bound (`mode=constraint`). The package's own losses
of this kind are `LatentTarget`, for vectors of a sentence encoder, and `InputTarget`, for the
caption's tokens in their order (docs/LTD.md).

Three parts work together. The field `words` is an array for every caption, read from a
memory-mapped file; its side is "target", so that no tower reads it. `WordDecoder` is the loss.
`Layer` is a Linen module that exists in training only: models are saved with it, resumed with it,
and loaded, evaluated and exported without it.
"""

import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.losses.context import Context, Result
from big_retrieval.losses.ltd import decoder_input, rows_with
from big_retrieval.losses.pairwise import mean

BUCKETS = 64  # of words; two words may fall into one
RECORDS = 4000


@config.register("loss")
@dataclass(frozen=True)
class WordDecoder(config.DecoderLoss):
    """Cross-entropy of a yes or no for every bucket of words, the mean over all of them."""

    type: Literal["word_decoder"] = "word_decoder"
    target: str = "words"  # the array field that holds 1 for every bucket with a word, else 0

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        yield from super().check(config, path)
        target = config.fields.get(self.target)
        if target is None or target.side != "target":
            known = ", ".join(config.side("target")) or "none"
            yield f"{path}.target is {self.target!r}, no field of the side 'target' ({known})."

    def module(self, config: config.Config) -> nn.Module:
        """The layer, with parameters `losses/<name>/...`."""
        (buckets,) = config.fields[self.target].shapes()["values"][0]
        return Layer(self.field, buckets, bool(self.reads_vectors(config)))

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have both; the share of right ones."""
        logits = context.output  # [B, buckets]
        target = context.batch.fields[self.target]["values"]
        counted = rows_with(context.batch, (self.field, self.target)).astype(logits.dtype)
        cost = jnp.mean(jax.nn.softplus(logits) - target * logits, axis=1)
        right = jnp.mean(((logits > 0) == (target > 0)).astype(logits.dtype), axis=1)
        return mean(cost, counted), {"accuracy": mean(right, counted)}


class Layer(nn.Module):
    """One linear layer."""

    field: str
    buckets: int
    pooled: bool

    @nn.compact
    def __call__(
        self, reps: Any, fields: Mapping[str, Any], *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        """Embeddings [b, M, N] of a field, or what `DecoderLoss` says instead -> [b, buckets]."""
        x = decoder_input(reps, fields, self.field, self.pooled)  # [b, M * N]
        return nn.Dense(self.buckets, name="layer")(x)


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal; words (the file of the targets;
    without it they are random); mode (dual, constraint); bound (0.2)."""
    args = recipe.parse_arg(arg, words="", mode="constraint", bound=0.2)
    recipe.one_of("mode", args.mode, ("dual", "constraint"))
    c = recipe.small()
    c.data.count = RECORDS
    c.fields.words = recipe.entry(
        config.ArrayField(), shape=(BUCKETS,), dtype="uint8", aligned_with="text",
        file=args.words, generated=not args.words,
    )  # fmt: skip
    c.losses.main.logit_scale.init = 5.0
    c.losses.words = recipe.entry(WordDecoder())
    if args.mode == "constraint":
        c.losses.words.constraint.bound = args.bound
    return recipe.runlocal(c) if args.runlocal else c


def buckets_of(text: str) -> np.ndarray:
    """1 for every bucket with a word of the text, else 0; uint8 [BUCKETS]."""
    found = np.zeros(BUCKETS, np.uint8)
    found[[zlib.crc32(word.encode()) % BUCKETS for word in text.split()]] = 1
    return found


def main(out: str) -> None:
    """Writes the buckets of all captions of all training records, in their order, to `out`."""
    from big_retrieval.data.build import make_source
    from big_retrieval.data.fields.stores import save_store

    texts = list(make_source(config.Scenes(count=RECORDS)).captions())
    save_store(out, np.stack([buckets_of(text) for text in texts]), texts)


if __name__ == "__main__":
    main(sys.argv[1])
