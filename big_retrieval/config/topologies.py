"""The base of topologies, which `config.topology` names: how embeddings are normalised and scored.

A configuration holds the type of a topology without keys, `c.topology = "oblique"`, as all of the
package are (`big_retrieval/similarity.py`), and the whole part of a topology with keys.
"""

import abc
import dataclasses
import difflib
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from big_retrieval.config import schema
from big_retrieval.config.registry import Part
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    import jax

    from big_retrieval.config.run import Config


class Topology(Part):
    """The base of all topologies.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("topology")`. If
    it has further keys, `config.topology` is the part itself, otherwise its type. Its methods work
    under jit, grad, vmap and shard_map.

    Shapes: a representation is [..., M, N], M sub-spheres (class tokens) of N dimensions. An
    embedding has its representation's shape. Scores are higher for closer embeddings and are not
    multiplied by the logit scale.
    """

    kind: ClassVar[str] = "topology"

    @classmethod
    def has_keys(cls) -> bool:
        """Returns True if it has more keys than its type."""
        return len(dataclasses.fields(cls)) > 1  # type: ignore

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys in this config, a sentence each; `path` names it."""
        del config, path
        yield from ()

    @abc.abstractmethod
    def project(self, x: "jax.Array") -> "jax.Array":
        """Raw representations [..., M, N] -> embeddings [..., M, N], float32 or wider."""
        raise NotImplementedError

    @abc.abstractmethod
    def score(self, a: "jax.Array", b: "jax.Array") -> "jax.Array":
        """Embeddings a [rows, M, N] and b [columns, M, N] -> scores [rows, columns].

        Raises:
          UserError: the embeddings of the two sides differ in M or N.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def paired(self, a: "jax.Array", b: "jax.Array") -> "jax.Array":
        """Embeddings a, b [rows, M, N] -> score of row i with row i, [rows], in O(rows M N).

        Equals the diagonal of `score(a, b)` up to rounding, not bit for bit.

        Raises:
          UserError: the embeddings of the two sides differ in rows, M or N.
        """
        raise NotImplementedError

    def numbers_per_score(self, shape: tuple[int, ...]) -> int:
        """Returns how many numbers `score` holds for each score, for embeddings of a shape."""
        del shape
        return 1

    def combine(
        self, embeddings: "Sequence[jax.Array] | jax.Array", weights: "jax.Array"
    ) -> "jax.Array":
        """Weighted average of the fields of a document.

        Inner products keep the plain average, so that the score of the average is the average of
        the scores; `Geodesic` brings it back onto its spheres.

        Args:
          embeddings: embeddings of F fields, [..., M, N] each; they are not stacked.
          weights: [F], or [F, rows] with one for each row of embeddings [rows, ...]; not negative,
            divided by their sum here. Where all are 0 the average is 0.

        Returns:
          [..., M, N].
        """
        import jax.numpy as jnp  # processes that only read data need no jax

        fields = [x.astype(jnp.promote_types(x.dtype, jnp.float32)) for x in embeddings]
        weights = jnp.asarray(weights, fields[0].dtype)
        total = jnp.sum(weights, axis=0)  # [] or [rows]
        shares = weights / jnp.where(total > 0, total, 1)
        shape = (*total.shape, *(1,) * (fields[0].ndim - total.ndim))
        parts = [share.reshape(shape) * x for share, x in zip(shares, fields, strict=True)]
        return functools.reduce(operator.add, parts)  # [..., M, N]


TopologyKey = str | Topology  # of a config: the type, or the part where it has keys


def topology_part(name: TopologyKey | Mapping[str, Any]) -> Topology:
    """The topology of a type, with its default keys, of a saved group of keys, or the part itself.

    Raises:
      UserError: there is none, with the nearest name.
    """
    if isinstance(name, Topology):
        return name
    known: dict[str, Any] = {cls.type: cls for cls in Topology.registered()}
    tag = str(name.get("type")) if isinstance(name, Mapping) else name
    if tag not in known:
        near = difflib.get_close_matches(tag, known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(
            f"topology {tag!r} is unknown{hint}; known: {', '.join(known)}. If it is your own, "
            "give the file that defines it as --plugins=FILE."
        )
    if isinstance(name, Mapping):
        return schema.parse_part(Topology, name, "config.topology")
    return known[tag]()


def check_topology(name: TopologyKey, config: "Config", path: str) -> Iterator[str]:
    """What is wrong with a topology under a key, a sentence each."""
    try:
        part = topology_part(name)
    except UserError as problem:
        yield f"{path}: {problem}"
    else:
        yield from part.check(config, path)


def topology_key(name: TopologyKey, path: str = "config.topology") -> TopologyKey:
    """The value of a config: the type of a topology without keys, else the part.

    Raises:
      UserError: there is no such topology.
    """
    try:
        part = topology_part(name)
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None
    return part if part.has_keys() else part.type
