"""From the score of a pair to its weight in the loss (GCL, Eqs. 1 to 3)."""

import itertools
from collections.abc import Callable

import numpy as np

from big_retrieval.config.labels import PairLabels
from big_retrieval.errors import UserError

Weight = Callable[[np.ndarray], np.ndarray]

KEY = "config.labels.weight"
FORMULAS: dict[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "constant": lambda s, s_max: np.ones(np.shape(s)),
    "linear": lambda s, s_max: np.array(s, np.float64),  # Eq. 1
    "inverse": lambda s, s_max: s_max / (s_max - s + 1),  # Eq. 2
    "inverse_sqrt": lambda s, s_max: s_max / np.sqrt(s_max - s + 1),
    # Eq. 3: s_max from 0.9 s_max on, where both of its branches are s_max
    "piecewise": lambda s, s_max: s_max / np.maximum(0.9 * s_max - s + 1, 1),
}
NAMES = (*FORMULAS, "table")


def make_weight(labels: PairLabels) -> Weight:
    """The function from scores to weights that a configuration names.

    With s_max the highest possible score, the functions are: constant 1; linear s; inverse
    s_max / (s_max - s + 1); inverse_sqrt s_max / sqrt(s_max - s + 1); piecewise s_max where
    s >= 0.9 s_max, else s_max / (0.9 s_max - s + 1); table: `labels.table`, linear in between and
    constant beyond its ends.

    Weights are not normalised: with s_max 100 they go from 1 to 100.

    Args:
      labels: `weight`, `s_max` and `table` count.

    Returns:
      float64 [n] -> float64 [n]. It raises a UserError for a score that is NaN or outside of
      [0, s_max].

    Raises:
      UserError: an unknown function, a mistake in the table, or a bad s_max.
    """
    name, s_max = labels.weight, float(labels.s_max)
    if not 0 < s_max < np.inf:
        raise UserError(f"config.labels.s_max is {labels.s_max}; it must be positive and finite.")
    if name not in NAMES:
        raise UserError(
            f"{KEY} is {name!r}, which is unknown; the known ones are {', '.join(NAMES)}. Any "
            "other function of the score is a config.labels.table that the config file fills."
        )
    scores, weights = _table(labels.table) if name == "table" else (np.zeros(0), np.zeros(0))

    def weight(given: np.ndarray) -> np.ndarray:
        s = np.asarray(given, np.float64)
        wrong = ~((s >= 0) & (s <= s_max))
        if wrong.any():
            raise UserError(
                f"the score {s[np.argmax(wrong)]:g} is not in [0, {s_max:g}], where {s_max:g} is "
                "config.labels.s_max; correct the score or the key."
            )
        return np.interp(s, scores, weights) if name == "table" else FORMULAS[name](s, s_max)

    return weight


def _table(table: tuple[tuple[float, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Scores and weights of the entries, float64 [n] each."""
    if not table:
        raise UserError(
            f"config.labels.table is empty, but {KEY} is 'table'; give it pairs such as "
            "((1, 0.1), (100, 1))."
        )
    try:
        scores, weights = np.array(table, np.float64).T
    except (ValueError, TypeError):
        raise UserError("config.labels.table must hold pairs of a score and a weight.") from None
    for before, after in itertools.pairwise(scores):
        if not before < after:
            raise UserError(
                f"config.labels.table has the score {after:g} behind {before:g}; order it by "
                "increasing scores, each once."
            )
    if not (np.isfinite(scores).all() and np.isfinite(weights).all() and (weights >= 0).all()):
        raise UserError("config.labels.table: scores and weights must be finite, weights not < 0.")
    return scores, weights
