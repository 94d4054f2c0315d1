"""The optimizer of a run: schedules, groups of parameters, phases, averaging.

Groups and phases have names, so that the command line can set their keys:
`--config.optimizer.groups.image.lr_factor=0.1`. `ParameterGroup.order` and `Phase.start_*` order
them.
"""

import dataclasses
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from big_retrieval.config.ranges import (
    AtLeast0,
    AtLeast1,
    NotNegative,
    Positive,
    Share,
    ShareBelow1,
)
from big_retrieval.config.registry import default
from big_retrieval.config.update_rules import Same, UpdateRule

if TYPE_CHECKING:
    from big_retrieval.config.run import Config

PATH = "config.optimizer"
SAME = "same"  # type of a schedule or rule: the same as in the phase or the run
BatchStats = Literal["tower", "update", "batch", "running"]


def has_frozen_stats(part: Any) -> bool:
    """Returns True for a tower or head with batch norms whose running averages can be frozen."""
    return part.normed and hasattr(part, "frozen_stats")


def in_mode(part: Any, mode: BatchStats) -> Any:
    """Returns a tower or head with the `frozen_stats` of a phase's `batch_stats`."""
    if mode == "tower" or not has_frozen_stats(part):
        return part
    return dataclasses.replace(part, frozen_stats=mode == "running")


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps, as a share of its peak (`lr`)."""

    # "same" in a group or a phase keeps the schedule of the run
    type: Literal["cosine", "linear", "rsqrt", "constant", "same"] = "cosine"
    warmup_steps: AtLeast0 = 0  # length of the linear rise from 0
    cooldown_steps: AtLeast0 = 0  # length of the linear decay to `end` at the end of the run
    end: Share = 0.0  # share of the peak at the end of cosine, linear and cool-down
    floor: float = 0.0  # lowest share after the warm-up
    timescale: AtLeast1 = 10_000  # timescale of "rsqrt" in steps
    interval: Literal["step", "epoch"] = "step"  # how often the share changes

    def check(self, path: str) -> Iterator[str]:
        """Yields an error message for every key of a schedule "same" that is set."""
        for key in dataclasses.fields(self) if self.type == SAME else ():
            if key.name != "type" and getattr(self, key.name) != key.default:
                yield (
                    f"{path}.{key.name} is set, but {path}.type is {SAME!r}: set the type, too, "
                    "such as to 'cosine'."
                )


_same_schedule = functools.partial(Schedule, type=SAME)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters with other settings than the run's.

    A parameter belongs to the first group whose pattern matches its whole name, by `order`.
    """

    pattern: str = ""  # regular expression over names such as image/layers_3/mlp/fc1/kernel
    order: int = 0  # lower values first; two groups of equal order must not share a parameter
    frozen: bool = False  # never trained, without optimizer state
    lr: Positive | None = None  # learning rate; None for the phase's or the run's
    lr_factor: NotNegative = 1.0  # factor of the rate of the phase or the run
    schedule: Schedule = field(default_factory=_same_schedule)  # schedule over the whole run
    rule: UpdateRule = field(default_factory=Same)
    weight_decay: NotNegative | None = None  # weight decay; None for the run's
    decay_vectors: bool = False  # decay biases, norms, scalars, class and position tables, too
    clip: bool = True  # include its gradient in the norm and the scaling of `clip_norm`

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """Yields an error message for every bad key."""
        yield from self.rule.check(config, f"{path}.rule")
        yield from self.schedule.check(f"{path}.schedule")
        if not self.pattern:
            yield f"{path}.pattern is empty; give a regular expression such as 'image/.*'."
        yield from _check_pattern(self.pattern, f"{path}.pattern")
        if self.lr is not None and self.lr_factor != 1:
            yield f"{path}.lr and {path}.lr_factor are both set; keep one of them."


@dataclass(frozen=True)
class GroupRate:
    """Rates of a group in a phase; None and "same" keep the group's."""

    lr: Positive | None = None
    lr_factor: NotNegative | None = None  # factor of the group's lr, else of the phase's or run's
    schedule: Schedule = field(default_factory=_same_schedule)  # schedule over the phase


