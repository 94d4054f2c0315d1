"""Scores of images with the prompts of classes, some images at a time."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from big_retrieval.config.topologies import Topology
from big_retrieval.evals.ranks import SCORES, DocumentScorer
from big_retrieval.inference.encoder import Embeddings, Encoder

CHUNK = 1024  # maximum number of images scored at a time


@lru_cache(maxsize=32)
def _scorer(score: Callable[..., jax.Array], classes: int) -> Callable[..., jax.Array]:
    def class_scores(images: jax.Array, ids: jax.Array, prompts: jax.Array) -> jax.Array:
        scores = score(images, prompts)  # [C, classes * prompts]
        return jnp.mean(scores.reshape(len(scores), classes, -1), axis=2)  # [C, classes]

    return class_scores


def class_scores(
    images: Embeddings,
    prompts: Embeddings,
    classes: int,
    *,
    topology: Topology,
    encoder: Encoder,
) -> Iterator[tuple[slice, np.ndarray]]:
    """Yields some images and their mean scores [c, classes] with the prompts of each class.

    The prompts [classes * P, ...] are grouped by class; P = 1 for class means.
    """
    if scipy.sparse.issparse(prompts):  # the mean of inner products is the product with the mean
        means = _sparse_means(prompts, classes).T
        size = max(1, min(CHUNK, SCORES // classes))
        for start in range(0, images.shape[0], size):
            rows = slice(start, min(start + size, images.shape[0]))
            yield rows, (images[rows] @ means).toarray()
        return
    scorer = DocumentScorer(prompts, score=topology.score, encoder=encoder, chunk=CHUNK)
    yield from scorer.blocks(partial(_scorer, classes=classes), images, np.arange(len(images)))


def best_others(
    scores: np.ndarray, labels: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best classes of each image except its label, and their scores.

    NaN comes first. Among equal scores, the lower index comes first.

    Returns:
      int64 [n, min(count, classes - 1)], and scores of the same shape.
    """
    rows, columns = np.arange(len(labels)), []
    keys = np.maximum(scores, np.finfo(scores.dtype).min)  # above the -inf of selected classes
    keys[np.isnan(keys)] = np.inf
    keys[rows, labels] = -np.inf
    for _ in range(min(count, scores.shape[1] - 1)):
        columns.append(keys.argmax(axis=1))
        keys[rows, columns[-1]] = -np.inf
    best = np.stack(columns, axis=1) if columns else np.zeros((len(labels), 0), np.int64)
    return best, np.take_along_axis(scores, best, axis=1)


def class_means(
    prompts: Embeddings, classes: int, *, topology: Topology, normalise: bool = False
) -> Embeddings:
    """Computes the mean of each class's prompts, [classes, M, N] or CSR [classes, V].

    Dense means are projected onto the topology as in CLIP; `normalise` scales sparse means to norm
    1. The prompts are grouped by class, as in `class_scores`.
    """
    if not scipy.sparse.issparse(prompts):
        means = np.mean(prompts.reshape(classes, -1, *prompts.shape[1:]), axis=1)
        return np.asarray(topology.project(jnp.asarray(means)), np.float32)
    means = _sparse_means(prompts, classes)
    if not normalise:
        return means
    norms = np.sqrt(means.multiply(means).sum(axis=1))
    scales = scipy.sparse.diags_array(1 / np.where(norms > 0, norms, 1))
    return scipy.sparse.csr_array(scales @ means)


def _sparse_means(prompts: Any, classes: int) -> Any:
    """Averages the rows of each class, CSR [classes, V]."""
    count = prompts.shape[0] // classes
    mean = scipy.sparse.kron(scipy.sparse.eye_array(classes), np.full((1, count), 1 / count))
    return scipy.sparse.csr_array(mean @ prompts)
