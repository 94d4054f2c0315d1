"""Ridge regression onto one-hot classes, in closed form for any number of penalties."""

import numpy as np

BIAS = 100.0  # the feature that stands for a bias; large, so that the penalty hardly touches it
TINY = 1e-5  # added to standard deviations


class Ridge:
    """A classifier by least squares, whose factorisation serves all penalties.

    As the few-shot evaluation of big_vision: features get mean 0 and standard deviation 1 over the
    training rows, and a constant; targets are 1 for the right class and -1 for the others. The
    smaller one of the D x D and n x n matrices is factorised, in float64.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int) -> None:
        """Factorises.

        Args:
          features: [n, D], to train on.
          labels: [n], from 0.
          classes: how many there are.
        """
        x = features.astype(np.float64)
        self._mean, self._std = x.mean(axis=0), x.std(axis=0) + TINY
        x = self._standardised(features)  # [n, D + 1]
        targets = 2.0 * np.eye(classes)[labels] - 1.0  # [n, C]
        self._dual = len(x) < x.shape[1]
        eigenvalues, vectors = np.linalg.eigh(x @ x.T if self._dual else x.T @ x)
        self._eigenvalues = np.maximum(eigenvalues, 0.0)  # no rounding error below 0
        self._left = x.T @ vectors if self._dual else vectors
        self._right = vectors.T @ (targets if self._dual else x.T @ targets)

    def scores(self, features: np.ndarray, l2: float) -> np.ndarray:
        """The scores of rows [m, D] by the classifier with a penalty: [m, C]."""
        kernel = self._left @ (self._right / (self._eigenvalues + l2)[:, None])  # [D + 1, C]
        return self._standardised(features) @ kernel

    def _standardised(self, features: np.ndarray) -> np.ndarray:
        x = (features.astype(np.float64) - self._mean) / self._std
        return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)
