"""Retrieval in both directions between two fields of the same records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from big_retrieval import config as configs
from big_retrieval.data.batches import FieldSpec, try_record
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import Source
from big_retrieval.encoding import Encoder
from big_retrieval.evals import examples
from big_retrieval.evals.ranks import ranks
from big_retrieval.evals.sides import check_group, encode_side, group_numbers
from big_retrieval.similarity import Topology


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
    of its own. With a group column, every record of the query's group is a right answer, and
    identical texts of one group count once; images stay one each.

    Attributes:
      config: the evaluator's configuration.
      source: the records.
      specs: field name -> how it is read.
      topology: scores points.
      encoder: encodes on the devices.
      reading: by what records are read; counts damaged ones.
    """

    config: configs.Retrieval
    source: Source
    specs: dict[str, FieldSpec]
    topology: Topology
    encoder: Encoder
    reading: Reading | None = None

    def check(self) -> None:
        """Reads the first record.

        Raises:
          UserError: a field or the group column does not fit it.
        """
        names = self.config.document, self.config.query
        try_record(self.source, {name: self.specs[name] for name in names})
        if self.config.group:
            check_group(self.source, self.config.group)

    def run(
        self,
        weights: Any,
        say: Callable[[str], None] = lambda text: None,
        show: examples.Show | None = None,
    ) -> dict[str, float]:
        """Encodes all records and ranks them.

        Args:
          weights: the parameters.
          say: prints a line to the user.
          show: takes examples of each direction, where they are wanted.

        Returns:
          `<document>_to_<query>/R@1` and so on, and the other direction.
        """
        c = self.config
        names = c.document, c.query
        groups = group_numbers(self.source, c.group) if c.group else None  # [records]
        sides = {
            name: encode_side(
                self.encoder, weights, self.source, name, self.specs[name], groups, self.reading
            )
            for name in names
        }
        say(" against ".join(f"{sides[name].points.shape[0]:,} {name}s" for name in names))
        how = {"score": self.topology.score, "encoder": self.encoder, "chunk": c.chunk}
        out, directions = {}, []
        for first, second in (names, names[::-1]):
            a, b = sides[first], sides[second]
            found = ranks(a.points, a.owners, b.points, b.owners, **how)
            for metric, value in summarise(found, c.recall_at).items():
                out[f"{first}_to_{second}/{metric}"] = value
            if show is not None:
                directions.append(examples.choose(a, b, found, **how))
        if show is not None:
            show(lambda: {"type": c.type, "directions": [d.describe() for d in directions]})
        return out
