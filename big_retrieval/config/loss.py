"""Base class of losses, the entries of `config.losses`. The package's losses are in losses/."""

import abc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from big_retrieval.config.ranges import AtLeast1, Positive, ShareBelow1
from big_retrieval.config.registry import Part

if TYPE_CHECKING:
    import flax.linen as nn
    import jax

    from big_retrieval.config.run import Config
    from big_retrieval.losses.context import Context, Result, Scalars


@dataclass(frozen=True)
class Constraint:
    """L <= bound instead of a weighted L: adds lambda * (L / bound - 1), with a learned lambda.

    "Reducing Predictive Feature Suppression in Resource-Constrained Contrastive Image-Caption
    Retrieval", Eq. 9. See `losses/constraint.py` for the update of lambda.
    """

    bound: Positive | None = None  # upper bound of L; None for no constraint
    start: float = 1.0  # initial value of lambda
    min: float = 0.0  # minimum of lambda in the loss
    max: float | None = 100.0  # maximum of lambda in the loss; None for no maximum
    rate: Positive = 5e-3  # learning rate of the ascent of lambda
    momentum: ShareBelow1 = 0.9
    dampening: ShareBelow1 = 0.9  # damps gradients in the momentum, except the first one
    # False: the raw value of lambda is clipped only where the loss reads it, and may run beyond
    # its range (as the paper's authors do); True: it is clipped after each step
    projected: bool = False
    warn_after: AtLeast1 = 1000  # steps in a row with L above the bound before a warning

    def check(self, path: str) -> Iterator[str]:
        """Yields an error message for every bad key; `path` names the group."""
        if self.max is not None and self.max <= self.min:
            yield f"{path}.max is {self.max}; it must be above {path}.min {self.min}."
        if self.start < self.min or (self.max is not None and self.start > self.max):
            yield f"{path}.start is {self.start}; it must be from {path}.min to {path}.max."


@dataclass(frozen=True)
class Loss(Part):
    """Base class of losses, whose methods are pure; see `Part`."""

    kind: ClassVar[str] = "loss"
    weight: Positive = 1.0  # factor in the sum of all losses; to leave a loss out, remove it
    constraint: Constraint = field(default_factory=Constraint)

    @abc.abstractmethod
    def __call__(self, context: "Context") -> "Result":
        """Returns the loss [] of a global batch, and metrics [] by name."""

    def scalars(self) -> dict[str, float]:
        """Returns the initial values of learned scalars, the parameters `scalars/<loss>/<name>`."""
        return {}

    def bound(self, scalars: "Scalars") -> "dict[str, jax.Array]":
        """Returns the scalars within their bounds, after the optimizer's update."""
        return dict(scalars)

    def module(self, config: "Config") -> "nn.Module | None":
        """Returns a Linen module that exists in training only, such as a decoder, or None.

        It is called as `module(reps, fields, train=bool, rows=int32 [b])` with the embeddings and
        fields of b rows. It returns arrays [b, ...], which the loss reads as `context.output`. Its
        parameters are `losses/<name>/...`. It works row by row, because `config.microbatch` slices
        the batch; `__call__` compares rows.
        """

    def warnings(self, metrics: Mapping[str, float]) -> Iterator[str]:
        """Yields warnings for the user that follow from the loss's metrics of a step."""
        yield from ()

    def compares(self, config: "Config") -> tuple[str, ...]:
        """Returns the fields that it compares, whose embeddings must have the same shape."""
        return ()

    def other_topology(self, config: "Config") -> str:
        """Returns the type of its topology if that differs from its fields' topology, else ""."""
        return ""

    def reads_vectors(self, config: "Config") -> tuple[str, ...]:
        """Returns the fields whose tower's vectors its module reads, as `Reps.vectors`."""
        return ()


def check_losses(config: "Config") -> Iterator[str]:
    """Yields an error message for every mistake in `config.losses`."""
    if not config.losses:
        yield (
            "config.losses is empty: give it a loss, such as "
            "c.losses.main = recipe.entry(config.Contrastive())."
        )
    for name, loss in config.losses.items():
        if not name.isidentifier():
            yield f"config.losses has the name {name!r}; use letters, digits and underscores."
        yield from _check_loss(loss, config, f"config.losses.{name}")
    if all(loss.constraint.bound is not None for loss in config.losses.values()):
        yield (
            "config.losses are all constraints (constraint.bound): one of them must be minimised, "
            "with its bound None."
        )


def _check_loss(loss: Loss, config: "Config", path: str) -> Iterator[str]:
    if loss.constraint.bound is not None and loss.weight != 1:
        yield (
            f"{path} has a weight ({loss.weight}) and a constraint.bound "
            f"({loss.constraint.bound}): leave the weight at 1, or set the bound to None."
        )
    yield from loss.constraint.check(f"{path}.constraint")
    yield from loss.check(config, path)
