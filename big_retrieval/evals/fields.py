"""Documents and queries of several fields in an evaluation: encoded once, averaged in many ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from big_retrieval.data.batches import FieldSpec
from big_retrieval.data.pipeline import Reading
from big_retrieval.data.sources import Source
from big_retrieval.encoding import Encoder
from big_retrieval.evals.sides import encode_first
from big_retrieval.similarity import Topology


@dataclass(frozen=True)
class EncodedFields:
    """The fields of some queries or documents, n of them.

    Attributes:
      points: field name -> [n, M, N]; 0 where it is not there.
      there: field name -> bool [n].
    """

    points: Mapping[str, np.ndarray]
    there: Mapping[str, np.ndarray]

    def any(self, weights: Mapping[str, float]) -> np.ndarray:
        """bool [n]: which have a field with a weight."""
        return np.any([there for name, there in self.there.items() if weights.get(name)], axis=0)


def encode_fields(
    encoder: Encoder,
    weights: Any,
    source: Source,
    specs: Mapping[str, FieldSpec],
    reading: Reading | None = None,
) -> EncodedFields:
    """Encodes some fields of all records of a source; of several texts the first.

    Args:
      encoder: encodes on the devices.
      weights: the parameters.
      source: queries or documents, one a record.
      specs: the wanted fields: name -> how it is read.
      reading: by what records are read; counts damaged ones.
    """
    points, there = {}, {}
    for name, spec in specs.items():
        found, records = encode_first(encoder, weights, source, name, spec, reading)
        there[name] = np.zeros(len(source), bool)
        there[name][records] = True
        points[name] = np.zeros((len(source), *found.shape[1:]), found.dtype)
        points[name][records] = found
    return EncodedFields(points, there)


def average(
    topology: Topology,
    points: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
    there: Mapping[str, np.ndarray],
) -> np.ndarray:
    """The weighted average of fields, brought back onto the topology.

    "Generalized contrastive learning", the authors' evaluation: a missing field has weight 0, the
    others are divided by their sum, and the average is normalised again.

    Args:
      topology: averages and projects.
      points: field name -> [n, M, N].
      weights: field name -> its weight; fields without one are left out.
      there: field name -> bool [n]; a field that is not in it is everywhere.

    Returns:
      float32 [n, M, N], 0 where no field is there.
    """
    names = [name for name in points if weights.get(name, 0) > 0]
    rows = len(points[names[0]])
    shares = [np.float32(weights[n]) * there.get(n, np.ones(rows, bool)) for n in names]  # [n] each
    mixed = topology.combine([jnp.asarray(points[n]) for n in names], jnp.asarray(shares))
    return np.asarray(topology.project(mixed), np.float32)
