"""From the score of a pair to its weight in the loss (GCL, Eqs. 1 to 3)."""

from collections.abc import Callable

import numpy as np

from big_retrieval.config.labels import PairLabels

Weight = Callable[[np.ndarray], np.ndarray]

FORMULAS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "constant": lambda s, s_max: np.ones(np.shape(s)),
    "linear": lambda s, s_max: np.array(s, np.float64),  # Eq. 1
    "inverse": lambda s, s_max: s_max / (s_max - s + 1),  # Eq. 2
    "inverse_sqrt": lambda s, s_max: s_max / np.sqrt(s_max - s + 1),
    # Eq. 3: s_max from 0.9 s_max on, where both of its branches are s_max
    "piecewise": lambda s, s_max: s_max / np.maximum(0.9 * s_max - s + 1, 1),
}


def make_weight(labels: PairLabels) -> Weight:
    """Returns the function from scores to weights that a checked configuration names.

    With s_max the highest possible score, the functions are: constant 1; linear s; inverse
    s_max / (s_max - s + 1); inverse_sqrt s_max / sqrt(s_max - s + 1); piecewise s_max where
    s >= 0.9 s_max, else s_max / (0.9 s_max - s + 1); table: `labels.table`, linear in between and
    constant beyond its ends.

    Weights are not normalized: with s_max 100 they go from 1 to 100.

    Returns:
      Scores float64 [n] in [0, s_max] -> weights float64 [n].
    """
    if labels.weight == "table":
        scores, weights = np.array(labels.table, np.float64).T
        return lambda s: np.interp(s, scores, weights)
    formula, s_max = FORMULAS[labels.weight], float(labels.s_max)
    return lambda s: formula(np.asarray(s, np.float64), s_max)
