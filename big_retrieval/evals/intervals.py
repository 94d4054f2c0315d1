"""Confidence intervals of means over few queries."""

import math
from collections.abc import Mapping

FEW = 1000  # with this many queries, a 95% interval is at most 0.062 wide
Z = 1.959964  # 95% of a normal distribution


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """Returns the 95% interval of a share of `count` queries, by Wilson's score method.

    It is also an upper bound for the interval of the mean of values between 0 and 1 (Wilson, 1927,
    "Probable Inference, the Law of Succession, and Statistical Inference").
    """
    spread = Z**2 / count
    center = (share + spread / 2) / (1 + spread)
    half = math.sqrt(share * (1 - share) * spread + spread**2 / 4) / (1 + spread)
    return max(0.0, center - half), min(1.0, center + half)


def few_queries_note(metrics: Mapping[str, float], count: int, noun: str = "queries") -> str:
    """Returns a line with the interval of each metric; "" for 1,000 queries or more.

    The metrics are means of values between 0 and 1 over `count` queries.
    """
    if not 0 < count < FEW or not metrics:
        return ""
    intervals = []
    for name, value in metrics.items():
        low, high = wilson_interval(value, count)
        intervals.append(f"{name} {value:.3f} is from {low:.3f} to {high:.3f}")
    return f"{count:,} {noun} are few: {', '.join(intervals)} (95% interval)"
