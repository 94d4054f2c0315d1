"""Durations as text, and CPU seconds."""

import math
import resource

UNKNOWN = "?"


def duration(seconds: float) -> str:
    """Returns a time such as 1:02:03 or 4:05; ? if it is not finite."""
    if not math.isfinite(seconds):
        return UNKNOWN
    minutes, seconds = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def cpu_seconds() -> float:
    """Returns the CPU seconds of this process and of its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
