"""The optimizer of a run: schedules, groups of parameters, phases, averaging.

Groups and phases are told apart by names, not by places in a list, so that `--config.optimizer.
groups.image.lr_factor=0.1` says which is meant, in a command line as in a sweep. Configurations
keep no order of such entries, so what needs one has a key for it: `ParameterGroup.order` and
`Phase.start_*`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from big_retrieval.config import schema
from big_retrieval.config.batch_norms import BatchStats
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

SAME = "same"  # a type: what the phase, or the run, has


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps, as a share of its peak (`lr`)."""

    # "same": of a group or a phase, which then has no schedule of its own
    type: Literal["cosine", "linear", "rsqrt", "constant", "same"] = "cosine"
    warmup_steps: AtLeast0 = 0  # linear from 0
    cooldown_steps: AtLeast0 = 0  # linear to `end` at the end of the run
    end: Share = 0.0  # share of the peak that cosine, linear and the cool-down end at
    floor: float = 0.0  # behind the warm-up the share never falls below
    timescale: AtLeast1 = 10_000  # of rsqrt, in steps
    interval: Literal["step", "epoch"] = "step"  # how often the share changes


def _same_schedule() -> Schedule:
    return Schedule(type=SAME)


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are trained in a way of their own; parameters of no group follow the run.

    A parameter belongs to the first group whose pattern matches its whole name, by `order`.
    """

    pattern: str = ""  # regular expression over names such as image/layers_3/mlp/fc1/kernel
    order: int = 0  # lower numbers first; two groups of one order must not share a parameter
    frozen: bool = False  # never trained, without optimizer state
    lr: Positive | None = None  # None: that of the phase or the run
    lr_factor: NotNegative = 1.0  # times that of the phase or the run
    schedule: Schedule = field(default_factory=_same_schedule)  # over the whole run
    rule: UpdateRule = field(default_factory=Same)
    weight_decay: NotNegative | None = None  # None: the run's
    decay_vectors: bool = False  # decay biases, norms, scalars, class and position tables, too
    clip: bool = True  # whether it counts for `clip_norm` and is scaled by it


@dataclass(frozen=True)
class GroupRate:
    """What a phase changes for a group; None and "same" leave what the group says."""

    lr: Positive | None = None
    lr_factor: NotNegative | None = None  # times the group's lr, or where that is None the phase's
    schedule: Schedule = field(default_factory=_same_schedule)  # over the phase


@dataclass(frozen=True)
class Phase:
    """A part of the run, from its start to the next phase's start or to the end of the run.

    What stands before the first phase is trained as the run says. Schedules that are given here
    run from the beginning of the phase to its end; all others over the whole run.
    """

    start_step: AtLeast0 | None = None  # finished steps at which it begins; 0: with the run
    start_epoch: NotNegative | None = None  # or the same in passes over the records
    trainable: str = ".*"  # regular expression over whole names: these are trained ...
    frozen: str = ""  # ... but for these; frozen groups stay frozen
    lr: Positive | None = None  # None: the run's
    schedule: Schedule = field(default_factory=_same_schedule)
    groups: dict[str, GroupRate] = field(default_factory=dict)  # by names of `optimizer.groups`
    # Batch norms go by the batch and their running averages move ("update") or stay ("batch"), or
    # they go by the running averages, which stay ("running"); "tower": as the
    # `frozen_stats` of their tower or head says.
    batch_stats: BatchStats = "tower"


@dataclass(frozen=True)
class NoAveraging:
    """The parameters as they are trained."""

    type: Literal["none"] = "none"


@dataclass(frozen=True)
class Ema:
    """An exponential moving average besides the parameters; evaluators and exports use it."""

    type: Literal["ema"] = "ema"
    decay: ShareBelow1 = 0.999  # of the average, a step
    # decay at step t is min(decay, (1 + t) / (10 + t)), so that short runs forget their start
    warmup: bool = field(default=True, metadata={schema.BEFORE: False})


@dataclass(frozen=True)
class Swa:
    """Every epoch ends with the mean of parameters from its last steps, which replaces them.

    "Averaging Weights Leads to Wider Optima and Better Generalization", with a fresh mean for each
    epoch: training and evaluation go on from the mean.
    """

    type: Literal["swa"] = "swa"
    start: ShareBelow1 = 0.9  # share of an epoch's steps after which parameters enter the mean
    count: AtLeast1 = 5  # how many enter, about: every (1 - start) L / count steps of an epoch of L


@dataclass(frozen=True)
class Optimizer:
    """How parameters follow from gradients: rule, rate, decay, clip; by groups and by phases."""

    rule: UpdateRule = field(default_factory=default("optimizer", "adamw"))
    lr: Positive = 1e-3
    schedule: Schedule = field(default_factory=Schedule)
    # of matrices; never of biases, norms, scalars, class and position tables
    weight_decay: NotNegative = 0.1
    clip_norm: Positive | None = 1.0  # of the whole gradient
    groups: dict[str, ParameterGroup] = field(default_factory=dict)
    phases: dict[str, Phase] = field(default_factory=dict)
    averaging: NoAveraging | Ema | Swa = field(default_factory=NoAveraging)

    def ordered_groups(self) -> list[tuple[str, ParameterGroup]]:
        """The groups in the order in which they are tried."""
        return sorted(self.groups.items(), key=lambda item: (item[1].order, item[0]))

    def schedules(self) -> Iterator[tuple[str, Schedule]]:
        """All schedules with their paths below `config.optimizer`; the run's is the first."""
        yield "schedule", self.schedule
        for name, group in self.groups.items():
            yield f"groups.{name}.schedule", group.schedule
        for name, phase in self.phases.items():
            yield f"phases.{name}.schedule", phase.schedule
            for key, rate in phase.groups.items():
                yield f"phases.{name}.groups.{key}.schedule", rate.schedule
