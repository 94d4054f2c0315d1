"""Ridge regression onto one-hot classes, in closed form for any number of penalties."""

import numpy as np

BIAS = 100.0  # constant feature for the bias; large, so that the penalty has little effect on it
TINY = 1e-5  # added to standard deviations


class Ridge:
    """Least-squares classifier of features [n, D] and class indices [n].

    As in the few-shot evaluation of big_vision: features are standardized to mean 0 and standard
    deviation 1 over the training rows and get a constant; targets are 1 for the label and -1 for
    other classes. One factorization, in float64, serves all penalties: the smaller of the D x D and
    n x n matrices.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int) -> None:
        x = features.astype(np.float64)
        self._mean, self._std = x.mean(axis=0), x.std(axis=0) + TINY
        x = self._standardized(features)  # [n, D + 1]
        targets = 2.0 * np.eye(classes)[labels] - 1.0  # [n, C]
        self._dual = len(x) < x.shape[1]
        eigenvalues, vectors = np.linalg.eigh(x @ x.T if self._dual else x.T @ x)
        self._eigenvalues = np.maximum(eigenvalues, 0.0)  # no rounding error below 0
        self._left = x.T @ vectors if self._dual else vectors
        self._right = vectors.T @ (targets if self._dual else x.T @ targets)

    def scores(self, features: np.ndarray, l2: float) -> np.ndarray:
        """Computes the scores [m, C] of rows [m, D] with a penalty."""
        kernel = self._left @ (self._right / (self._eigenvalues + l2)[:, None])  # [D + 1, C]
        return self._standardized(features) @ kernel

    def _standardized(self, features: np.ndarray) -> np.ndarray:
        x = (features.astype(np.float64) - self._mean) / self._std
        return np.pad(x, ((0, 0), (0, 1)), constant_values=BIAS)
