"""Machine and code version of a result."""

import os
import platform
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def processor() -> str:
    """Returns the processor's name, as far as the system knows it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit(folder: Path = PACKAGE) -> str | None:
    """Returns the commit of the package's checkout, "-dirty" after changes; None if unknown."""
    if not (folder.parent / ".git").exists():  # site-packages in another repository
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        completed = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() or None
