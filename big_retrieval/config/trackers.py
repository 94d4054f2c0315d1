"""The base of trackers, the parts of `config.trackers`; ours are in train/, beside their work."""

import abc
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from big_retrieval.config.registry import Part
from big_retrieval.errors import UserError

if TYPE_CHECKING:
    from big_retrieval.config.run import Config
    from big_retrieval.train.tracking import OpenTracker, TrackedRun


class Tracker(Part):
    """The base of all trackers: what the rest of the code asks them.

    A subclass is a frozen dataclass with the key `type`, made known by `@register("tracker")`.

    Attributes:
      title: its name, for messages.
      closing: seconds that it has at the end of a run for the rest of the rows.
    """

    kind: ClassVar[str] = "tracker"
    named_by_type: ClassVar[bool] = True
    title: ClassVar[str] = "the tracker"
    closing: ClassVar[float] = 10.0

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """What is wrong with its keys, or missing on this machine, a sentence each.

        Args:
          config: of the run.
          path: of this tracker, such as `config.trackers.wandb`.
        """
        del config, path
        yield from ()

    @abc.abstractmethod
    def open(self, run: "TrackedRun") -> "OpenTracker":
        """Opens the tracker; called in a thread of its own, so that it may take its time.

        Args:
          run: what the tracker may say of the run, and the id by which it finds it again.
        """
        raise NotImplementedError


def with_trackers(config: "Config", types: Sequence[str]) -> "Config":
    """A config with further trackers, with their defaults; those that it has stay as they are.

    Args:
      config: of the run.
      types: such as "wandb".

    Raises:
      UserError: there is no such tracker.
    """
    known = {cls.type: cls for cls in Tracker.registered()}
    found = dict(config.trackers)
    for name in types:
        if name not in known:
            raise UserError(f"--tracker: {name!r} is unknown; known: {', '.join(sorted(known))}.")
        if all(each.type != name for each in found.values()):
            found[name] = known[name]()
    return dataclasses.replace(config, trackers=found)
