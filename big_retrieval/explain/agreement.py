"""How far raters agree beyond chance."""

import numpy as np


def cohen(first: np.ndarray, second: np.ndarray) -> float | None:
    """Cohen's kappa of two raters (1960): (p_o - p_e) / (1 - p_e).

    Args:
      first: their answers, [units].
      second: those of the other.

    Returns:
      At most 1; 0 is chance. None where there is no unit, or chance alone would agree everywhere.
    """
    if not len(first):
        return None
    kinds = np.union1d(first, second)
    observed = float(np.mean(first == second))
    chance = sum(float(np.mean(first == kind)) * float(np.mean(second == kind)) for kind in kinds)
    return None if chance >= 1 else (observed - chance) / (1 - chance)


def fleiss(answers: np.ndarray) -> float | None:
    """Fleiss' kappa of any number of raters (1971), each of whom answered for every unit.

    Args:
      answers: [units, raters].

    Returns:
      As `cohen`; None with fewer than two raters, too.
    """
    units, raters = answers.shape
    if not units or raters < 2:
        return None
    kinds = np.unique(answers)
    counts = np.stack([np.sum(answers == kind, axis=1) for kind in kinds], axis=1)  # [units, kinds]
    alike = np.sum(counts * (counts - 1), axis=1) / (raters * (raters - 1))  # [units]
    chance = float(np.sum((counts.sum(axis=0) / (units * raters)) ** 2))
    return None if chance >= 1 else (float(alike.mean()) - chance) / (1 - chance)
