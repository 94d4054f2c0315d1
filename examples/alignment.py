"""An evaluator of your own: alignment and uniformity.

    big-retrieval train --config=examples/alignment.py:runlocal

Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity
on the Hypersphere" (2020): a good embedding puts the two sides of a pair close to each other
(alignment) and spreads all embeddings over the sphere (uniformity). Alignment is 0 at best; more
negative uniformity is better.

An evaluator is a frozen dataclass: its fields are the keys that `--config.evals.<name>.<key>=value`
sets, its `check` says what is wrong with them before the run starts, and its `run` returns numbers,
which are logged as `<type>/<name>/<metric>`. Data that could be wrong are checked in `check_data`.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from big_retrieval import config
from big_retrieval.config import recipe

log = logging.getLogger("big_retrieval.alignment")  # below the package's, so that it is shown


@config.register("evaluator")
@dataclass(frozen=True)
class Alignment(config.Evaluator):
    """Distances within pairs, and how evenly each side fills the sphere."""

    type: Literal["alignment"] = "alignment"
    data: config.Source = field(default_factory=lambda: config.Scenes(split="test", count=200))
    query: str = "text"
    document: str = "image"
    power: float = 2.0  # of the distance within a pair; alpha of the paper
    sharpness: float = 2.0  # of the kernel; t of the paper
    every: int | None = None  # steps; None: config.eval_every

    def check(self, config: config.Config, path: str) -> Iterator[str]:
        """What is wrong with the keys, a sentence each."""
        if config.topology not in ("sphere", "oblique"):
            yield f"{path}: {config.topology!r} has no spheres; set config.topology to 'sphere'."
        for key in ("power", "sharpness"):
            if getattr(self, key) <= 0:
                yield f"{path}.{key} is {getattr(self, key)}; it must be positive."

    def reads(self) -> dict[str, str]:
        """The keys that name fields: whether these exist is checked elsewhere."""
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: config.Config) -> tuple[str, ...]:
        """With these, `config.best_metric` can name one of them."""
        return "alignment", f"uniformity_{self.query}", f"uniformity_{self.document}"

    def run(self, context: Any, weights: Any) -> dict[str, float]:
        """The numbers of these weights; `context` has the data and the model."""
        documents, records = context.encode(weights, self.document)  # [n, M, N], [n]
        queries, owners = context.encode(weights, self.query)  # several texts a record
        queries, documents = (_flat(embeddings) for embeddings in (queries, documents))
        place = np.searchsorted(records, owners)  # the document of each query
        apart = np.linalg.norm(queries - documents[place], axis=1)
        log.info(f"{len(queries):,} pairs")
        return {
            "alignment": float(np.mean(apart**self.power)),
            f"uniformity_{self.query}": uniformity(queries, self.sharpness),
            f"uniformity_{self.document}": uniformity(documents, self.sharpness),
        }


def _flat(embeddings: Any) -> np.ndarray:
    """[n, M, N] -> [n, M N] of length 1."""
    flat = np.asarray(embeddings, np.float64).reshape(len(embeddings), -1)
    return flat / np.linalg.norm(flat, axis=1, keepdims=True)


def uniformity(embeddings: np.ndarray, sharpness: float) -> float:
    """log E exp(-t |x - y|^2) over pairs of different rows of `embeddings` [n, D]."""
    squares = 2 - 2 * embeddings @ embeddings.T  # [n, n], as the rows have length 1
    pairs = squares[np.triu_indices(len(embeddings), k=1)]
    return float(np.log(np.mean(np.exp(-sharpness * pairs))))


def get_config(arg: str = "") -> recipe.Editable:
    """A small model of generated scenes, evaluated every 100 steps. Arguments: runlocal."""
    args = recipe.parse_arg(arg)
    c = recipe.small()
    c.eval_every = 100
    c.evals.spread = recipe.entry(Alignment())
    return recipe.runlocal(c) if args.runlocal else c
