"""The optimizer and its schedule."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the steps, as a share of `optimizer.lr`."""

    type: Literal["cosine", "linear", "rsqrt", "constant"] = "cosine"
    warmup_steps: int = 0  # linear from 0
    cooldown_steps: int = 0  # linear to `end` at the end of the run
    end: float = 0.0  # share of the peak that cosine, linear and the cool-down end at
    floor: float = 0.0  # behind the warm-up the share never falls below
    timescale: int = 10_000  # of rsqrt, in steps


@dataclass(frozen=True)
class Optimizer:
    """AdamW; rules are (regular expression over parameter names, factor), the last match holds."""

    lr: float = 1e-3
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-6
    weight_decay: float = 0.1  # of matrices; never of biases, norms, scalars, class and position
    clip_norm: float | None = 1.0  # of the whole gradient
    ema_decay: float | None = None  # evaluators and exports then use the average
    lr_factors: tuple[tuple[str, float], ...] = ()
    decay_factors: tuple[tuple[str, float], ...] = ()
    freeze: tuple[str, ...] = ()
    schedule: Schedule = field(default_factory=Schedule)
