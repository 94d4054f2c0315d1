"""Times: how they are written and read, and CPU seconds."""

import math
import re
import resource

UNKNOWN = "?"


def duration(seconds: float) -> str:
    """A time, as 1:02:03 or 4:05; ? where it is not finite."""
    if not math.isfinite(seconds):
        return UNKNOWN
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds_of(text: str) -> float | None:
    """The reverse of `duration`; None for anything else."""
    if not re.fullmatch(r"(\d+:)?\d+:\d\d", text):
        return None
    total = 0
    for part in text.split(":"):
        total = total * 60 + int(part)
    return float(total)


def cpu_seconds() -> float:
    """CPU seconds so far of this process and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
