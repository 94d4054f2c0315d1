"""Topologies: embeddings of representations [n, M, N], and scores of embeddings."""

import torch
import torch.nn.functional as F


class InnerProduct:
    """The inner product of unchanged representations."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings [n, M, N] of representations [n, M, N]."""
        return x

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Returns scores [rows, columns] of embeddings [rows, M, N] and [columns, M, N]."""
        return a.flatten(1) @ b.flatten(1).T


class SphereInnerProduct(InnerProduct):
    """The cosine of embeddings with the norm 1."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x.flatten(1), dim=-1).reshape(x.shape)


class ObliqueInnerProduct(InnerProduct):
    """The sum of cosines over all class tokens, each with norm 1."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x, dim=-1)


class EuclideanDistance(InnerProduct):
    """The negative distance of unchanged representations."""

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = a.flatten(1), b.flatten(1)
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        return -squares.clamp(min=0).sqrt()


class ObliqueGeodesic(ObliqueInnerProduct):
    """The negative geodesic distance of the class tokens on their spheres."""

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        cosines = torch.einsum("rmn,cmn->rcm", a, b).clamp(-1, 1)
        # This form of the arc cosine is also exact near 1.
        arcs = torch.atan2(((1 - cosines) * (1 + cosines)).sqrt(), cosines)
        return -(arcs.square().sum(-1) + torch.finfo(arcs.dtype).eps).sqrt()
