"""Which machine and which state of the code a result is of."""

import os
import platform
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit(folder: Path = PACKAGE) -> str | None:
    """The commit that the package's checkout is at, with "-dirty" where files differ from it.

    Args:
      folder: the package, directly below the checkout.

    Returns:
      None where the package is no part of a checkout, or there is no git.
    """
    if not (folder.parent / ".git").exists():  # a site-packages in somebody else's repository
        return None
    words = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
