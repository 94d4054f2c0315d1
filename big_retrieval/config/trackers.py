"""The base class of trackers, the parts of `config.trackers`; the package's are in train/."""

import abc
from typing import TYPE_CHECKING, ClassVar

from big_retrieval.config.registry import Part

if TYPE_CHECKING:
    from big_retrieval.train.tracking import OpenTracker, TrackedRun


class Tracker(Part):
    """Base class of trackers; see `Part`."""

    kind: ClassVar[str] = "tracker"
    named_by_type: ClassVar[bool] = True
    title: ClassVar[str] = "the tracker"  # name, for messages
    closing: ClassVar[float] = 10.0  # seconds to send the remaining rows at the end of a run

    @abc.abstractmethod
    def open(self, run: "TrackedRun") -> "OpenTracker":
        """Opens the tracker. It runs in a thread, so it may be slow."""
