"""A count that shows whether this process makes progress.

The training loop counts every step, and encoding counts every batch; `runtime/watchdog.py` looks
whether the count grows. Counting costs two assignments. All processes of a run count at the same
places, so the others wait for the process with the lowest count.
"""

from dataclasses import dataclass


@dataclass
class Progress:
    """The count of this process.

    Attributes:
      beats: pieces of work that were finished; 0: nothing yet.
      step: the last training step.
    """

    beats: int = 0
    step: int = 0


PROGRESS = Progress()


def beat(step: int | None = None) -> None:
    """Counts a piece of work: of training when `step` says which, else a batch that was encoded."""
    if step is not None:
        PROGRESS.step = step
    PROGRESS.beats += 1


def reset() -> None:
    """Starts counting anew, for a new run in this process."""
    PROGRESS.beats = PROGRESS.step = 0
