"""Retrieval in both directions between two fields of the same records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.data.pipeline import FieldSpec, eval_batches, try_record
from big_retrieval.data.sources import Source
from big_retrieval.encoding import Encoder
from big_retrieval.evals.ranks import ranks
from big_retrieval.similarity import Topology


def encode_source(
    encoder: Encoder, weights: Any, source: Source, name: str, spec: FieldSpec
) -> tuple[np.ndarray, np.ndarray]:
    """All images, or all texts, of a source as points [n, M, N] and their records [n]."""
    batches = eval_batches(
        source, {name: spec}, field=name, batch_size=encoder.batch_size, rows=encoder.rows
    )
    return encoder.points(weights, name, batches)


def summarise(found: np.ndarray, recall_at: tuple[int, ...]) -> dict[str, float]:
    """Recalls as fractions, mean and median rank.

    Args:
      found: rank of the best right answer of each query, from 1, [Q].
      recall_at: the k of R@k.
    """
    out = {f"R@{k}": float(np.mean(found <= k)) for k in recall_at}
    return {**out, "mean_rank": float(np.mean(found)), "median_rank": float(np.median(found))}


@dataclass(frozen=True)
class RetrievalEvaluator:
    """R@k, mean and median rank, of document to query field and back.

    Where a record has several texts, an image's best-placed one counts, and each text is a query
    of its own.

    Attributes:
      config: the evaluator's configuration.
      source: the records.
      specs: field name -> how it is read.
      topology: scores points.
      encoder: encodes on the devices.
    """

    config: configs.Retrieval
    source: Source
    specs: dict[str, FieldSpec]
    topology: Topology
    encoder: Encoder

    def check(self) -> None:
        """Reads the first record.

        Raises:
          UserError: a field does not fit it.
        """
        names = self.config.document, self.config.query
        try_record(self.source, {name: self.specs[name] for name in names})

    def run(self, weights: Any, say: Callable[[str], None] = lambda text: None) -> dict[str, float]:
        """Encodes all records and ranks them.

        Args:
          weights: the parameters.
          say: prints a line to the user.

        Returns:
          `<document>_to_<query>/R@1` and so on, and the other direction.
        """
        names = self.config.document, self.config.query
        encoded = {}
        for name in names:
            points = encode_source(self.encoder, weights, self.source, name, self.specs[name])
            encoded[name] = points
        say(" against ".join(f"{len(encoded[name][0]):,} {name}s" for name in names))
        out = {}
        for first, second in (names, names[::-1]):
            found = ranks(
                *encoded[first],
                *encoded[second],
                score=self.topology.score,
                encoder=self.encoder,
                chunk=self.config.chunk,
            )
            for metric, value in summarise(found, self.config.recall_at).items():
                out[f"{first}_to_{second}/{metric}"] = value
        return out
