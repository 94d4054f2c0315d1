"""Base class of topologies, which normalize and score embeddings; see `similarity.py`."""

import abc
import difflib
import functools
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from big_retrieval.config import schema
from big_retrieval.config.registry import Part
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    import jax


class Topology(Part):
    """Base class of topologies; see `Part`.

    If it has more keys than `type`, `config.topology` is the part itself, otherwise its type. Its
    methods work under jit, grad, vmap and shard_map. Representations and embeddings are [..., M,
    N]: M sub-spheres (class tokens) of N dimensions. Scores are higher for closer embeddings and do
    not include the logit scale.
    """

    kind: ClassVar[str] = "topology"

    @abc.abstractmethod
    def project(self, x: "jax.Array") -> "jax.Array":
        """Computes embeddings [..., M, N], float32 or wider, from raw representations."""

    @abc.abstractmethod
    def score(self, a: "jax.Array", b: "jax.Array") -> "jax.Array":
        """Computes scores [rows, columns] of embeddings a [rows, M, N] and b [columns, M, N].

        Raises a UserError if M or N differ.
        """

    @abc.abstractmethod
    def paired(self, a: "jax.Array", b: "jax.Array") -> "jax.Array":
        """Computes scores [rows] of row i of a with row i of b, [rows, M, N], in O(rows M N).

        Equals the diagonal of `score(a, b)` up to rounding. Raises a UserError if shapes differ.
        """

    def numbers_per_score(self, shape: tuple[int, ...]) -> int:
        """Returns the number of values that `score` stores per score, for embeddings of a shape."""
        return 1

    def combine(
        self, embeddings: "Sequence[jax.Array] | jax.Array", weights: "jax.Array"
    ) -> "jax.Array":
        """Computes the weighted average [..., M, N] of the fields of a document.

        For inner products, the score of the average is the average of the scores. `Geodesic`
        projects the average back onto its spheres.

        Args:
          embeddings: embeddings of F fields, [..., M, N] each; they are not stacked.
          weights: [F], or [F, rows] for embeddings [rows, ...]; not negative, divided by their sum
            here. If all are 0, the average is 0.
        """
        import jax.numpy as jnp  # processes that only read data run without jax

        fields = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in embeddings]
        weights = jnp.asarray(weights, fields[0].dtype)
        total = jnp.sum(weights, axis=0)  # [] or [rows]
        shares = weights / jnp.where(total > 0, total, 1)
        shape = (*total.shape, *(1,) * (fields[0].ndim - total.ndim))
        parts = [share.reshape(shape) * x for share, x in zip(shares, fields, strict=True)]
        return functools.reduce(operator.add, parts)  # [..., M, N]


TopologyKey = str | Topology  # of a config: the type, or the part if it has keys


def topology_part(name: TopologyKey | Mapping[str, Any], path: str = "") -> Topology:
    """Returns the topology of a type or of a saved group of keys; a part is returned as it is."""
    if isinstance(name, Topology):
        return name
    types: dict[str, Any] = {cls.type: cls for cls in Topology.registered()}
    tag = str(name.get("type")) if isinstance(name, Mapping) else name
    if tag not in types:
        near = difflib.get_close_matches(tag, types, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"{path}{': ' if path else ''}topology {tag!r} is unknown{hint}; known: "
            f"{', '.join(types)}. If it is your own, give the file that defines it as "
            "--plugins=FILE."
        )
    if isinstance(name, Mapping):
        return schema.parse_value(Topology, name, "config.topology")
    return types[tag]()


def topology_key(name: TopologyKey) -> TopologyKey:
    """Returns the value for a config: the type of a topology without keys, else the part."""
    part = topology_part(name, "config.topology")
    has_keys = len(schema.to_plain(part)) > 1  # more than its type
    return part if has_keys else part.type
