"""A loss around another loss: embeddings of which the first values are embeddings, too.

    big-retrieval train --config=examples/matryoshka.py:runlocal

Kusupati et al., "Matryoshka Representation Learning" (2022): the loss is summed over several
prefixes of the embedding, so that a search may keep only its first 16 or 8 values. Here any loss
can be wrapped; `losses.main.inner` has the keys of the inner one, so that for example
`--config.losses.main.inner.type=sigmoid` exchanges it.

A loss is a frozen dataclass: its fields are the keys that `--config.losses.<name>.<key>=value`
sets, its `check` yields error messages about them before the run starts, and a call turns the
embeddings of a global batch into a number and its metrics.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import jax.numpy as jnp

from big_retrieval import config
from big_retrieval.config import recipe
from big_retrieval.config.topologies import Topology, topology_part
from big_retrieval.losses.context import Context, Result


@config.register("loss")
@dataclass(frozen=True)
class Matryoshka(config.Loss):
    """The sum of a loss over prefixes of the embeddings."""

    type: Literal["matryoshka"] = "matryoshka"
    inner: config.Loss = field(default_factory=config.Contrastive)
    dims: tuple[int, ...] = (64, 16, 8)  # how many values of each class token a prefix has
    factors: tuple[float, ...] = (1.0, 1.0, 1.0)  # of their losses

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        heads = {name: field.head.dim for name, field in config.encoded.items()}
        widest = min(dim for dim in heads.values() if dim is not None)
        if not self.dims or min(self.dims) < 1 or max(self.dims) > widest:
            yield f"{path}.dims is {self.dims}; the embeddings have 1 to {widest} values."
        if len(self.factors) != len(self.dims):
            yield f"{path}.factors has {len(self.factors)} numbers for {len(self.dims)} dims."
        yield from self.inner.check(config, f"{path}.inner")

    def compares(self, config: config.Config) -> tuple[str, ...]:
        """The fields whose embeddings must be of one shape."""
        return self.inner.compares(config)

    def scalars(self) -> dict[str, float]:
        """The inner loss's logit scale is shared by all prefixes."""
        return self.inner.scalars()

    def bound(self, scalars):
        """And has its bounds."""
        return self.inner.bound(scalars)

    def __call__(self, context: Context) -> Result:
        """The loss, and the inner loss's metrics of every prefix, such as `accuracy_16`."""
        total, metrics = jnp.zeros(()), {}
        topology = topology_part(context.config.topology)
        for dim, factor in zip(self.dims, self.factors, strict=True):
            reps = _prefix(context.reps, dim, topology)
            value, found = self.inner(context.replace(reps=reps))  # type: ignore
            total = total + factor * value
            metrics |= {f"{name}_{dim}": x for name, x in found.items()} | {f"loss_{dim}": value}
        return total, metrics


def _prefix(reps: Any, dim: int, topology: Topology) -> Any:
    """The same with the first values of every embedding; of hard negatives, too."""
    embeddings = {
        name: topology.project(embeddings[..., :dim])  # [B, M, dim], of length 1 again
        for name, embeddings in reps.embeddings.items()
    }
    negatives = None if reps.negatives is None else _prefix(reps.negatives, dim, topology)
    return reps.replace(embeddings=embeddings, negatives=negatives)


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.losses.main = recipe.entry(Matryoshka(), dims=(16, 8, 4))
    c.losses.main.inner.logit_scale.init = 5.0
    return recipe.runlocal(c) if args.runlocal else c
