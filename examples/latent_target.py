"""A loss with a network and a target column of its own: latent target decoding.

    python examples/latent_target.py targets.npy     # writes a vector for every caption
    big-retrieval train --config=examples/latent_target.py:targets=targets.npy

Bleeker et al., "Reducing Predictive Feature Suppression in Resource-Constrained Contrastive
Image-Caption Retrieval" (2023): a contrastive loss keeps only the features that tell the captions
of a batch apart. A decoder that has to reconstruct a vector of the whole caption (of a sentence
encoder; here, of its words) from the caption's embedding keeps the others alive, too. `mode=dual`
adds its loss by a weight (Eq. 7), `mode=constraint` demands that it stays below a bound (Eq. 9).

Three parts work together. The field `target` is an array for every caption, read from a
memory-mapped file; its side is "target", so that no tower reads it. `LatentTarget` is the loss.
`Decoder` is a Linen module that exists in training only: models are saved with it, resumed with it,
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
from big_retrieval.losses.function import Context, LossFunction, Result
from big_retrieval.losses.pairwise import mean

DIM = 64  # of the vectors that `main` writes
RECORDS = 4000


@config.register("loss")
@dataclass(frozen=True)
class LatentTarget(config.Loss):
    """1 - cosine of the decoded embedding of a caption and the caption's target (Eqs. 5 and 6)."""

    type: Literal["latent_target"] = "latent_target"
    field: str = "text"  # whose embeddings are decoded
    target: str = "target"  # the array field of the targets
    width: int = 256  # of the decoder's two hidden layers

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if self.field not in config.encoded:
            known = ", ".join(config.encoded)
            yield f"{path}.field is {self.field!r}, which no tower reads; known: {known}."
        target = config.fields.get(self.target)
        if target is None or target.side != "target":
            known = ", ".join(config.side("target")) or "none"
            yield f"{path}.target is {self.target!r}, no field of the side 'target' ({known})."
        if self.width < 1:
            yield f"{path}.width is {self.width}; it must be at least 1."

    def build(self, config: config.Config, name: str) -> "Decoding":
        """What computes it."""
        (size,) = config.fields[self.target].shapes()["values"][0]
        return Decoding(self, name, size)


@dataclass(frozen=True)
class Decoding(LossFunction):
    """What the training step calls."""

    part: LatentTarget
    name: str
    size: int  # of a target

    def module(self) -> nn.Module:
        """The decoder, with parameters `losses/<name>/...`."""
        return Decoder(self.part.field, self.part.width, self.size)

    def __call__(self, context: Context) -> Result:
        """The mean over the rows of the global batch that have both."""
        decoded = context.reps.extra[self.name]  # [B, D]
        target = context.batch.fields[self.part.target]["values"].astype(decoded.dtype)
        counted = context.batch.valid
        for field in (self.part.field, self.part.target):  # an optional one may be missing
            counted = counted & context.batch.fields[field].get("present", True)
        return mean(1 - cosine(decoded, target), counted.astype(decoded.dtype)), {}


def cosine(a: jax.Array, b: jax.Array, least: float = 1e-8) -> jax.Array:
    """Of rows [B, D] of both, [B]."""
    squares = jnp.sum(a * a, axis=1) * jnp.sum(b * b, axis=1)
    return jnp.sum(a * b, axis=1) / jnp.sqrt(jnp.maximum(squares, least**2))


def uniform_by_inputs(key: jax.Array, shape: Any, dtype: Any, inputs: int) -> jax.Array:
    """A bias as PyTorch starts it: uniform up to 1 / sqrt(number of inputs)."""
    return jax.random.uniform(key, shape, dtype, -(inputs**-0.5), inputs**-0.5)


class Decoder(nn.Module):
    """Three linear layers with ReLU between them."""

    field: str
    width: int
    size: int

    @nn.compact
    def __call__(
        self, reps: Any, fields: Mapping[str, Any], *, train: bool, rows: jax.Array | None
    ) -> jax.Array:
        """Embeddings [b, M, N] of a field -> [b, size]."""
        x = reps.embeddings[self.field]
        x = x.reshape(len(x), -1)
        for number, width in enumerate((self.width, self.width, self.size)):
            inputs = x.shape[1]

            def bias(key: jax.Array, shape: Any, dtype: Any, inputs: int = inputs) -> jax.Array:
                return uniform_by_inputs(key, shape, dtype, inputs)

            x = nn.relu(x) if number else x
            kernel = nn.initializers.xavier_uniform()
            x = nn.Dense(width, kernel_init=kernel, bias_init=bias, name=f"layer_{number}")(x)
        return x


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal; targets (the file of the vectors;
    without it they are random); mode (dual, constraint); bound (0.2)."""
    args = recipe.parse_arg(arg, targets="", mode="constraint", bound=0.2)
    recipe.one_of("mode", args.mode, ("dual", "constraint"))
    c = recipe.small()
    c.data.count = RECORDS
    c.fields.target = recipe.entry(
        config.ArrayField(), shape=(DIM,), aligned_with="text",
        file=args.targets, generated=not args.targets,
    )  # fmt: skip
    c.losses.main.logit_scale.init = 5.0
    c.losses.target = recipe.entry(LatentTarget())
    if args.mode == "constraint":
        c.losses.target.constraint.bound = args.bound
    return recipe.runlocal(c) if args.runlocal else c


def vector_of(text: str) -> np.ndarray:
    """A stand-in for a sentence encoder: the sum of a random vector for each word, of length 1."""
    words = [np.random.default_rng(zlib.crc32(word.encode())) for word in text.split()]
    total = np.sum([rng.normal(size=DIM) for rng in words], axis=0)
    return (total / np.linalg.norm(total)).astype(np.float32)


def main(out: str) -> None:
    """Writes the targets of all captions of all training records, in their order, to `out`."""
    from big_retrieval.data.build import make_source
    from big_retrieval.data.fields.arrays import save_store

    texts = list(make_source(config.Scenes(count=RECORDS)).captions())
    save_store(out, np.stack([vector_of(text) for text in texts]), texts)


if __name__ == "__main__":
    main(sys.argv[1])
