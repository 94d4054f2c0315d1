"""Formats of metrics and other numbers."""

import math
import re
from typing import Any, TypeGuard

NONE = "–"
FRACTIONS = ("accuracy", "data_wait", "mfu", "R-precision", "R-mean", "beyond_bound")


def is_number(value: Any) -> TypeGuard[float]:
    """Returns True if a value of a metrics row is a number (not a bool)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_fraction(name: str) -> bool:
    """Returns True for a metric that is a share, shown in percent."""
    last = name.rsplit("/", 1)[-1]
    return last.startswith("R@") or last.endswith(FRACTIONS)


def smaller_is_better(name: str) -> bool:
    """Returns True for a metric whose smaller values are better."""
    last = name.rsplit("/", 1)[-1]
    return last.endswith("rank") or "loss" in last or last == "data_wait"


def number(value: Any, digits: int = 4) -> str:
    """Formats a number with `digits` significant digits and commas; other values by `str`."""
    if value is None:
        return NONE
    if not is_number(value):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if isinstance(value, int) or abs(value) >= 10 ** (digits + 3):
        text = f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.3g}"
    elif value == 0 or abs(value) >= 1e-4:
        decimals = max(0, digits - 1 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:,.{min(decimals, digits + 3)}f}"
    else:
        text = f"{value:.{digits - 2}e}".replace("e-0", "e-")
    return text.replace("-", "−", 1) if text.startswith("-") else text


def metric(name: str, value: Any) -> str:
    """Formats a metric: fractions in percent without the sign, and ranks, with one decimal."""
    if is_number(value) and math.isfinite(value):
        if is_fraction(name):
            return f"{100 * value:.1f}".replace("-", "−")
        if name.endswith("rank") and abs(value) < 1e6:
            return f"{value:,.1f}".replace("-", "−")
    return number(value)


def percent(share: float) -> str:
    """Formats a share as a percentage."""
    return f"{100 * share:.1f}%"


def labelled(name: str, value: Any) -> str:
    """Formats a metric like `metric`, with the percent sign."""
    unit = "%" if is_number(value) and math.isfinite(value) and is_fraction(name) else ""
    return metric(name, value) + unit


def difference(name: str, first: Any, second: Any) -> str:
    """Formats second - first with its sign; fractions in percentage points."""
    if not (is_number(first) and is_number(second)) or not math.isfinite(second - first):
        return NONE
    text = metric(name, second - first)
    if float(text.replace("−", "-").replace(",", "")) == 0:
        return "0.0" if is_fraction(name) else "0"
    return f"+{text}" if second > first else text


def short(value: float) -> str:
    """Formats the number of a tick or step: 20k, 1.5M, 0.05, 7.5e-4."""
    if abs(value) >= 1e12:
        return f"{value:.0e}".replace("e+", "e").replace("-", "−", 1)
    for start, unit, letter in ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if abs(value) >= start:
            return f"{value / unit:.4g}{letter}"
    if 0 < abs(value) < 0.01:
        digits, power = f"{value:.2e}".split("e")
        return f"{float(digits):g}e{int(power)}".replace("-", "−", int(value < 0))
    text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"
    return text.replace("e-0", "e-").replace("-", "−", 1 if text.startswith("-") else 0)


def natural(name: str) -> list[tuple[int, int | str]]:
    """Returns a key that sorts names as readers do: R@5 before R@10."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in parts if piece]


def duration(seconds: float) -> str:
    """Formats a time as 1 h 02 min, 4 min 05 s or 7.3 s, with spaces that do not break."""
    if not math.isfinite(seconds):
        return NONE
    if seconds < 60:
        return f"{seconds:.1f}\xa0s"
    minutes, remaining = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,}\xa0h\xa0{minutes:02}\xa0min"
    return f"{minutes}\xa0min\xa0{remaining:02}\xa0s"
