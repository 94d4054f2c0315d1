"""Topologies: how a representation [n, M, N] becomes an embedding, and how two embeddings score."""

import torch
import torch.nn.functional as F


class SphereInnerProduct:
    """The cosine of whole embeddings."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[n, M, N] -> [n, M, N], with the norm 1."""
        return F.normalize(x.flatten(1), dim=-1).reshape(x.shape)

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[rows, M, N] and [columns, M, N] -> [rows, columns]."""
        return a.flatten(1) @ b.flatten(1).T


class ObliqueInnerProduct:
    """The sum of the cosines of all class tokens."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[n, M, N] -> [n, M, N], each of the M with the norm 1."""
        return F.normalize(x, dim=-1)

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[rows, M, N] and [columns, M, N] -> [rows, columns]."""
        return a.flatten(1) @ b.flatten(1).T


class InnerProduct:
    """The inner product of embeddings as they are."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[n, M, N], as they are."""
        return x

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[rows, M, N] and [columns, M, N] -> [rows, columns]."""
        return a.flatten(1) @ b.flatten(1).T


class EuclideanDistance:
    """The negative distance of embeddings as they are."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[n, M, N], as they are."""
        return x

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[rows, M, N] and [columns, M, N] -> [rows, columns]."""
        a, b = a.flatten(1), b.flatten(1)
        squares = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        return -squares.clamp(min=0).sqrt()


class ObliqueGeodesic:
    """The negative geodesic distance of the class tokens on their spheres."""

    def project(self, x: torch.Tensor) -> torch.Tensor:
        """[n, M, N] -> [n, M, N], each of the M with the norm 1."""
        return F.normalize(x, dim=-1)

    def score(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """[rows, M, N] and [columns, M, N] -> [rows, columns]."""
        cosines = torch.einsum("rmn,cmn->rcm", a, b).clamp(-1, 1)
        # This form of the arc cosine is exact near 1, too.
        arcs = torch.atan2(((1 - cosines) * (1 + cosines)).sqrt(), cosines)
        return -(arcs.square().sum(-1) + torch.finfo(arcs.dtype).eps).sqrt()
