"""Geometry of embeddings, as in "Design of the Topology for Contrastive Visual-Textual Alignment"
and Wang and Isola, "Alignment and Uniformity on the Hypersphere" (2020).
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import jax.numpy as jnp
import numpy as np

from big_retrieval.config import Config, Range, Scenes, Source, register
from big_retrieval.config.evals import Evaluator
from big_retrieval.config.topologies import Topology
from big_retrieval.data.sources import RecordSource
from big_retrieval.evals.encoding import ChosenRecords
from big_retrieval.evals.evaluators import EvaluatorContext
from big_retrieval.similarity import Geodesic, Oblique

log = logging.getLogger(__name__)
BINS = 60  # of a histogram
SHARPNESS = 2.0  # t of the uniformity kernel in the paper


@register("evaluator")
@dataclass(frozen=True)
class Geometry(Evaluator):
    """Distances, alignment, uniformity, rank and correlation of the embeddings of pairs.

    To compare domains, use one evaluator for pairs of the training domain and one for other pairs.
    """

    type: Literal["geometry"] = "geometry"
    data: Source = field(default_factory=lambda: Scenes(split="test"))
    query: str = "text"
    document: str = "image"
    count: Annotated[int, Range(2)] = 1000  # number of first records; only the first text of each
    per_sphere: bool = False  # also return the values of each sub-sphere
    every: int | None = None  # None for `eval_every`; 0 evaluates only at the end

    def check(self, config: Config, path: str) -> Iterator[str]:
        if self.query == self.document:
            yield f"{path}.query and {path}.document are both {self.query!r}; give it two fields."
        for name in (self.query, self.document):
            if name in config.encoded and config.encoded[name].head.lexical:
                yield f"{path}: {name!r} is lexical. Geometry needs dense embeddings."

    def reads(self) -> Mapping[str, str]:
        return {"query": self.query, "document": self.document}

    def metric_names(self, config: Config) -> Sequence[str] | None:
        if self.per_sphere:
            return None  # the number of sub-spheres is unknown here
        pair_metrics = (
            "positive_distance", "negative_distance", "positive_std", "negative_std",
            "beyond_bound", "alignment",
        )  # fmt: skip
        field_metrics = ("uniformity", "effective_rank", "token_correlation")
        fields = (self.query, self.document)
        return *pair_metrics, *(f"{metric}_{name}" for name in fields for metric in field_metrics)

    def check_data(self, context: EvaluatorContext) -> None:
        context.try_fields(self.document, self.query)

    def run(self, context: EvaluatorContext, weights: Any) -> dict[str, float]:
        """Encodes the pairs and returns `measure` of them.

        The examples are histograms of distances, as in the paper's figure.
        """
        first_records = np.arange(min(self.count, len(context.source)))
        source: RecordSource = ChosenRecords(context.source, first_records)
        encoder = context.source_encoder(weights)
        (query, query_records), (document, records) = (
            encoder.encode_first(source, name, context.readers[name])
            for name in (self.query, self.document)
        )
        _, first, second = np.intersect1d(query_records, records, return_indices=True)
        log.info(f"{len(first):,} pairs")
        sides = {self.query: query[first], self.document: document[second]}
        if context.show is not None:
            context.show({"distances": histograms(all_distances(sides, context.topology))})
        return measure(sides, context.topology, self.per_sphere)


def measure(
    sides: Mapping[str, np.ndarray], topology: Topology, per_sphere: bool = False
) -> dict[str, float]:
    """Measures the geometry of pairs.

    Args:
      sides: embeddings [n, M, N] of the query field and the document field, in this order.
      topology: a distance is its score times -1, as in the paper.

    Returns:
      - `positive_distance`, `negative_distance`: mean distances of pairs, and of queries with
        documents of other pairs; `positive_std`, `negative_std` are the standard deviations;
      - `beyond_bound`: the share of two pairs (I1, T1), (I2, T2) with
        d(I1, T2) > d(I1, T1) + d(I2, T1) + d(I2, T2). By the triangle inequality (Eq. 4 of the
        paper), a false negative (I2, T1) bounds the distance of a true negative (I1, T2). Here
        d = (s(u, u) + s(v, v)) / 2 - s(u, v) is 0 for equal embeddings; for inner products, it is
        half of the square distance. The share is 0 if d satisfies the inequality;
      - `alignment`: the mean square distance between the unit vectors of a pair;
      - `uniformity_<field>`: log E exp(-2 |x - y|^2) over different unit vectors of a field; lower
        is more uniform;
      - `effective_rank_<field>`: exp(entropy) of the normalized singular values of all embeddings
        (Roy and Vetterli, 2007);
      - `token_correlation_<field>`: the mean RV coefficient of two class tokens, from 0 to 1, a
        correlation that is invariant to rotations of a token (Escoufier, 1973).

      Alignment and uniformity are means over sub-spheres (one if the space is not oblique); with
      `per_sphere`, `sphere_<j>/...` are their values.
    """
    (query_name, query), (document_name, document) = sides.items()
    d = all_distances(sides, topology)
    both = jnp.asarray(document), jnp.asarray(query)
    self_scores = [np.asarray(topology.paired(x, x), np.float64) for x in both]  # [n] each
    out = distances(d)
    out["beyond_bound"] = beyond_bound((self_scores[0][:, None] + self_scores[1][None, :]) / 2 + d)
    oblique = isinstance(topology, Oblique | Geodesic)
    spheres = {name: unit_spheres(x, oblique) for name, x in sides.items()}  # [M, n, N] each
    differences = spheres[query_name] - spheres[document_name]
    of_spheres = {"alignment": np.square(differences).sum(axis=2).mean(axis=1)}  # [M] each
    of_spheres |= {f"uniformity_{name}": uniformity(x) for name, x in spheres.items()}
    out |= {name: float(values.mean()) for name, values in of_spheres.items()}
    for name, embeddings in sides.items():
        out[f"effective_rank_{name}"] = effective_rank(embeddings)
        if embeddings.shape[1] > 1:
            out[f"token_correlation_{name}"] = token_correlation(embeddings)
    if per_sphere:
        for name, values in of_spheres.items():
            out |= {f"sphere_{j}/{name}": float(value) for j, value in enumerate(values)}
    return out


def all_distances(sides: Mapping[str, np.ndarray], topology: Topology) -> np.ndarray:
    """Computes the distances of all documents to all queries, [n, n]; `sides` as in `measure`."""
    query, document = (jnp.asarray(x) for x in sides.values())
    return -np.asarray(topology.score(document, query), np.float64)


def histograms(d: np.ndarray) -> dict[str, list[Any]]:
    """Counts distances [n, n] in `BINS` bins: `edges`, and `positives` and `negatives` per bin."""
    edges = np.histogram_bin_edges(d[np.isfinite(d)], BINS)
    groups = {"positives": np.diag(d), "negatives": d[~np.eye(len(d), dtype=bool)]}
    counts = {name: np.histogram(x, edges)[0].tolist() for name, x in groups.items()}
    return {"edges": edges.tolist(), **counts}


def distances(d: np.ndarray) -> dict[str, float]:
    """Computes means and standard deviations of distances [n, n] with the pairs in the diagonal."""
    positives, is_negative = np.diag(d), ~np.eye(len(d), dtype=bool)
    return {
        "positive_distance": float(positives.mean()),
        "negative_distance": float(d[is_negative].mean()),
        "positive_std": float(positives.std()),
        "negative_std": float(d[is_negative].std()),
    }


def beyond_bound(d: np.ndarray) -> float:
    """Computes the share of two pairs that violate Eq. 4, from distances [n, n] of 0 and more."""
    positives, is_negative = np.diag(d), ~np.eye(len(d), dtype=bool)
    bound = positives[:, None] + d.T + positives[None, :]  # [n, n]
    return float(np.mean(d[is_negative] > bound[is_negative]))


def unit_spheres(embeddings: np.ndarray, oblique: bool) -> np.ndarray:
    """Normalizes embeddings [n, M, N] to unit vectors [M, n, N] if oblique, else [1, n, M N]."""
    x = embeddings.astype(np.float64)
    x = x.transpose(1, 0, 2) if oblique else x.reshape(1, len(x), -1)
    return x / np.maximum(np.linalg.norm(x, axis=2, keepdims=True), 1e-12)


def uniformity(spheres: np.ndarray) -> np.ndarray:
    """Computes log E exp(-t |x - y|^2) over different rows of unit vectors [M, n, N], [M]."""
    upper = np.triu_indices(spheres.shape[1], k=1)
    squares = (2 - 2 * (x @ x.T)[upper] for x in spheres)
    return np.array([np.log(np.mean(np.exp(-SHARPNESS * square))) for square in squares])


def effective_rank(embeddings: np.ndarray) -> float:
    """Computes exp(entropy) of the normalized singular values of embeddings [n, ...]."""
    flat = embeddings.astype(np.float64).reshape(len(embeddings), -1)
    values = np.linalg.svd(flat, compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def token_correlation(embeddings: np.ndarray) -> float:
    """Computes the mean RV coefficient of two class tokens of embeddings [n, M, N] with M > 1."""
    count, tokens, width = embeddings.shape
    x = embeddings.astype(np.float64).reshape(count, -1)
    x = x - x.mean(axis=0)
    covariances = (x.T @ x).reshape(tokens, width, tokens, width)
    squares = np.square(covariances).sum(axis=(1, 3))  # [M, M]
    size = np.sqrt(np.diag(squares))
    coefficients = squares / np.maximum(size[:, None] * size[None, :], 1e-24)
    return float(coefficients[~np.eye(tokens, dtype=bool)].mean())
