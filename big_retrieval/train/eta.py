"""How long a run still takes: its steps, and the evaluations and checkpoints between them."""

from collections import Counter
from collections.abc import Hashable, Mapping


class TimeLeft:
    """Seconds until the end of a run, from what this start of it has measured.

    Steps count with their mean over all steps so far, as those of the last seconds say little on a
    machine that others use, too. What is done between steps (evaluators, checkpoints) counts with
    the last time that the same was done; what was not done yet counts with the mean of the rest.
    """

    def __init__(self, total: int, first: int, pauses: Mapping[int, Hashable]) -> None:
        """Nothing is measured yet.

        Args:
          total: steps of the run.
          first: finished steps.
          pauses: step -> what is done behind it; equal values take about equally long.
        """
        self._total, self._pauses = total, pauses
        self._ahead = Counter(kind for step, kind in pauses.items() if step > first)
        self._seconds = 0.0
        self._steps = 0
        self._last: dict[Hashable, float] = {}

    def trained(self, steps: int, seconds: float) -> None:
        """Notes how long some steps took."""
        self._steps += steps
        self._seconds += seconds

    def paused(self, step: int, seconds: float) -> None:
        """Notes how long the loop was busy with something else behind a step."""
        kind = self._pauses.get(step)
        if kind is not None:
            self._ahead[kind] -= 1
            self._last[kind] = seconds

    def after(self, step: int) -> float:
        """Seconds from the end of a step to the end of the run; infinite before anything ran."""
        if not self._steps:
            return float("inf")
        usual = sum(self._last.values()) / max(len(self._last), 1)
        pauses = sum(count * self._last.get(kind, usual) for kind, count in self._ahead.items())
        return (self._total - step) * self._seconds / self._steps + pauses
