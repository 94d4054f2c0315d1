"""Topologies, the parts that `config.topology` names: how embeddings are normalised and scored.

A configuration holds the type of a topology without keys, `c.topology = "oblique"`, as all of the
package are, and the whole part of a topology with keys. What they compute is in
`big_retrieval/similarity.py`.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config import schema
from big_retrieval.config.registry import Part, register, required
from big_retrieval.config.torch_form import TorchContext, TorchForm
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval import similarity
    from big_retrieval.config.run import Config


class Topology(Part):
    """The base of all topologies.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("topology")`. If
    it has further keys, `config.topology` is the part itself, otherwise its type.
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

    @required
    def build(self) -> "similarity.Similarity":
        """What projects and scores; equal ones compare equal."""
        raise NotImplementedError


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


@register("topology")
@dataclass(frozen=True)
class Sphere(Topology):
    """Cosine of the whole vectors."""

    type: Literal["sphere"] = "sphere"

    def build(self) -> "similarity.Similarity":
        from big_retrieval.similarity import SphereInnerProduct

        return SphereInnerProduct()

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("SphereInnerProduct")


@register("topology")
@dataclass(frozen=True)
class Euclidean(Topology):
    """Negative distance of the vectors as they are."""

    type: Literal["euclidean"] = "euclidean"

    def build(self) -> "similarity.Similarity":
        from big_retrieval.similarity import EuclideanDistance

        return EuclideanDistance()

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("EuclideanDistance")


@register("topology")
@dataclass(frozen=True)
class Inner(Topology):
    """Inner product of the vectors as they are."""

    type: Literal["inner"] = "inner"

    def build(self) -> "similarity.Similarity":
        from big_retrieval.similarity import InnerProduct

        return InnerProduct()

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("InnerProduct")


@register("topology")
@dataclass(frozen=True)
class Oblique(Topology):
    """Sum of the cosines of all class tokens."""

    type: Literal["oblique"] = "oblique"

    def build(self) -> "similarity.Similarity":
        from big_retrieval.similarity import ObliqueInnerProduct

        return ObliqueInnerProduct()

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("ObliqueInnerProduct")


@register("topology")
@dataclass(frozen=True)
class Geodesic(Topology):
    """Negative geodesic distance of the class tokens on their spheres."""

    type: Literal["geodesic"] = "geodesic"

    def build(self) -> "similarity.Similarity":
        from big_retrieval.similarity import ObliqueGeodesic

        return ObliqueGeodesic()

    def pytorch(self, context: TorchContext) -> TorchForm:
        return TorchForm("ObliqueGeodesic")
