"""From the score of a pair to its weight in the loss (GCL, Eqs. 1 to 3)."""

import difflib
import itertools
from collections.abc import Callable

import numpy as np

from big_retrieval.config.expression import Formula, compile_formula
from big_retrieval.config.labels import PairLabels
from big_retrieval.errors import UserError

Weight = Callable[[np.ndarray], np.ndarray]

KEY = "config.labels.weight"


def _piecewise(s: np.ndarray, s_max: float) -> np.ndarray:
    """Eq. 3: s_max from 0.9 s_max on, below it s_max / (0.9 s_max - s + 1)."""
    return s_max / np.maximum(0.9 * s_max - s + 1, 1)  # at 0.9 s_max both are s_max


FORMULAS: dict[str, Formula] = {
    "constant": lambda s, s_max: np.ones(np.shape(s)),
    "linear": lambda s, s_max: np.array(s, np.float64),  # Eq. 1
    "inverse": lambda s, s_max: s_max / (s_max - s + 1),  # Eq. 2
    "inverse_sqrt": lambda s, s_max: s_max / np.sqrt(s_max - s + 1),
    "piecewise": _piecewise,
}
NAMES = (*FORMULAS, "table")


def make_weight(labels: PairLabels) -> Weight:
    """The function from scores to weights that a configuration asks for.

    With s_max the best score there can be, the named ones are: constant 1; linear s; inverse
    s_max / (s_max - s + 1); inverse_sqrt s_max / sqrt(s_max - s + 1); piecewise s_max where
    s >= 0.9 s_max, else s_max / (0.9 s_max - s + 1); table: `labels.table`, linear in between and
    constant beyond its ends. Anything else is arithmetic in s and s_max.

    Weights are not normalised: with s_max 100 they go from 1 to 100.

    Args:
      labels: `weight`, `s_max` and `table` count.

    Returns:
      float64 [n] -> float64 [n]. It raises a UserError for a score that is NaN or outside of
      [0, s_max], and for one whose weight is negative, NaN or infinite.

    Raises:
      UserError: no such weight, a mistake in the expression or the table, or a bad s_max.
    """
    s_max = float(labels.s_max)
    if not 0 < s_max < np.inf:
        raise UserError(f"config.labels.s_max is {labels.s_max}; it must be positive and finite.")
    formula = _formula(labels)

    def weight(scores: np.ndarray) -> np.ndarray:
        s = np.asarray(scores, np.float64)
        _refuse(s, ~((s >= 0) & (s <= s_max)), lambda i: (
            f"the score {s[i]:g} is not in [0, {s_max:g}], where {s_max:g} is "
            "config.labels.s_max; correct the score or the key."
        ))  # fmt: skip
        weights = formula(s, s_max)
        _refuse(s, ~((weights >= 0) & (weights < np.inf)), lambda i: (
            f"{KEY} {labels.weight!r} gives the score {s[i]:g} the weight {weights[i]:g}; weights "
            "must be finite and not negative."
        ))  # fmt: skip
        return weights

    return weight


def _refuse(s: np.ndarray, wrong: np.ndarray, sentence: Callable[[int], str]) -> None:
    if wrong.any():
        raise UserError(sentence(int(np.argmax(wrong))))


def _formula(labels: PairLabels) -> Formula:
    name = labels.weight
    if name in FORMULAS:
        return FORMULAS[name]
    if name == "table":
        return _table(labels.table)
    near = difflib.get_close_matches(name, NAMES, 1, 0.7)
    known = f"the known ones are {', '.join(NAMES)}, or arithmetic in s and s_max"
    if near or (name.isidentifier() and name not in ("s", "s_max")):
        hint = f"did you mean {near[0]!r}?" if near else f"{known}."
        raise UserError(f"{KEY} is {name!r}, which is unknown; {hint}")
    if not name.strip():
        raise UserError(f"{KEY} is empty; {known}.")
    return compile_formula(name, KEY)


def _table(table: tuple[tuple[float, float], ...]) -> Formula:
    """Linear interpolation between the entries."""
    if not table:
        raise UserError(
            f"config.labels.table is empty, but {KEY} is 'table'; give it pairs such as "
            "((1, 0.1), (100, 1))."
        )
    try:
        scores, weights = np.array(table, np.float64).T  # [n] each
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
    return lambda s, s_max: np.interp(s, scores, weights)
