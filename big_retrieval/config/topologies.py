"""Topologies, the parts that `config.topology` names: how embeddings are normalised and scored.

They have no keys, so that a configuration holds their type alone: `c.topology = "oblique"`. What
they compute is in `big_retrieval/similarity.py`.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from big_retrieval.config.registry import Part, register, required
from big_retrieval.config.torch_form import TorchContext, TorchForm
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval import similarity


class Topology(Part):
    """The base of all topologies.

    A subclass is a frozen dataclass with no other key than `type`, made known by
    `@register("topology")`.
    """

    kind: ClassVar[str] = "topology"

    @required
    def build(self) -> "similarity.Similarity":
        """What projects and scores; equal ones compare equal."""
        raise NotImplementedError


def topology_part(name: str) -> Topology:
    """The topology of a type.

    Raises:
      UserError: there is none, with the nearest name.
    """
    known: dict[str, Any] = {cls.type: cls for cls in Topology.registered()}
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise UserError(f"topology {name!r} is unknown{hint}; known: {', '.join(known)}.")
    return known[name]()


def check_topology(name: str, path: str) -> Iterator[str]:
    """What is wrong with the name of a topology under a key; one sentence at most."""
    try:
        topology_part(name)
    except UserError as problem:
        yield f"{path}: {problem}"


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
