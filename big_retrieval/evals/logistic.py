"""Multinomial logistic regression with losses and gradients of all rows on the devices.

The objective and the solver (SciPy's L-BFGS) are the same as in scikit-learn with C = 1 / l2:

    sum_i loss_i + l2 / 2 |W|^2, with a bias without penalty

The rows of features are sharded over the mesh, the classifier is replicated, and XLA adds up the
gradients. Features are stored in float32 and multiplied in float64 (float32 on TPUs): with a small
penalty and separable classes, the rounding of float32 exceeds the gradient. SciPy computes the
steps on the host.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.optimize

from big_retrieval import parallel
from big_retrieval.evals.ranks import class_ranks
from big_retrieval.inference.encoder import Encoder
from big_retrieval.runtime import activity

SLOPE = 1e-7  # L-BFGS ends if no entry of the gradient per row is larger
SAME = 1e-13  # it also ends if the objective changes by less than this share


class Classifier(NamedTuple):
    kernel: Any  # [D, C]
    bias: Any  # [C]


class ProbeRows(NamedTuple):
    """Features on the devices; padding rows have weight 0."""

    x: jax.Array  # [n, D]
    labels: jax.Array  # [n]
    weights: jax.Array  # [n]


class Predicted(NamedTuple):
    """Results of a classifier for n rows."""

    places: np.ndarray  # ranks of the labels, from 1; ties count against them
    losses: np.ndarray  # cross entropies


def put(encoder: Encoder, x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> ProbeRows:
    """Puts features [n, D], class indices [n] and row weights [n] on the devices."""
    arrays = (x.astype(np.float32), labels.astype(np.int32), weights.astype(np.float32))
    return ProbeRows(*(_spread(encoder, array) for array in arrays))


def weighted(encoder: Encoder, rows: ProbeRows, weights: np.ndarray) -> ProbeRows:
    """Replaces the weights [n]; the features stay on the devices."""
    return rows._replace(weights=_spread(encoder, weights.astype(np.float32)))


def _spread(encoder: Encoder, array: np.ndarray) -> jax.Array:
    """Puts rows [n, ...] on the devices, padded with rows of 0."""
    padding = -len(array) % encoder.row_multiple()
    return encoder.spread(np.pad(array, [(0, padding)] + [(0, 0)] * (array.ndim - 1)))


def zeros(features: int, classes: int) -> Classifier:
    """Returns the classifier with all parameters 0."""
    return Classifier(np.zeros((features, classes)), np.zeros(classes))


def fit(encoder: Encoder, rows: ProbeRows, l2: float, start: Classifier, steps: int) -> Classifier:
    """Minimizes the objective in float64; the minimum does not depend on `start`."""
    shape = start.kernel.shape
    count = float(parallel.fetch(rows.weights).sum())

    def unpacked(flat: np.ndarray) -> Classifier:
        return Classifier(flat[: -shape[1]].reshape(shape), flat[-shape[1] :])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        """Computes the objective and its gradient, both divided by the number of rows."""
        classifier = unpacked(flat)
        losses, slope = _losses_and_slope(_on_devices(encoder, classifier), rows)
        activity.beat()
        kernel, bias = (parallel.fetch(leaf).astype(np.float64) for leaf in slope)
        total = parallel.fetch(losses).sum(dtype=np.float64)
        total += l2 / 2 * np.square(classifier.kernel).sum()
        kernel += l2 * classifier.kernel
        return total / count, np.concatenate([kernel.ravel(), bias]) / count

    flat = np.concatenate([start.kernel.ravel(), start.bias])
    options = {"maxiter": steps, "maxfun": 10 * steps, "gtol": SLOPE, "ftol": SAME, "maxcor": 30}
    with _wide():
        result = scipy.optimize.minimize(
            objective, flat, jac=True, method="L-BFGS-B", options=options
        )
    return unpacked(result.x)


def predict(encoder: Encoder, classifier: Classifier, rows: ProbeRows, count: int) -> Predicted:
    """Computes the ranks of the labels and the losses of the first `count` rows."""
    with _wide():
        places, losses = map(parallel.fetch, _predict(_on_devices(encoder, classifier), rows))
    return Predicted(places[:count], losses[:count])


def _wide() -> Any:
    """Returns a context with float64 enabled, except on TPUs, which emulate it."""
    return jax.enable_x64(jax.default_backend() != "tpu")


def _on_devices(encoder: Encoder, classifier: Classifier) -> Classifier:
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    return Classifier(*(encoder.whole(np.asarray(leaf, dtype)) for leaf in classifier))


def _logits(classifier: Classifier, x: jax.Array) -> jax.Array:
    """Computes the logits [n, C] of features [n, D]."""
    kernel, bias = classifier
    return jnp.matmul(x.astype(kernel.dtype), kernel, precision="highest") + bias


@jax.jit
def _losses_and_slope(classifier: Classifier, rows: ProbeRows) -> tuple[jax.Array, Classifier]:
    """Computes the weighted losses [n], and the gradient of their sum."""

    def summed(classifier: Classifier) -> tuple[jax.Array, jax.Array]:
        logits = _logits(classifier, rows.x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows.labels)
        return jnp.sum(losses * rows.weights), losses * rows.weights

    (_, losses), slope = jax.value_and_grad(summed, has_aux=True)(classifier)
    return losses, slope


@jax.jit
def _predict(classifier: Classifier, rows: ProbeRows) -> tuple[jax.Array, jax.Array]:
    logits = _logits(classifier, rows.x)  # [n, C]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows.labels)
    return class_ranks(logits, rows.labels), losses