@dataclass(frozen=True)
class Phase:
    """A part of the run, from its start to the next phase's start or to the end of the run.

    Before the first phase, the run's settings hold. Schedules of a phase run from its beginning to
    its end; all other schedules run over the whole run.
    """

    start_step: AtLeast0 | None = None  # finished steps at which it begins; 0 for the run's start
    start_epoch: NotNegative | None = None  # start in finished passes over the records
    trainable: str = ".*"  # regular expression over whole names of trained parameters
    frozen: str = ""  # exceptions from `trainable`; frozen groups stay frozen
    lr: Positive | None = None  # learning rate; None for the run's
    schedule: Schedule = field(default_factory=_same_schedule)
    groups: dict[str, GroupRate] = field(default_factory=dict)  # rates by group
    # statistics of batch norms: "update": of the batch, which update the running averages; "batch":
    # of the batch, without update; "running": running averages, without update; "tower": as
    # `frozen_stats` of the tower or head
    batch_stats: BatchStats = "tower"

    def check(self, config: "Config", path: str) -> Iterator[str]:
        """Yields an error message for every bad key."""
        yield from self.schedule.check(f"{path}.schedule")
        yield from _check_pattern(self.trainable, f"{path}.trainable")
        yield from _check_pattern(self.frozen, f"{path}.frozen")
        groups = config.optimizer.groups
        for name, rate in self.groups.items():
            if name not in groups:
                choices = ", ".join(sorted(groups)) or "none"
                yield f"{path}.groups.{name} is no group of {PATH}.groups; known: {choices}."
            if rate.lr is not None and rate.lr_factor is not None:
                yield f"{path}.groups.{name} has both lr and lr_factor; keep one of them."
            yield from rate.schedule.check(f"{path}.groups.{name}.schedule")
        if self.batch_stats != "tower":
            yield from self._check_batch_stats(config, path)
        yield from self._check_start(config, path)

    def _check_batch_stats(self, config: "Config", path: str) -> Iterator[str]:
        parts = config.towers_and_heads().items()
        normed = {key: part for key, part in parts if has_frozen_stats(part)}
        if not normed:
            yield (
                f"{path}.batch_stats is {self.batch_stats!r}, but no tower or head has batch "
                "norms: leave it at 'tower'."
            )
        if config.microbatch in (None, config.batch_size):
            return
        for key, part in normed.items():
            if in_mode(part, self.batch_stats).whole_batch:
                yield (
                    f"{path}.batch_stats is {self.batch_stats!r}: the batch norms of {key} then "
                    f"need the whole batch at once; set {key}.batch_stats to 'slice', or drop "
                    "config.microbatch."
                )

    def _check_start(self, config: "Config", path: str) -> Iterator[str]:
        """Checks the start against the length of the run; training does if their units differ."""
        if (self.start_step is None) == (self.start_epoch is None):
            both = self.start_step is not None
            wrong = "are both set; keep one of them" if both else "are not set; give one of them"
            yield f"{path}.start_step and {path}.start_epoch {wrong}."
            return
        key, start = self.start
        total = config.total_steps
        if key == "start_epoch":
            total = config.total_epochs if total is None else None  # total_steps overrides it
        if total is not None and start >= total:
            length = "total_steps" if key == "start_step" else "total_epochs"
            yield (
                f"{path}.{key} is {start}, but the run ends at config.{length} {total}: let the "
                "phase begin earlier, or train for longer."
            )

    @property
    def start(self) -> tuple[str, float]:
        """Key that sets the start of the phase, and its value."""
        if self.start_step is not None:
            return "start_step", self.start_step
        return "start_epoch", self.start_epoch or 0.0


@dataclass(frozen=True)
class NoAveraging:
    """No averaging of parameters."""

    type: Literal["none"] = "none"


@dataclass(frozen=True)
class Ema:
    """An exponential moving average of the parameters, which evaluators and exports use."""

    type: Literal["ema"] = "ema"
    decay: ShareBelow1 = 0.999  # share of the average that remains after a step
    # decay at step t is min(decay, (1 + t) / (10 + t)), so that short runs forget their start
    warmup: bool = True


@dataclass(frozen=True)
class Swa:
    """Replaces the parameters at the end of every epoch by a mean over its last steps.

    As in "Averaging Weights Leads to Wider Optima and Better Generalization", but with a new mean
    per epoch: training and evaluation continue from the mean.
    """

    type: Literal["swa"] = "swa"
    start: ShareBelow1 = 0.9  # share of an epoch's steps after which parameters enter the mean
    # snapshots of the parameters in a mean: about one per (1 - start) L / count steps, if an epoch
    # has L steps
    count: AtLeast1 = 5


@dataclass(frozen=True)
class Optimizer:
    """Update of parameters from gradients: rule, rate, decay, clipping; groups and phases."""

    rule: UpdateRule = field(default_factory=default("optimizer", "adamw"))
    lr: Positive = 1e-3
    schedule: Schedule = field(default_factory=Schedule)
    # weight decay of matrices; biases, norms, scalars, class and position tables have none
    weight_decay: NotNegative = 0.1
    clip_norm: Positive | None = 1.0  # maximum norm of the whole gradient; None for no clipping
    groups: dict[str, ParameterGroup] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    averaging: NoAveraging | Ema | Swa = field(default_factory=NoAveraging)

    def ordered_groups(self) -> list[tuple[str, ParameterGroup]]:
        """Returns the groups in the order in which they are tried."""
        return sorted(self.groups.items(), key=lambda entry: (entry[1].order, entry[0]))

    def check(self, config: "Config") -> Iterator[str]:
        """Yields an error message for every wrong key, except keys with names of parameters."""
        if self.rule.type == SAME:
            yield f"{PATH}.rule.type is {SAME!r}, which only groups can be; name a rule."
        if self.schedule.type == SAME:
            yield (
                f"{PATH}.schedule.type is {SAME!r}, which only groups and phases can be; name a "
                "schedule."
            )
        yield from self.rule.check(config, f"{PATH}.rule")
        for name, group in self.groups.items():
            yield from group.check(config, f"{PATH}.groups.{name}")
        starts: dict[tuple[str, float], str] = {}
        for name, phase in self.phases.items():
            yield from phase.check(config, f"{PATH}.phases.{name}")
            key, start = phase.start
            other = starts.get((key, start))
            if other is not None:
                yield (
                    f"{PATH}.phases.{name}.{key} is {start}, where {PATH}.phases.{other} begins, "
                    "too: phases must not overlap; let one of them begin later."
                )
            starts[key, start] = name


def _check_pattern(pattern: str, path: str) -> Iterator[str]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield f"{path}: {pattern!r} is not a regular expression: {error}."
