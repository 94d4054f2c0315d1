"""Multinomial logistic regression: all rows at once, their losses and gradients on the devices.

The objective is scikit-learn's with C = 1 / l2, and so is the solver, SciPy's L-BFGS:

    sum_i loss_i + l2 / 2 |W|^2, with a bias that bears no penalty

Features are rows over the mesh, the classifier is whole on every device, and XLA adds up the
gradients. Features are kept in float32 and multiplied in float64, on TPUs in float32: where a small
penalty meets classes that are easily told apart, the rounding of float32 is larger than the slope.
The host, which holds the classifier alone, takes the steps.
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
from big_retrieval.runtime import heartbeat

SLOPE = 1e-7  # largest entry of the gradient, by the number of rows, at which it has converged
SAME = 1e-13  # two objectives with a relative difference below this one end the search, too


class Classifier(NamedTuple):
    """A linear classifier."""

    kernel: Any  # [D, C]
    bias: Any  # [C]


class ProbeRows(NamedTuple):
    """Features on the devices; what fills up the last row group has the weight 0."""

    x: jax.Array  # [n, D]
    labels: jax.Array  # [n]
    weights: jax.Array  # [n]


class Predicted(NamedTuple):
    """What a classifier says about rows."""

    places: np.ndarray  # of the right class, from 1; of equal logits wrong classes come first
    losses: np.ndarray  # cross entropies


def put(encoder: Encoder, x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> ProbeRows:
    """Features, their classes and the weights of the rows onto the devices.

    Args:
      encoder: knows the devices.
      x: [n, D].
      labels: [n], from 0.
      weights: [n].
    """
    arrays = (x.astype(np.float32), labels.astype(np.int32), weights.astype(np.float32))
    return ProbeRows(*(_spread(encoder, array) for array in arrays))


def weighted(encoder: Encoder, rows: ProbeRows, weights: np.ndarray) -> ProbeRows:
    """The same rows, whose features stay where they are, with other weights [n]."""
    return rows._replace(weights=_spread(encoder, weights.astype(np.float32)))


def _spread(encoder: Encoder, array: np.ndarray) -> jax.Array:
    """Rows [n, ...] on the devices, filled up with rows of 0."""
    more = -len(array) % encoder.row_multiple()
    return encoder.spread(np.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1)))


def zeros(features: int, classes: int) -> Classifier:
    """The classifier that knows nothing."""
    return Classifier(np.zeros((features, classes)), np.zeros(classes))


def fit(encoder: Encoder, rows: ProbeRows, l2: float, start: Classifier, steps: int) -> Classifier:
    """The classifier with the least objective, in float64.

    Args:
      encoder: knows the devices.
      rows: the features.
      l2: the penalty, positive.
      start: where to begin; the minimum does not depend on it.
      steps: at most.
    """
    shape = start.kernel.shape
    count = float(parallel.fetch(rows.weights).sum())

    def unpacked(flat: np.ndarray) -> Classifier:
        return Classifier(flat[: -shape[1]].reshape(shape), flat[-shape[1] :])

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective and its gradient, both divided by the number of rows."""
        found = unpacked(flat)
        losses, slope = _losses_and_slope(_on_devices(encoder, found), rows)
        heartbeat.beat()
        kernel, bias = (parallel.fetch(leaf).astype(np.float64) for leaf in slope)
        total = parallel.fetch(losses).sum(dtype=np.float64)
        total += l2 / 2 * np.square(found.kernel).sum()
        kernel += l2 * found.kernel
        return total / count, np.concatenate([kernel.ravel(), bias]) / count

    flat = np.concatenate([start.kernel.ravel(), start.bias])
    options = {"maxiter": steps, "maxfun": 10 * steps, "gtol": SLOPE, "ftol": SAME, "maxcor": 30}
    with _wide():
        done = scipy.optimize.minimize(
            objective, flat, jac=True, method="L-BFGS-B", options=options
        )
    return unpacked(done.x)


def predict(encoder: Encoder, found: Classifier, rows: ProbeRows, count: int) -> Predicted:
    """Places of the right classes and losses of the first `count` rows."""
    with _wide():
        places, losses = map(parallel.fetch, _predict(_on_devices(encoder, found), rows))
    return Predicted(places[:count], losses[:count])


def _wide() -> Any:
    """A context in which float64 is float64, but on TPUs, which would have to emulate it."""
    return jax.enable_x64(jax.default_backend() != "tpu")


def _on_devices(encoder: Encoder, found: Classifier) -> Classifier:
    dtype = jax.dtypes.canonicalize_dtype(np.float64)
    return Classifier(*(encoder.whole(np.asarray(leaf, dtype)) for leaf in found))


def _logits(found: Classifier, x: jax.Array) -> jax.Array:
    """Features [n, D] -> [n, C]."""
    return jnp.matmul(x.astype(found.kernel.dtype), found.kernel, precision="highest") + found.bias


@jax.jit
def _losses_and_slope(found: Classifier, rows: ProbeRows) -> tuple[jax.Array, Classifier]:
    """The weighted losses [n], and the gradient of their sum."""

    def summed(found: Classifier) -> tuple[jax.Array, jax.Array]:
        logits = _logits(found, rows.x)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows.labels)
        return jnp.sum(losses * rows.weights), losses * rows.weights

    (_, losses), slope = jax.value_and_grad(summed, has_aux=True)(found)
    return losses, slope


@jax.jit
def _predict(found: Classifier, rows: ProbeRows) -> tuple[jax.Array, jax.Array]:
    logits = _logits(found, rows.x)  # [n, C]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, rows.labels)
    return class_ranks(logits, rows.labels), losses
